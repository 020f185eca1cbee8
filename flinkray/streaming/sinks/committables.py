"""Bookkeeping of committables that writers have emitted and committers have not committed yet.

A committable becomes *due* when the checkpoint that it was prepared for is complete. Committables
from the end of the input belong to the first checkpoint taken afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flinkray.streaming.sinks.sink import CommitOutcome, CommitRequest


class CommittableMessage(NamedTuple):
    """A message from a writer's operator to a committer's operator."""

    checkpoint_id: int | None
    """Id of the checkpoint that the committable was prepared for. None: the end of the input."""
    subtask: int
    """Subtask of the writer."""
    committable: Any


@dataclass(eq=False)
class _Pending:
    checkpoint_id: int | None
    subtask: int
    request: CommitRequest[Any]
    waits: bool = False
    """Whether a commit was tried without success and is to be retried later."""

    @property
    def place(self) -> tuple[int, int]:
        assert self.checkpoint_id is not None
        return self.checkpoint_id, self.subtask


class CommittableCollector:
    """Collector of the committables of one committer.

    Args:
        completed: id of the checkpoint that the task was restored from; 0: none.
        in_order: a committable is due only when those of earlier checkpoints are committed.
    """

    def __init__(self, completed: int = 0, in_order: bool = False) -> None:
        self._completed = completed
        self._in_order = in_order
        self._pending: list[_Pending] = []

    def restore(self, messages: Iterable[CommittableMessage]) -> None:
        """Add committables of the checkpoint from which the task was restored.
        They count as due, whatever their checkpoint ids are (they may be those of another job),
        because that checkpoint is complete. With at-least-once and concurrent checkpoints, some may
        belong to the next checkpoint. Their records are then written again."""
        for message in messages:
            known = message.checkpoint_id or 0
            self._add(message._replace(checkpoint_id=min(known, self._completed)))

    def add(self, messages: Iterable[CommittableMessage]) -> None:
        """Add committables that have arrived from writers.
        Their checkpoint may already be complete, if its barrier has overtaken them."""
        for message in messages:
            self._add(message)

    def _add(self, message: CommittableMessage) -> None:
        request = CommitRequest(message.committable)
        self._pending.append(_Pending(message.checkpoint_id, message.subtask, request))

    def capture(self, checkpoint_id: int) -> list[CommittableMessage]:
        """Return the committables that a checkpoint stores: all not known to be committed."""
        for pending in self._pending:
            if pending.checkpoint_id is None:
                pending.checkpoint_id = checkpoint_id
        return [
            CommittableMessage(one.checkpoint_id, one.subtask, one.request.committable)
            for one in self._pending
        ]

    def completed(self, checkpoint_id: int) -> None:
        """Mark a checkpoint as complete. Ids increase."""
        self._completed = max(self._completed, checkpoint_id)

    def _is_due(self, pending: _Pending) -> bool:
        return pending.checkpoint_id is not None and pending.checkpoint_id <= self._completed

    def due(self, again: bool = False) -> list[CommitRequest[Any]]:
        """Return the requests to commit now, in order.

        Args:
            again: also return those that were tried without success.
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
        """Evaluate requests that were tried: keep those to be retried, forget the others."""
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
        """Number of committables that are not committed."""
        return len(self._pending)

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether some committables are committed only with a later checkpoint."""
        return not all(map(self._is_due, self._pending))

    @property
    def is_retrying(self) -> bool:
        """Whether a due committable was tried without success."""
        return any(pending.waits for pending in self._pending)

    @property
    def most_retries(self) -> int:
        """Most retries of a committable that waits; 0 without such a committable."""
        waiting = (one.request.number_of_retries for one in self._pending if one.waits)
        return max(waiting, default=0)
