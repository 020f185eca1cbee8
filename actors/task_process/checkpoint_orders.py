"""Passes the JobMaster's checkpoint orders to the thread of one task, in order."""

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
    """Divides the events of a source's reader by checkpoints.
    Before a checkpoint the reader gets all events before the checkpoint's cut, and no later ones.
    """

    def trigger(self, checkpoint_id: int, then: Callable[[], None]) -> None:
        """Call *then*, on the event loop, when the reader has all events before the cut."""

    def checkpointed(self, checkpoint_id: int) -> None:
        """Note that the task has taken its snapshot, or will not take it.
        Called from any thread.
        """


class Declining(Protocol):
    """The interface by which TaskCheckpointOrders declines or aborts a task's checkpoints."""

    def decline(self, checkpoint_id: int, reason: CheckpointFailureReason, text: str = "") -> None:
        """Decline a checkpoint in the name of the task. Called from any thread."""

    def aborted(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is aborted. Called from any thread."""


class TaskCheckpointOrders:
    """Passes the JobMaster's checkpoint orders to a task. Lives on the event loop.

    Only :meth:`attach` is called by another thread. A task can be triggered once its operators are
    open. Orders that end a checkpoint wait for this, because a barrier may arrive as soon as the
    task has begun.

    Args:
        on_loop: runs a function on the event loop; called from any thread.
        source: gives the source's reader its events. None if the task reads no source.
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
        """Note that the task's operators are open. Called by the task's thread."""
        self._on_loop(partial(self._attached, task))

    def _attached(self, task: StreamTask) -> None:
        if self._has_ended:
            return
        self._task = task
        early, self._early = self._early, []
        for order in early:
            self.order(order)

    def ended(self) -> None:
        """Note that the task's thread has ended."""
        self._has_ended = True
        self._task = None
        self._early.clear()

    def order(self, order: CheckpointOrder) -> None:
        if isinstance(order, TriggerCheckpoint):
            self._trigger(order)
        elif self._task is None and not self._has_ended:
            self._early.append(order)
        elif not self._tell(order) and isinstance(order, CheckpointAborted):
            self._answers.aborted(order.checkpoint_id)  # the snapshot may still be written

    def _tell(self, order: CheckpointCompleted | CheckpointAborted) -> bool:
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
        assert self._task is not None
        try:
            self._task.mailbox.put(mail)
        except MailboxClosedError:
            return False
        return True


def barrier_of(order: TriggerCheckpoint) -> Barrier:
    """Return the checkpoint barrier with which sources carry out this order."""
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
