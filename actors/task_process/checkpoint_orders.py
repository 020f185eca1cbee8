"""What the JobMaster says of checkpoints to one task: handed to its thread, in order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from flinkray.scheduler.checkpoints.errors import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
    TriggerCheckpoint,
)
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.task.task import StreamTask
from flinkray.streaming.task.task_mailbox import MailboxClosedError

NOT_OPEN = "its operators are not open yet"


class SourceCuts(Protocol):
    """What a task that reads a source does for the cut of its enumerator."""

    def trigger(self, checkpoint_id: int, then: Callable[[], None]) -> None:
        """Call *then*, on the event loop, when the reader has all that it is told before the
        cut."""

    def checkpointed(self, checkpoint_id: int) -> None:
        """The task has taken its snapshot, or is not going to; from any thread."""


class Declining(Protocol):
    """Who answers for the task."""

    def decline(self, checkpoint_id: int, reason: CheckpointFailureReason, text: str = "") -> None:
        """From any thread."""

    def aborted(self, checkpoint_id: int) -> None:
        """From any thread."""


class TaskCheckpointOrders:
    """On the event loop, but for :meth:`attach`.

    A task is triggered when its operators are open.  What became of checkpoints waits for it: a
    barrier may come as soon as it has begun.

    Args:
        on_loop: has something done by the event loop; from any thread.
        source: of a task that reads a source.
    """

    def __init__(
        self,
        answers: Declining,
        on_loop: Callable[[Callable[[], None]], None],
        source: SourceCuts | None,
    ) -> None:
        self._answers = answers
        self._on_loop = on_loop
        self._source = source
        self._task: StreamTask | None = None
        self._early: list[CheckpointCompleted | CheckpointAborted] = []
        self._has_ended = False

    def attach(self, task: StreamTask) -> None:
        """By the task's thread: its operators are open."""
        self._on_loop(partial(self._attached, task))

    def _attached(self, task: StreamTask) -> None:
        if self._has_ended:
            return
        self._task = task
        early, self._early = self._early, []
        for order in early:
            self.order(order)

    def ended(self) -> None:
        """The task's thread has ended."""
        self._has_ended = True
        self._task = None
        self._early.clear()

    def order(self, order: CheckpointOrder) -> None:
        if isinstance(order, TriggerCheckpoint):
            self._trigger(order)
        elif self._task is None and not self._has_ended:
            self._early.append(order)
        elif not self._tell(order) and isinstance(order, CheckpointAborted):
            self._answers.aborted(order.checkpoint_id)  # it may still be written

    def _tell(self, order: CheckpointCompleted | CheckpointAborted) -> bool:
        """False: the task has ended."""
        task, checkpoint_id = self._task, order.checkpoint_id
        if task is None:
            return False
        if isinstance(order, CheckpointCompleted):
            return self._post(partial(task.notify_checkpoint_complete, checkpoint_id))
        latest = order.latest_completed
        return self._post(partial(task.notify_checkpoint_aborted, checkpoint_id, latest))

    def _trigger(self, order: TriggerCheckpoint) -> None:
        if self._has_ended:
            self._decline_as_closing(order.checkpoint_id)
        elif self._task is None:
            reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
            self._answers.decline(order.checkpoint_id, reason, NOT_OPEN)
        elif self._source is None:
            self._begin(order)
        else:
            self._source.trigger(order.checkpoint_id, partial(self._begin, order))

    def _begin(self, order: TriggerCheckpoint) -> None:
        task = self._task
        if task is None or not self._post(partial(task.trigger_checkpoint, barrier_of(order))):
            self._decline_as_closing(order.checkpoint_id)

    def _decline_as_closing(self, checkpoint_id: int) -> None:
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING
        self._answers.decline(checkpoint_id, reason)

    def _post(self, mail: Callable[[], None]) -> bool:
        """False: the task has ended."""
        assert self._task is not None
        try:
            self._task.mailbox.put(mail)
        except MailboxClosedError:
            return False
        return True


def barrier_of(order: TriggerCheckpoint) -> Barrier:
    """What goes through the job."""
    properties, timeout = order.properties, order.alignment_timeout
    return Barrier(
        order.checkpoint_id,
        order.timestamp,
        savepoint=properties.is_savepoint,
        stops=properties.is_synchronous,
        drains=properties.is_drain,
        unaligned=order.is_unaligned,
        alignment_timeout=None if timeout is None else round(timeout * 1000),
        directory=order.directory,
        latest_completed=order.latest_completed,
        is_whole=order.is_whole,
    )
