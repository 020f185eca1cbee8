"""A task: one subtask of a chain of operators, driven step by step through its mailbox.

Whoever runs the task calls :meth:`StreamTask.step` from one thread.  A step carries out mail, then
timers that are due, then one portion of a batch, or of the timers that a watermark makes fire; so
user code is never interrupted, and checkpoints fall between portions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from flinkray.streaming.channels import InputGate
from flinkray.streaming.checkpoint.barrier_handler import (
    BarrierHandler,
    BarrierTracker,
    ExactlyOnceHandler,
)
from flinkray.streaming.checkpoint.subtask_checkpoints import (
    CheckpointResponder,
    NotCheckpointed,
    SubtaskCheckpoints,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import OperatorState, Receiver, StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.sources.source import END_OF_INPUT
from flinkray.streaming.task.freed_memory import keep_freed_memory
from flinkray.streaming.task.task_mailbox import TaskMailbox
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Portion, Turn
from flinkray.streaming.time.watermark_valve import WatermarkValve


class StreamTaskOutput(Protocol):
    """A way out of the task."""

    def has_room(self) -> bool:
        """Whether whoever reads keeps up."""

    def flush_when_idle(self) -> None:
        """Nothing more comes at the moment."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None: ...
    def cancelled_barrier(self, checkpoint_id: int) -> None: ...
    def end_of_input(self) -> None: ...


class StreamTaskInput:
    """One input of a task's head: an operator's port and the valve over its channels."""

    def __init__(self, port: Receiver, channels: int) -> None:
        self.port = port
        self.takes_columns = bool(getattr(port, "takes_columns", True))
        self.valve = WatermarkValve(channels)


