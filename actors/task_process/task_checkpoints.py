"""A task's part in checkpoints: passes the JobMaster's orders to the task's thread, writes
snapshots in other threads, and reports the answers.

The task continues while its snapshot is written. Each snapshot is answered once. It is acknowledged
when all of it is written, or declined when nothing writes for it any more and the written part is
removed. A snapshot that cannot be written never fails the task.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from flinkray.actors.task_process.in_flight_files import (
    ChannelPlace,
    InFlightData,
    write_in_flight,
)
from flinkray.actors.task_process.task_snapshots import (
    KeyedStateParts,
    SnapshotWriter,
)
from flinkray.checkpoint import locations
from flinkray.checkpoint.handles import FileState, OperatorSubtaskState, TaskState
from flinkray.checkpoint.layout import shared_directory, state_writer
from flinkray.core.error_text import summary_of
from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    CheckpointAborted,
    CheckpointAnswer,
    CheckpointCompleted,
    CheckpointOrder,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.streaming.checkpoint.barrier_handler import ABORTED, DECLINED_BEFORE, SUBSUMED
from flinkray.streaming.checkpoint.subtask_checkpoints import CheckpointResponder
from flinkray.streaming.operators.operator import OperatorStateCapture
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.records.in_flight import InFlight
from flinkray.streaming.task.task import StreamTask
from flinkray.streaming.task.task_mailbox import MailboxClosedError

MOST_CHANGES = 10
"""Largest number of parts with changes after a whole part of keyed state.
With more, the next checkpoint writes the whole state again.
"""

_MOST_REMEMBERED = 128
"""Number of answered checkpoints that are remembered, so that none is answered twice."""

Reason = CheckpointFailureReason

_REASONS = {
    SUBSUMED: Reason.CHECKPOINT_DECLINED_SUBSUMED,
    DECLINED_BEFORE: Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER,
    ABORTED: Reason.CHECKPOINT_DECLINED_SUBSUMED,
}
"""Text with which the task declines -> reason that is reported. None of them is a failure."""


class _GivenUpError(FlinkRayError):
    """Raised when the snapshot that is being written is not needed any more."""


@dataclass(eq=False)
class _Snapshot:
    """A task's snapshot for one checkpoint, from its barrier until it is answered."""

    barrier: Barrier
    captures: Mapping[str, OperatorStateCapture]
    bases: Mapping[str, KeyedStateParts]
    """Operator -> its state in an earlier checkpoint, if its capture holds only the changes."""
    writer: SnapshotWriter = field(init=False)
    in_flight_awaited: bool
    is_running: bool = False
    """Whether a thread works on the snapshot, or soon will."""
    is_written: bool = False
    given_up: tuple[CheckpointFailureReason, str] | None = None
    is_answered: bool = False

    def check(self) -> None:
        if self.given_up is not None:
            raise _GivenUpError


