"""A task's part in checkpoints: its snapshots, and the notifications of how checkpoints ended.

Modelled on Flink's ``SubtaskCheckpointCoordinatorImpl``. The task's thread makes all calls.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import OperatorStateCapture, StreamOperator
from flinkray.streaming.records.elements import Barrier, Element
from flinkray.streaming.records.in_flight import InFlight, Settled, kept

MOST_REMEMBERED = 128
"""Most ids of checkpoints remembered that were aborted before their barriers came."""


class CheckpointResponder(Protocol):
    """Receiver of a task's reports about checkpoints.
    If the barrier may overtake (:attr:`Barrier.may_overtake`), the checkpoint is acknowledged only
    after :meth:`in_flight_completed`. With a time-out, another thread may call this method and
    :meth:`overtaken_results`. Neither is called after :meth:`declined` or :meth:`aborted`."""

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        """Store elements of a result that were not sent yet and belong to the checkpoint.
        Called once per subpartition, before :meth:`captured` if the barrier is unaligned. *result*:
        index of the result among the results of the task's chain."""

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        """Return the id of an earlier checkpoint: of the operator's keyed state, only changes since
        then are captured. None: the whole state is captured. Called right before the capture."""

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        """Write *states* (by operator id), the snapshot that the task has taken, and then
        acknowledge the checkpoint."""

    def declined(self, checkpoint_id: int, reason: str) -> None:
        """Tell the coordinator that the task takes no part in the checkpoint, or stops taking part.
        *reason*: one of the reasons in :mod:`flinkray.streaming.checkpoint.barrier_handler`."""

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        """Store elements that were in flight in an input channel when the barrier of an unaligned
        checkpoint came. Repeated calls for one channel append further elements."""

    def in_flight_completed(self, checkpoint_id: int) -> None:
        """Note that all data in flight of the checkpoint was reported, so that the checkpoint can
        be written and acknowledged."""

    def aborted(self, checkpoint_id: int) -> None:
        """Called when the coordinator has aborted the checkpoint, even if the task has not reached
        it. The responder releases state that was captured for the checkpoint, and declines the
        checkpoint if it was neither acknowledged nor declined. Called again if the barrier or
        trigger comes afterwards."""

    def awaits_checkpoint(self, after: int) -> None:
        """Tell the coordinator that the task ends only after a checkpoint with an id above
        *after*."""
        return


class NotCheckpointed(CheckpointResponder):
    """Responder of a task whose job takes no checkpoints: a barrier in its input is an error."""

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        raise _unexpected(barrier.checkpoint_id)

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        raise _unexpected(checkpoint_id)

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        raise _unexpected(barrier.checkpoint_id)

    def declined(self, checkpoint_id: int, reason: str) -> None:
        raise _unexpected(checkpoint_id)

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        raise _unexpected(checkpoint_id)

    def in_flight_completed(self, checkpoint_id: int) -> None:
        raise _unexpected(checkpoint_id)

    def aborted(self, checkpoint_id: int) -> None:
        raise _unexpected(checkpoint_id)

    def awaits_checkpoint(self, after: int) -> None:
        raise StreamError(
            "an operator commits only with a checkpoint, and the job takes no checkpoints"
        )


def _unexpected(checkpoint_id: int) -> StreamError:
    return StreamError(f"checkpoint {checkpoint_id}: the job takes no checkpoints")


class CheckpointInput(Protocol):
    """The part of a task's input gate that :class:`SubtaskCheckpoints` uses."""

    def in_flight(self, channel: int) -> Sequence[InFlight]: ...


class CheckpointOutput(Protocol):
    """An output of the task to which checkpoint barriers are sent."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Send the barrier to the readers of this output.
        *settled* is called, at once or later, with the elements that the barrier has overtaken."""

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        """Tell downstream tasks that this task takes no part in the checkpoint."""


class _InFlight:
    """Passes the overtaken elements of one checkpoint on to the responder, and tells it when all
    were reported. *awaited*: number of reports to come: from each output, from the input of an
    unaligned checkpoint, and of the snapshot."""

    def __init__(self, barrier: Barrier, responder: CheckpointResponder, awaited: int) -> None:
        self._barrier = barrier
        self._responder = responder
        self._awaited = awaited
        self._lock = threading.Lock()
        self._is_dropped = False

    @property
    def is_complete(self) -> bool:
        return not self._awaited

    def overtaken(self, result: int, overtaken: Mapping[int, Sequence[InFlight]]) -> None:
        """Report a result's overtaken elements, by subpartition, to the responder. Thread-safe."""
        with self._lock:
            if not self._is_dropped:
                for subpartition, elements in overtaken.items():
                    self._responder.overtaken_results(
                        self._barrier.checkpoint_id, result, subpartition, elements
                    )
                self._told()

    def told(self) -> None:
        with self._lock:
            self._told()

    def _told(self) -> None:
        self._awaited -= 1
        if not self._awaited and self._barrier.may_overtake:
            self._responder.in_flight_completed(self._barrier.checkpoint_id)

    def drop(self) -> None:
        with self._lock:
            self._is_dropped = True