class StreamTask:
    """See the module.

    Args:
        operators: id and operator, head first, each before the ones it feeds.
        inputs: the head's; empty for a source.
        channel_inputs: for each channel of the gate, its input and its number there.
        responder: told of the task's part in checkpoints; None: the job takes none.
        exactly_once: False: checkpoints may hold records after their barriers, too, and no channel
            waits for the barriers of others.
        restored_from: id of the checkpoint that the task goes on from; 0: of none.
    """

    def __init__(
        self,
        name: str,
        operators: Sequence[tuple[str, StreamOperator]],
        gate: InputGate,
        inputs: Sequence[StreamTaskInput],
        channel_inputs: Sequence[tuple[int, int]],
        writers: Sequence[StreamTaskOutput],
        time_service: ProcessingTimeService,
        responder: CheckpointResponder | None = None,
        turn: Turn | None = None,
        exactly_once: bool = True,
        restored_from: int = 0,
    ) -> None:
        self.name = name
        self.turn = turn or Turn()
        self._portion = Portion(time_service.clock, self.turn)
        self._rest: tuple[int, Receiver, Block | Columns, int] | None = None
        """Of the batch that was taken last: its channel, where it goes, and how far it was
        handled."""
        self._triggered: deque[Barrier] = deque()
        self.operators = list(operators)
        self.gate = gate
        self._inputs = list(inputs)
        self._channel_inputs = list(channel_inputs)
        self._writers = list(writers)
        self.time_service = time_service
        self.mailbox = TaskMailbox()
        self.checkpoints = SubtaskCheckpoints(
            self.operators, gate, self._writers, responder or NotCheckpointed(), restored_from
        )
        self._stopping_with: Barrier | None = None
        """The savepoint that the job ends with: nothing is processed any more."""
        self._is_stopped = False
        """That savepoint is complete: the task ends when those have that it reads from."""
        channels = len(self._channel_inputs)
        self._barriers: BarrierHandler = (
            ExactlyOnceHandler(gate, self, channels, self.checkpoints, time_service.clock)
            if exactly_once
            else BarrierTracker(gate, self, channels)
        )
        self.head = self.operators[0][1]
        self._source = (
            self.head if isinstance(self.head, SourceOperator) and not gate.channels else None
        )
        self._restored_from = restored_from
        self.has_ended = False
        """Its input has, and its operators are finished.  Until what they have is committed, the
        task takes part in checkpoints and does nothing else."""
        self.finished = False
        self._opened: list[Any] = []
        """Operators, and functions that they ask for keys."""

    # --- life ---------------------------------------------------------------------------------

    def open(
        self,
        states: Mapping[str, Sequence[OperatorState]] | None = None,
        own: Collection[str] = (),
    ) -> None:
        """Restore and open the operators, the last of the chain first, so that whatever an
        operator puts out finds the next one ready.

        Args:
            states: by operator id, those that there are.
            own: operators whose keyed state is this subtask's own of the checkpoint that it was
                restored from.
        """
        keep_freed_memory()
        for operator_id, operator in reversed(self.operators):
            operator.context.restored_checkpoint_id = self._restored_from
            if states and operator_id in states:
                checkpoint_id = self._restored_from if operator_id in own else None
                operator.restore(states[operator_id], checkpoint_id)
            for selector in operator.all_selectors():
                self._opened.append(selector)
                operator.open_selector(selector)
            self._opened.append(operator)
            operator.open()

    def close(self) -> None:
        """Close all operators, also when one of them fails to; the first failure is raised."""
        self.time_service.quiesce()
        self.mailbox.close()
        opened, self._opened = self._opened, []
        backends = (operator.keyed_state for _, operator in self.operators)
        _close_all([*reversed(opened), *(it for it in backends if it is not None)])

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what can be done without waiting; False where there was nothing."""
        if self.finished:
            return False
        progressed = self.mailbox.run_pending()
        if self.has_ended:
            if self.time_service.fire_due():
                progressed = True
            self._leave_when_committed()
            return progressed
        if self._stopping_with is not None:
            return (self._is_stopped and self._read_ends()) or progressed
        if self.time_service.fire_due():
            progressed = True
        if not self.turn.has_unfinished and self._begin_checkpoint():
            return True
        if not self.has_room():
            return progressed
        return self._default_action() or progressed

    def _begin_checkpoint(self) -> bool:
        """For what is to wait for nothing that is not done: neither for room in the results nor, if
        it has overtaken what is under way, for the rest of a batch."""
        overtaking = self.gate.poll_overtaking()
        if overtaking is not None:
            self._process(*overtaking)
            return True
        if self._triggered and self._source is not None and not self._source.has_rest:
            self.perform_checkpoint(self._triggered.popleft())
            return True
        return False

    def has_room(self) -> bool:
        """Whether all that read the task's results keep up."""
        return all(writer.has_room() for writer in self._writers)

    def _default_action(self) -> bool:
        if self.turn.has_unfinished:
            self.turn.go_on()
            return True
        if self._rest is not None:
            self._next_portion(*self._rest)
            return True
        if self._source is not None:
            return self._read(self._source)
        polled = self.gate.poll()
        if polled is None:
            self.flush()
            return False
        self._process(*polled)
        return True

    def _read(self, source: SourceOperator) -> bool:
        answer = source.emit_next(self._portion.begin())
        if answer is END_OF_INPUT:
            self._end()
            return True
        if isinstance(answer, int):
            self._portion.end(answer)
            return True
        self.flush()
        return False

    def _next_portion(
        self, channel: int, port: Receiver, batch: Block | Columns, begin: int
    ) -> None:
        whole = len(batch)
        end = min(whole, begin + self._portion.begin())
        self._rest = None if end == whole else (channel, port, batch, end)
        part = batch if end - begin == whole else batch.part(begin, end)
        port.process_block(part if isinstance(part, Block) else part.to_block())
        self._portion.end(end - begin)

    def flush(self) -> None:
        """Nothing more is put out at the moment."""
        for writer in self._writers:
            writer.flush_when_idle()

    def _process(self, channel: int, element: Element) -> None:
        if isinstance(element, Barrier):
            self._barriers.barrier(channel, element)
            return
        if isinstance(element, CancelledBarrier):
            self._barriers.cancelled(channel, element.checkpoint_id)
            return
        if isinstance(element, EndOfInput):
            self._process_end(channel)
            return
        if self._barriers.is_recording(channel):
            self.checkpoints.read_in_flight(channel, element)
        index, number = self._channel_inputs[channel]
        taking = self._inputs[index]
        if isinstance(element, Block):
            self._next_portion(channel, taking.port, element, 0)
        elif isinstance(element, Columns):
            if taking.takes_columns:
                taking.port.process_columns(element)
            else:
                self._next_portion(channel, taking.port, element, 0)
        else:
            self._process_time(taking, number, element)

    def _process_end(self, channel: int) -> None:
        self.gate.end(channel)
        self._barriers.ended(channel)
        if self.gate.finished and self._stopping_with is None:
            while self._triggered:  # barriers have come before the end, if there were any
                self.perform_checkpoint(self._triggered.popleft(), is_last=True)
            self._end()

    def _process_time(
        self, taking: StreamTaskInput, number: int, element: Watermark | WatermarkStatus
    ) -> None:
        if isinstance(element, Watermark):
            result = taking.valve.watermark(number, element.timestamp)
        else:
            result = taking.valve.status(number, element.idle)
        result.tell(
            taking.port.process_watermark,
            lambda idle: self.turn.then(lambda: taking.port.process_status(idle)),
        )

    def _end(self) -> None:
        self._finish_operators()
        self._wait_for_commits()
        self.flush()
        self._leave_when_committed()
        if self.awaits_checkpoint:
            self.checkpoints.await_one()

    def _wait_for_commits(self) -> None:
        self.has_ended = True
        self.time_service.input_ended()

    @property
    def alignment_seconds(self) -> float:
        """Of the last checkpoint; from any thread."""
        return self._barriers.alignment_seconds

    @property
    def awaits_checkpoint(self) -> bool:
        """Its input has ended, and it cannot end before a checkpoint is complete that it has yet to
        take part in, or to hear of."""
        return (
            self.has_ended
            and not self.finished
            and any(operator.awaits_checkpoint for _, operator in self.operators)
        )

    @property
    def is_stopping(self) -> bool:
        """It has taken part in the savepoint that the job ends with: neither its source nor its
        timers have anything to do any more."""
        return self._stopping_with is not None and not self.has_ended

    def _read_ends(self) -> bool:
        """Behind the savepoint that the job ends with, nothing else comes.  Who does not read them
        would keep those waiting whose results they are."""
        while not self.gate.finished:
            polled = self.gate.poll()
            if polled is None:
                return False
            channel, element = polled
            if isinstance(element, EndOfInput):
                self.gate.end(channel)
        self._wait_for_commits()
        self._leave_when_committed()
        return True

    def _leave_when_committed(self) -> None:
        if self.finished or self.awaits_checkpoint:
            return
        if not any(operator.is_retrying for _, operator in self.operators):
            self._leave()

    def _finish_operators(self) -> None:
        for _, operator in self.operators:
            operator.finish()

    def _leave(self) -> None:
        self.mailbox.quiesce()
        for writer in self._writers:
            writer.end_of_input()
        self.has_ended = self.finished = True

    # --- checkpoints --------------------------------------------------------------------------

    def trigger_checkpoint(self, barrier: Barrier) -> None:
        """For sources: a checkpoint begins here, or where the batch that was read last ends.  For
        tasks that no barrier comes to, since all that they read from have ended: it begins where
        their input ends.  Called through the mailbox."""
        if self.has_ended:
            self.perform_checkpoint(barrier, is_last=True)
        elif self.gate.channels or (self._source is not None and self._source.has_rest):
            self._triggered.append(barrier)
        else:
            self.perform_checkpoint(barrier)

    def perform_checkpoint(self, barrier: Barrier, is_last: bool = False) -> None:
        """Take part in it, here between two portions of the input, or (*is_last*) behind all of
        it."""
        if not self.checkpoints.awaits(barrier.checkpoint_id):
            return
        if barrier.drains and not self.has_ended:
            self._finish_operators()
        self.checkpoints.perform_checkpoint(barrier)
        if barrier.unaligned and self._rest is not None:
            channel, _, batch, begin = self._rest
            self.checkpoints.read_in_flight(channel, batch.part(begin, len(batch)))
        if barrier.unaligned and (is_last or not self._channel_inputs):
            self.checkpoints.completed(barrier.checkpoint_id)
        if barrier.stops:
            self._stopping_with = barrier

    def abort_checkpoint(self, checkpoint_id: int, reason: str) -> None:
        """Take no part in it."""
        self.checkpoints.abort_checkpoint(checkpoint_id, reason)

    def call_at(self, timestamp: int, action: Callable[[], None]) -> None:
        """Between two portions of the input, when it is that time: milliseconds since 1970."""
        self.time_service.schedule(timestamp, lambda _: self.turn.then(action))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called through the mailbox."""
        self.checkpoints.notify_complete(checkpoint_id)
        self._is_stopped |= self._is_stopping_with(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed: int) -> None:
        """Called through the mailbox.

        Raises:
            StreamError: it is the savepoint that the job was to end with: what the task has let
                pass cannot be taken back.
        """
        self.checkpoints.notify_aborted(checkpoint_id, latest_completed)
        self._barriers.aborted(checkpoint_id)
        if self._is_stopping_with(checkpoint_id):
            raise StreamError(
                f"stop with savepoint failed: savepoint {checkpoint_id} was aborted, and the job "
                "goes on from its last checkpoint"
            )

    def _is_stopping_with(self, checkpoint_id: int) -> bool:
        stopping = self._stopping_with
        return stopping is not None and stopping.checkpoint_id == checkpoint_id


def _close_all(operators: list[Any]) -> None:
    if operators:
        try:
            operators[0].close()
        finally:
            _close_all(operators[1:])
