"""A task's part in checkpoints: its snapshots, and the news of how they have ended.

After Flink's ``SubtaskCheckpointCoordinatorImpl``.  All calls come from the task's thread.
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
"""Ids of checkpoints that were aborted before their barriers came."""


class CheckpointResponder(Protocol):
    """Where a task reports to.

    A checkpoint whose barrier :attr:`~flinkray.streaming.records.elements.Barrier.may_overtake`
    has data in flight besides its snapshot: it is acknowledged after :meth:`in_flight_completed`
    and not before.  With a time-out, :meth:`overtaken_results` and that may be called by another
    thread; after :meth:`declined` and :meth:`aborted` they are not called any more.
    """

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        """These, which were not sent yet, belong to it; told once for a subpartition, before
        :meth:`captured` where the barrier is unaligned.  *result*: its place among the results of
        the task's chain."""

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        """The checkpoint that the operator's keyed state is to be captured as changes since; None:
        all of it is.  Asked right before that is captured."""

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        """The snapshot is taken, by operator id: to be written, and acknowledged."""

    def declined(self, checkpoint_id: int, reason: str) -> None:
        """The task takes no part in it, or not to its end.  *reason*: one of those of
        :mod:`flinkray.streaming.checkpoint.barrier_handler`."""

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        """These, of an input channel, belong to it, after those that were told of before."""

    def in_flight_completed(self, checkpoint_id: int) -> None:
        """Nothing more is in flight for it."""

    def aborted(self, checkpoint_id: int) -> None:
        """The coordinator has given it up, be it before the task has come to it: what was captured
        is to be released, be it written or not; and it is to be declined, if nothing was answered
        yet.  Told again where its barrier, or its trigger, comes afterwards."""

    def awaits_checkpoint(self, after: int) -> None:
        """The task's input has ended, and the task waits for a checkpoint later than *after*."""
        return


class NotCheckpointed(CheckpointResponder):
    """Of a task whose job takes no checkpoints: a barrier in its input is an error."""

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


def _unexpected(checkpoint_id: int) -> StreamError:
    return StreamError(f"checkpoint {checkpoint_id}: the job takes no checkpoints")


class CheckpointInput(Protocol):
    """The task's gate."""

    def in_flight(self, channel: int) -> Sequence[InFlight]:
        """What the barrier that was read last has overtaken in its channel."""


class CheckpointOutput(Protocol):
    """A way out of the task."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        """Send it on."""

    def cancelled_barrier(self, checkpoint_id: int) -> None:
        """Tell that the task takes no part in it."""


class _InFlight:
    """The data in flight of one checkpoint: complete when all who were to tell of some have.

    Args:
        awaited: how many these are, the task itself included, which tells of its snapshot.
    """

    def __init__(self, barrier: Barrier, responder: CheckpointResponder, awaited: int) -> None:
        self._barrier = barrier
        self._responder = responder
        self._awaited = awaited
        self._lock = threading.Lock()
        self._is_dropped = False

    @property
    def is_complete(self) -> bool:
        """Nobody is awaited."""
        return not self._awaited

    def overtaken(self, result: int, overtaken: Mapping[int, Sequence[InFlight]]) -> None:
        """In a result; from any thread."""
        with self._lock:
            if not self._is_dropped:
                for subpartition, elements in overtaken.items():
                    self._responder.overtaken_results(
                        self._barrier.checkpoint_id, result, subpartition, elements
                    )
                self._told()

    def told(self) -> None:
        """One of those who are awaited tells of nothing more."""
        with self._lock:
            self._told()

    def _told(self) -> None:
        self._awaited -= 1
        if not self._awaited and self._barrier.may_overtake:
            self._responder.in_flight_completed(self._barrier.checkpoint_id)

    def drop(self) -> None:
        """The checkpoint was given up: nothing is told of it any more."""
        with self._lock:
            self._is_dropped = True


class SubtaskCheckpoints:
    """See the module.

    Args:
        operators: id and operator, head first.
        outputs: by the places of the results in the task's chain; others after them.
        restored_from: id of the checkpoint that the task was restored from; 0: of none.
    """

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
        """Id of the latest checkpoint that the task took part in, or has declined."""
        self._completed = restored_from
        """Of the latest one that the operators know to be complete."""
        self._aborted: set[int] = set()
        """Of which the barriers had not come when they were; the latest ones."""
        self._in_flight: dict[int, _InFlight] = {}
        """Of checkpoints that the task has taken part in, by id; some of them are complete."""

    def awaits(self, checkpoint_id: int) -> bool:
        """Whether the task is to take part in it.  It is not in one that it has taken part in or
        declined, and not in one that was aborted before it came here: then tasks behind this one
        are told instead (ST-10)."""
        if checkpoint_id <= self._latest:
            return False
        if checkpoint_id in self._aborted:
            self._latest = checkpoint_id
            self._send_cancelled(checkpoint_id)
            # whoever has triggered the task waits for what becomes of it
            self._responder.aborted(checkpoint_id)
            return False
        return True

    def perform_checkpoint(self, barrier: Barrier) -> None:
        """Send the barrier on, and take the snapshot: what comes before it in the results is what
        the snapshot covers.  Operators learn first of what is complete by then: that news may have
        been lost, or be late."""
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
        """The task takes no part: tasks behind it are told, and so is the coordinator."""
        if checkpoint_id > self._latest:
            self._latest = checkpoint_id
            self._send_cancelled(checkpoint_id)
        self._responder.declined(checkpoint_id, reason)

    def await_one(self) -> None:
        """The task ends with the next checkpoint."""
        self._responder.awaits_checkpoint(self._latest)

    def overtaken(self, checkpoint_id: int, channel: int) -> None:
        """See :class:`InFlightRecorder`."""
        if checkpoint_id in self._in_flight:
            elements = kept(self._gate.in_flight(channel))
            self._responder.in_flight(checkpoint_id, channel, elements)

    def read_in_flight(self, channel: int, element: Element) -> None:
        """Of the checkpoint that was performed last."""
        if self._latest in self._in_flight:
            self._responder.in_flight(self._latest, channel, kept([element]))

    def completed(self, checkpoint_id: int) -> None:
        """See :class:`InFlightRecorder`."""
        if checkpoint_id in self._in_flight:
            self._in_flight[checkpoint_id].told()

    def dropped(self, checkpoint_id: int) -> None:
        """See :class:`InFlightRecorder`; it is declined next."""
        in_flight = self._in_flight.pop(checkpoint_id, None)
        if in_flight is not None:
            in_flight.drop()

    def notify_complete(self, checkpoint_id: int) -> None:
        """It is complete everywhere.  Operators hear of increasing ids only (ST-12)."""
        if checkpoint_id <= self._completed:
            return
        self._completed = checkpoint_id
        for _, operator in self._operators:
            operator.notify_checkpoint_complete(checkpoint_id)

    def notify_aborted(self, checkpoint_id: int, latest_completed: int) -> None:
        """It was given up; *latest_completed* is complete, whether its news came or not."""
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
