"""A task: one subtask of a chain of operators, driven step by step through its mailbox.

Whoever runs the task calls :meth:`StreamTask.step` from one thread.  A step carries out mail, then
timers that are due, then one portion of a batch, or of the timers that a watermark makes fire; so
user code is never interrupted, and checkpoints fall between portions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from flinkray.streaming.channels import InputGate
from flinkray.streaming.operators.operator import OperatorState, Receiver, StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import (
    Barrier,
    Block,
    Columns,
    Element,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.sources.source import END_OF_INPUT
from flinkray.streaming.task.freed_memory import keep_freed_memory
from flinkray.streaming.task.task_mailbox import TaskMailbox
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Portion, Turn
from flinkray.streaming.time.watermark_valve import WatermarkValve

Acknowledge = Callable[[Barrier, Mapping[str, OperatorState]], None]
"""Told of a checkpoint: operator id -> state."""


class StreamTaskOutput(Protocol):
    """A way out of the task."""

    def has_room(self) -> bool:
        """Whether whoever reads keeps up."""

    def flush_when_idle(self) -> None:
        """Nothing more comes at the moment."""

    def barrier(self, barrier: Barrier) -> None: ...
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
        acknowledge: Acknowledge | None = None,
        turn: Turn | None = None,
    ) -> None:
        self.name = name
        self.turn = turn or Turn()
        self._portion = Portion(time_service.clock, self.turn)
        self._rest: tuple[Receiver, Block | Columns, int] | None = None
        """Of the batch that was taken last: where it goes, and how far it was handled."""
        self._triggered: deque[Barrier] = deque()
        self._last_checkpoint = -1
        self.operators = list(operators)
        self.gate = gate
        self._inputs = list(inputs)
        self._channel_inputs = list(channel_inputs)
        self._writers = list(writers)
        self.time_service = time_service
        self.mailbox = TaskMailbox()
        self._acknowledge = acknowledge
        self.head = self.operators[0][1]
        self.finished = False
        self._opened: list[StreamOperator] = []

    # --- life ---------------------------------------------------------------------------------

    def open(self, states: Mapping[str, Sequence[OperatorState]] | None = None) -> None:
        """Restore and open the operators, the last of the chain first, so that whatever an
        operator puts out finds the next one ready."""
        keep_freed_memory()
        for operator_id, operator in reversed(self.operators):
            if states and operator_id in states:
                operator.restore(states[operator_id])
            self._opened.append(operator)
            operator.open()

    def close(self) -> None:
        """Close all operators, also when one of them fails to; the first failure is raised."""
        self.time_service.quiesce()
        self.mailbox.close()
        opened, self._opened = self._opened, []
        _close_all(list(reversed(opened)))

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what can be done without waiting; False where there was nothing."""
        if self.finished:
            return False
        progressed = self.mailbox.run_pending()
        if self.time_service.fire_due():
            progressed = True
        if not self.has_room():
            return progressed
        return self._default_action() or progressed

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
        head = self.head
        if isinstance(head, SourceOperator) and not self.gate.channels:
            return self._read(head)
        polled = self.gate.poll()
        if polled is None:
            self.flush()
            return False
        self._process(*polled)
        return True

    def _read(self, source: SourceOperator) -> bool:
        if self._triggered and not source.has_rest:
            self._checkpoint(self._triggered.popleft())
            return True
        answer = source.emit_next(self._portion.begin())
        if answer is END_OF_INPUT:
            self._end()
            return True
        if isinstance(answer, int):
            self._portion.end(answer)
            return True
        self.flush()
        return False

    def _next_portion(self, port: Receiver, batch: Block | Columns, begin: int) -> None:
        whole = len(batch)
        end = min(whole, begin + self._portion.begin())
        self._rest = None if end == whole else (port, batch, end)
        part = batch if end - begin == whole else batch.part(begin, end)
        port.process_block(part if isinstance(part, Block) else part.to_block())
        self._portion.end(end - begin)

    def flush(self) -> None:
        """Nothing more is put out at the moment."""
        for writer in self._writers:
            writer.flush_when_idle()

    def _process(self, channel: int, element: Element) -> None:
        index, number = self._channel_inputs[channel]
        taking = self._inputs[index]
        if isinstance(element, Block):
            self._next_portion(taking.port, element, 0)
        elif isinstance(element, Columns):
            if taking.takes_columns:
                taking.port.process_columns(element)
            else:
                self._next_portion(taking.port, element, 0)
        elif isinstance(element, Watermark | WatermarkStatus):
            self._process_time(taking, number, element)
        elif isinstance(element, Barrier):
            self.gate.on_barrier(channel, element)
            self._checkpoint_if_aligned()
        elif isinstance(element, EndOfInput):
            self.gate.end(channel)
            self._checkpoint_if_aligned()
            if self.gate.finished:
                self._checkpoint_where_triggered()
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
        for _, operator in self.operators:
            operator.finish()
        self.mailbox.quiesce()
        for writer in self._writers:
            writer.end_of_input()
        self.finished = True

    # --- checkpoints --------------------------------------------------------------------------

    def trigger_checkpoint(self, barrier: Barrier) -> None:
        """For sources: a checkpoint begins here, or where the batch that was read last ends.  For
        tasks that no barrier comes to, since all that they read from have ended: it begins where
        their input ends.  Called through the mailbox."""
        if self.gate.channels or (isinstance(self.head, SourceOperator) and self.head.has_rest):
            self._triggered.append(barrier)
        else:
            self._checkpoint(barrier)

    def _checkpoint_where_triggered(self) -> None:
        """The input has ended, and with it came the barriers that there were."""
        while self._triggered:
            barrier = self._triggered.popleft()
            if barrier.checkpoint_id > self._last_checkpoint:
                self._checkpoint(barrier)

    def _checkpoint_if_aligned(self) -> None:
        barrier = self.gate.aligned()
        if barrier is not None:
            self.gate.release()
            self._checkpoint(barrier)

    def _checkpoint(self, barrier: Barrier) -> None:
        self._last_checkpoint = barrier.checkpoint_id
        for writer in self._writers:
            writer.barrier(barrier)
        states = {
            operator_id: operator.snapshot(barrier.checkpoint_id)
            for operator_id, operator in self.operators
        }
        if self._acknowledge is not None:
            self._acknowledge(barrier, states)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Called through the mailbox."""
        for _, operator in self.operators:
            operator.notify_checkpoint_complete(checkpoint_id)


def _close_all(operators: list[Any]) -> None:
    if operators:
        try:
            operators[0].close()
        finally:
            _close_all(operators[1:])
