"""What writers have put out and committers have not committed yet: pure bookkeeping.

A committable becomes *due* when the checkpoint is complete that it came before.  What came at the
end of the input belongs to the first checkpoint that is taken afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flinkray.streaming.sinks.sink import CommitOutcome, CommitRequest


class CommittableMessage(NamedTuple):
    """What a writer's operator sends to a committer's."""

    checkpoint_id: int | None
    """That it was prepared for; None: at the end of the input."""
    subtask: int
    """The writer's."""
    committable: Any


@dataclass(eq=False)
class _Pending:
    checkpoint_id: int | None
    subtask: int
    request: CommitRequest[Any]
    waits: bool = False
    """It was tried in vain, and is to be tried again later."""

    @property
    def place(self) -> tuple[int, int]:
        assert self.checkpoint_id is not None
        return self.checkpoint_id, self.subtask


class CommittableCollector:
    """Of one committer.

    Args:
        completed: id of the checkpoint that the task was restored from; 0: of none.
        in_order: nothing of a checkpoint is due while something of an earlier one is left.
    """

    def __init__(self, completed: int = 0, in_order: bool = False) -> None:
        self._completed = completed
        self._in_order = in_order
        self._pending: list[_Pending] = []

    def restore(self, messages: Iterable[CommittableMessage]) -> None:
        """They were in the checkpoint that the task goes on from, which is complete: whatever their
        ids are, which may be those of another job.  Where checkpoints are at least once, and
        several at a time, some may be of the next one: their records come again."""
        for message in messages:
            known = message.checkpoint_id or 0
            self._add(message._replace(checkpoint_id=min(known, self._completed)))

    def add(self, messages: Iterable[CommittableMessage]) -> None:
        """They have come, maybe when their checkpoint is complete already: a barrier has overtaken
        them."""
        for message in messages:
            self._add(message)

    def _add(self, message: CommittableMessage) -> None:
        request = CommitRequest(message.committable)
        self._pending.append(_Pending(message.checkpoint_id, message.subtask, request))

    def capture(self, checkpoint_id: int) -> list[CommittableMessage]:
        """All that belongs to that checkpoint's state: whatever is not known to be committed."""
        for pending in self._pending:
            if pending.checkpoint_id is None:
                pending.checkpoint_id = checkpoint_id
        return [
            CommittableMessage(one.checkpoint_id, one.subtask, one.request.committable)
            for one in self._pending
        ]

    def completed(self, checkpoint_id: int) -> None:
        """It is complete; ids increase."""
        self._completed = max(self._completed, checkpoint_id)

    def _is_due(self, pending: _Pending) -> bool:
        return pending.checkpoint_id is not None and pending.checkpoint_id <= self._completed

    def due(self, again: bool = False) -> list[CommitRequest[Any]]:
        """What is to be committed now, in order.

        Args:
            again: also what was tried in vain before.
        """
        due = sorted(filter(self._is_due, self._pending), key=lambda pending: pending.place)
        if self._in_order:
            if due and not again and due[0].waits:
                return []
            due = [one for one in due if one.checkpoint_id == due[0].checkpoint_id]
        chosen = [one for one in due if again or not one.waits]
        for one in chosen:
            one.waits = False
            one.request.checkpoint_id, _ = one.place
        return [one.request for one in chosen]

    def settle(self, requests: Sequence[CommitRequest[Any]]) -> None:
        """They were tried, and say themselves what has become of them."""
        tried = set(map(id, requests))
        left = []
        for pending in self._pending:
            if id(pending.request) in tried:
                if pending.request.outcome is not CommitOutcome.RETRY:
                    continue
                pending.waits = True
            left.append(pending)
        self._pending = left

    def __len__(self) -> int:
        """How many are not committed."""
        return len(self._pending)

    @property
    def awaits_checkpoint(self) -> bool:
        """Something is committed with a later checkpoint only."""
        return not all(map(self._is_due, self._pending))

    @property
    def is_retrying(self) -> bool:
        """Something is due that was tried in vain."""
        return any(pending.waits for pending in self._pending)

    @property
    def most_retries(self) -> int:
        """Of what is."""
        waiting = (one.request.number_of_retries for one in self._pending if one.waits)
        return max(waiting, default=0)