class SubtaskCheckpoints:
    """Takes the snapshots of one task and tells its operators how checkpoints end.
    *operators*: (id, operator), the first operator of the chain first. *outputs*: the outputs of
    the results, in the order of the results in the task's chain, then others. *restored_from*: id
    of the checkpoint from which the task was restored; 0: none."""

    def __init__(
        self,
        operators: Sequence[tuple[str, StreamOperator]],
        gate: CheckpointInput,
        outputs: Sequence[CheckpointOutput],
        responder: CheckpointResponder,
        restored_from: int = 0,
    ) -> None:
        self._operators = operators
        self._gate = gate
        self._outputs = outputs
        self._responder = responder
        self._latest = restored_from
        """Id of the latest checkpoint that the task took part in or declined."""
        self._completed = restored_from
        """Id of the latest checkpoint that the operators know to be complete."""
        self._aborted: set[int] = set()
        """Ids of the latest checkpoints that were aborted before their barriers came."""
        self._in_flight: dict[int, _InFlight] = {}
        """Data in flight by checkpoint id, of checkpoints that the task has taken part in.
        Some of them are complete."""

    def awaits(self, checkpoint_id: int) -> bool:
        """Return whether the task is to take part in the checkpoint.
        False if it has taken part or declined, or if the checkpoint was aborted before its barrier
        arrived. In the last case the task sends a CancelledBarrier downstream (ST-10)."""
        if checkpoint_id <= self._latest:
            return False
        if checkpoint_id in self._aborted:
            self._latest = checkpoint_id
            self._send_cancelled(checkpoint_id)
            # the sender of the trigger waits for the outcome
            self._responder.aborted(checkpoint_id)
            return False
        return True

    def perform_checkpoint(self, barrier: Barrier) -> None:
        """Send the barrier downstream and take the snapshot of the task.
        The snapshot covers the results before the barrier. Operators are first notified of the
        latest completed checkpoint, because its own notification may be lost or late."""
        self.notify_complete(barrier.latest_completed)
        self._latest = barrier.checkpoint_id
        for _, operator in self._operators:
            operator.prepare_snapshot_pre_barrier(barrier)
        in_flight = _InFlight(barrier, self._responder, len(self._outputs) + barrier.unaligned + 1)
        self._in_flight = {
            checkpoint_id: of_other
            for checkpoint_id, of_other in self._in_flight.items()
            if not of_other.is_complete
        }
        self._in_flight[barrier.checkpoint_id] = in_flight
        for result, output in enumerate(self._outputs):
            output.barrier(barrier, partial(in_flight.overtaken, result))
        self._responder.captured(
            barrier,
            {
                operator_id: operator.capture(
                    barrier.checkpoint_id, self._responder.base_of(operator_id, barrier)
                )
                for operator_id, operator in self._operators
            },
        )
        in_flight.told()

    def abort_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        if checkpoint_id > self._latest:
            self._latest = checkpoint_id
            self._send_cancelled(checkpoint_id)
        self._responder.declined(checkpoint_id, reason)

    def await_one(self) -> None:
        """Ask the coordinator for a later checkpoint: the input has ended, and the task can only
        end after this checkpoint."""
        self._responder.awaits_checkpoint(self._latest)

    def overtaken(self, checkpoint_id: int, channel: int) -> None:
        if checkpoint_id in self._in_flight:
            elements = kept(self._gate.in_flight(channel))
            self._responder.in_flight(checkpoint_id, channel, elements)

    def read_in_flight(self, channel: int, element: Element) -> None:
        """Store an element with the latest checkpoint: it was in flight when the snapshot was
        taken, and the task has read it since."""
        if self._latest in self._in_flight:
            self._responder.in_flight(self._latest, channel, kept([element]))

    def completed(self, checkpoint_id: int) -> None:
        if checkpoint_id in self._in_flight:
            self._in_flight[checkpoint_id].told()

    def dropped(self, checkpoint_id: int) -> None:
        in_flight = self._in_flight.pop(checkpoint_id, None)
        if in_flight is not None:
            in_flight.drop()

    def notify_complete(self, checkpoint_id: int) -> None:
        """Tell the operators that the checkpoint is complete in all tasks; not if they know this,
        or know it of a later one (ST-12)."""
        if checkpoint_id <= self._completed:
            return
        self._completed = checkpoint_id
        for _, operator in self._operators:
            operator.notify_checkpoint_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int, latest_completed: int) -> None:
        """Handle the abort of a checkpoint. Operators are first notified that the checkpoint
        *latest_completed* is complete, because the notification of this may have been lost."""
        self.notify_complete(latest_completed)
        self.dropped(checkpoint_id)
        self._responder.aborted(checkpoint_id)
        if checkpoint_id <= self._latest:
            return
        self._aborted.add(checkpoint_id)
        if len(self._aborted) > MOST_REMEMBERED:
            self._aborted.discard(min(self._aborted))

    def _send_cancelled(self, checkpoint_id: int) -> None:
        for output in self._outputs:
            output.cancelled_barrier(checkpoint_id)