class TaskCheckpointResponder(CheckpointResponder):
    """Answers checkpoints for one attempt of a stream task: writes its snapshots in other threads,
    and reports for each checkpoint one acknowledgement or decline.

    Args:
        inline_threshold: state of fewer bytes is stored in its handle.
        submit: runs a function in a thread that may write files.
        on_loop: runs a function on the event loop; called from any thread.
        report: sends answers; called on the event loop.
        taken: called in the task's thread with the id of a checkpoint when its snapshot is taken,
            or will not be taken.
        had_finished: whether the task had finished in the checkpoint from which the attempt was
            restored.
    """

    def __init__(
        self,
        job_id: JobID,
        attempt_id: ExecutionAttemptID,
        inline_threshold: int,
        submit: Callable[[Callable[[], None]], None],
        on_loop: Callable[[Callable[[], None]], None],
        report: Callable[[CheckpointAnswer], None],
        taken: Callable[[int], None],
        *,
        had_finished: bool = False,
    ) -> None:
        self._job_id = job_id
        self._attempt_id = attempt_id
        self._inline_threshold = inline_threshold
        self._submit = submit
        self._on_loop = on_loop
        self._report = report
        self._taken = taken
        self._had_finished = had_finished
        self._lock = threading.Lock()
        """Protects all following attributes except ``_all_answered``."""
        self._pending: dict[int, _Snapshot] = {}
        """Snapshots by checkpoint. Answered snapshots stay until the answer is reported."""
        self._answered: deque[int] = deque(maxlen=_MOST_REMEMBERED)
        self._bases: dict[int, dict[str, KeyedStateParts]] = {}
        """Checkpoint -> operator -> its keyed state.
        Contains acknowledged checkpoints that may be complete, and the checkpoint from which the
        task was restored.
        """
        self._in_flight: dict[int, InFlightData] = {}
        """In-flight data of checkpoints that are not answered yet."""
        self._head = ""
        self._channels: Sequence[ChannelPlace] = ()
        self._all_answered: asyncio.Future[None] | None = None

    def begin(self, head: str, channels: Sequence[ChannelPlace]) -> None:
        """Set the id of the task's first operator, and (input, number in it) of each input channel.
        In-flight data of unaligned checkpoints is stored with the first operator.
        """
        self._head = head
        self._channels = channels

    def restored(self, checkpoint_id: int, keyed_state: Mapping[str, KeyedStateParts]) -> None:
        """Store the restored keyed state by operator, to which later snapshots may add increments.
        *keyed_state* has only state that belongs to this subtask alone.
        """
        with self._lock:
            self._bases[checkpoint_id] = dict(keyed_state)

    # --- snapshots, from the task's thread ----------------------------------------------------

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        """Return the id of the checkpoint to which the operator's next snapshot may be an
        increment: the latest completed checkpoint that the coordinator knows, as only its files are
        sure to stay. None if the whole state must be written, because there is no such checkpoint,
        because a whole snapshot is required, or because increments have become too many or too
        large.
        """
        if barrier.savepoint or barrier.is_whole:
            return None
        latest = barrier.latest_completed
        with self._lock:
            for checkpoint_id in [known for known in self._bases if known < latest]:
                del self._bases[checkpoint_id]
            parts = self._bases.get(latest, {}).get(operator_id, ())
        return latest if parts and _may_go_on(parts, barrier) else None

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        with self._lock:
            known = self._bases.get(barrier.latest_completed, {})
            bases = {it: known[it] for it, capture in states.items() if not capture.is_whole}
            snapshot = _Snapshot(barrier, states, bases, in_flight_awaited=barrier.may_overtake)
            snapshot.writer = SnapshotWriter(
                state_writer(
                    barrier.directory,
                    self._inline_threshold,
                    is_savepoint=barrier.savepoint,
                    check=snapshot.check,
                )
            )
            self._pending[barrier.checkpoint_id] = snapshot
        self._begin(snapshot)
        self._taken(barrier.checkpoint_id)

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        if self._had_finished:  # it holds no records, and emits all other elements again
            return
        with self._lock:
            in_flight = self._in_flight.setdefault(checkpoint_id, InFlightData())
            in_flight.results[result, subpartition] = list(elements)

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        if elements and not self._had_finished:
            with self._lock:
                in_flight = self._in_flight.setdefault(checkpoint_id, InFlightData())
                in_flight.inputs.setdefault(self._channels[channel], []).extend(elements)

    def in_flight_completed(self, checkpoint_id: int) -> None:
        with self._lock:
            snapshot = self._pending.get(checkpoint_id)
            if snapshot is not None:
                snapshot.in_flight_awaited = False
        if snapshot is not None:
            self._begin(snapshot)

    def declined(self, checkpoint_id: int, reason: str) -> None:
        self.decline(checkpoint_id, _REASONS[reason], reason)
        self._taken(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        self.declined(checkpoint_id, ABORTED)

    # --- answers ------------------------------------------------------------------------------

    def decline(self, checkpoint_id: int, reason: CheckpointFailureReason, text: str = "") -> None:
        """Decline the checkpoint, unless it is already answered. Called from any thread."""
        with self._lock:
            snapshot = self._pending.get(checkpoint_id)
            if snapshot is None:
                self._in_flight.pop(checkpoint_id, None)
                if checkpoint_id in self._answered:
                    self._bases.pop(checkpoint_id, None)
                    return
                self._answered.append(checkpoint_id)
            elif snapshot.given_up is None:
                snapshot.given_up = reason, text
        if snapshot is None:
            answer = DeclineCheckpoint(self._job_id, checkpoint_id, self._attempt_id, reason, text)
            self._on_loop(partial(self._report, answer))
        else:
            self._begin(snapshot)

    async def close(self, *, is_given_up: bool) -> None:
        """Answer all remaining checkpoints, after the task's thread has ended. Returns when every
        checkpoint is answered. Called on the event loop.

        Args:
            is_given_up: True: decline the snapshots that are not written yet. False: write and
                acknowledge them, except those that still wait for in-flight data.
        """
        with self._lock:
            pending = tuple(self._pending.values())
        for snapshot in pending:
            if is_given_up or snapshot.in_flight_awaited:
                self.decline(
                    snapshot.barrier.checkpoint_id, Reason.CHECKPOINT_DECLINED_TASK_CLOSING
                )
        while self._pending:
            self._all_answered = asyncio.get_running_loop().create_future()
            await self._all_answered

    # --- writing ------------------------------------------------------------------------------

    def _begin(self, snapshot: _Snapshot) -> None:
        with self._lock:
            if snapshot.is_running or self._next(snapshot) is None:
                return
            snapshot.is_running = True
        self._submit(partial(self._work, snapshot))

    def _work(self, snapshot: _Snapshot) -> None:
        while True:
            with self._lock:
                step = self._next(snapshot)
                if step is None:
                    snapshot.is_running = False
                    return
            step(snapshot)

    def _next(self, snapshot: _Snapshot) -> Callable[[_Snapshot], None] | None:
        if snapshot.is_answered:
            return None
        if snapshot.given_up is not None:
            return self._discard
        if not snapshot.is_written:
            return self._write
        if snapshot.in_flight_awaited:
            return None
        in_flight = snapshot.barrier.checkpoint_id in self._in_flight
        return self._write_in_flight if in_flight else self._acknowledge

    def _write(self, snapshot: _Snapshot) -> None:
        def write() -> None:
            for operator_id, capture in snapshot.captures.items():
                snapshot.check()
                base = snapshot.bases.get(operator_id, ())
                snapshot.writer.write(operator_id, capture.stream(), base)

        self._try(snapshot, write)
        self._release(snapshot)
        snapshot.is_written = True

    def _write_in_flight(self, snapshot: _Snapshot) -> None:
        with self._lock:
            in_flight = self._in_flight.pop(snapshot.barrier.checkpoint_id)
        self._try(snapshot, lambda: write_in_flight(snapshot.writer, self._head, in_flight))

    def _try(self, snapshot: _Snapshot, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - values, and how they are written, are the user's
            with self._lock:
                if snapshot.given_up is None:
                    reason = Reason.CHECKPOINT_ASYNC_EXCEPTION
                    snapshot.given_up = reason, summary_of(error)

    def _release(self, snapshot: _Snapshot) -> None:
        for capture in snapshot.captures.values():
            capture.release()
        snapshot.captures = {}

    def _discard(self, snapshot: _Snapshot) -> None:
        self._release(snapshot)
        snapshot.writer.discard()
        assert snapshot.given_up is not None
        reason, text = snapshot.given_up
        checkpoint_id = snapshot.barrier.checkpoint_id
        self._answer(
            snapshot,
            DeclineCheckpoint(self._job_id, checkpoint_id, self._attempt_id, reason, text),
        )

    def _acknowledge(self, snapshot: _Snapshot) -> None:
        operators = snapshot.writer.operators
        barrier = snapshot.barrier
        states = {it: state for it, state in operators.items() if not state.is_empty}
        answer = AcknowledgeCheckpoint(
            self._job_id,
            barrier.checkpoint_id,
            self._attempt_id,
            self._state(states),
            barrier.savepoint,
            tuple(snapshot.writer.pickled),
        )
        self._answer(snapshot, answer, _keyed_state_of(states))

    def _state(self, states: dict[str, OperatorSubtaskState]) -> TaskState | None:
        if not states and not self._had_finished:
            return None
        return TaskState(states, is_finished=self._had_finished)

    def awaits_checkpoint(self, after: int) -> None:
        """Report that the task waits for a checkpoint later than *after*.
        Called by the task's thread.
        """
        awaits = AwaitCheckpoint(self._job_id, self._attempt_id, after)
        self._on_loop(partial(self._report, awaits))

    def _answer(
        self,
        snapshot: _Snapshot,
        answer: AcknowledgeCheckpoint | DeclineCheckpoint,
        keyed_state: dict[str, KeyedStateParts] | None = None,
    ) -> None:
        """Report the answer for a snapshot, unless the snapshot was given up since. *keyed_state*:
        the keyed state to which later snapshots may add increments, if this checkpoint completes.
        """
        with self._lock:
            if isinstance(answer, AcknowledgeCheckpoint) and snapshot.given_up is not None:
                return  # given up at the last moment
            snapshot.is_answered = True
            self._in_flight.pop(answer.checkpoint_id, None)
            self._answered.append(answer.checkpoint_id)
            if keyed_state is not None:
                self._bases[answer.checkpoint_id] = keyed_state
        self._on_loop(partial(self._tell, answer))

    def _tell(self, answer: AcknowledgeCheckpoint | DeclineCheckpoint) -> None:
        self._report(answer)
        with self._lock:
            del self._pending[answer.checkpoint_id]
        if self._all_answered is not None and not self._all_answered.done():
            self._all_answered.set_result(None)


def _keyed_state_of(states: Mapping[str, OperatorSubtaskState]) -> dict[str, KeyedStateParts]:
    return {it: state.keyed_state[0].parts for it, state in states.items() if state.keyed_state}


def _may_go_on(parts: KeyedStateParts, barrier: Barrier) -> bool:
    """Return whether the next snapshot may be an increment to these parts of keyed state.
    False if there are too many increments or they are too large, or if a file belongs to another
    job or a savepoint, which may be removed at any time.
    """
    whole, *changes = (part.location for part in parts)
    if len(changes) >= MOST_CHANGES or sum(change.size for change in changes) > whole.size:
        return False
    shared = shared_directory(barrier.directory)
    return all(
        locations.parent_of(location.path) == shared
        for location in (whole, *changes)
        if isinstance(location, FileState)
    )


NOT_OPEN = "its operators are not open yet"


class SourceCuts(Protocol):
    """Interface to the events of a source's reader, which checkpoints divide.
    Before a snapshot the reader gets all events that the coordinator counts as before the
    checkpoint (before its cut), and no later events.
    """

    def trigger(self, checkpoint_id: int, then: Callable[[], None]) -> None:
        """Call *then*, on the event loop, when the reader has all events before the
        checkpoint's cut.
        """

    def checkpointed(self, checkpoint_id: int) -> None:
        """Note that the task has taken its snapshot, or will not take it.
        Called from any thread.
        """


class Declining(Protocol):
    """Interface through which TaskCheckpointOrders declines a task's checkpoints and
    notes aborts.
    """

    def decline(self, checkpoint_id: int, reason: CheckpointFailureReason, text: str = "") -> None:
        """Decline a checkpoint in the name of the task. Called from any thread."""

    def aborted(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is aborted: its snapshot is not needed. Called from any thread."""


class TaskCheckpointOrders:
    """Passes the JobMaster's checkpoint orders to a task. Lives on the event loop.

    Only :meth:`attach` is called by another thread. An order to begin a checkpoint is declined
    until the task's operators are open. Orders that complete or abort a checkpoint wait until then,
    because a barrier of the checkpoint may have reached the task.

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
        """Note that the task's thread has ended: later orders to begin a checkpoint are declined,
        and the other orders no longer reach the task."""
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
