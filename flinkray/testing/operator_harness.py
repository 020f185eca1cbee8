"""Runs one stream operator or process function by itself: a test feeds it, reads the output."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from flinkray.state import backends
from flinkray.state.backend import KeyedStateBackendFactory
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.operator import (
    OperatorContext,
    OperatorState,
    Output,
    StreamOperator,
)
from flinkray.streaming.records.elements import Block, Columns, Watermark, WatermarkStatus
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Turn
from flinkray.testing.manual_clock import ManualClock


class Record(NamedTuple):
    """A record in the output of an operator: its value and its timestamp."""

    value: Any
    timestamp: int | None = None


class _Recorder:
    """Collects the output of an operator: its batches as they are, and their records one by one."""

    def __init__(self) -> None:
        self.elements: list[Any] = []
        self.batches: list[Block | Columns] = []

    def process_block(self, block: Block) -> None:
        self.batches.append(block)
        times: Sequence[int | None] = block.timestamps or [None] * len(block)
        pairs = zip(block.values, times, strict=True)
        self.elements += [Record(value, time) for value, time in pairs]

    def process_columns(self, columns: Columns) -> None:
        self.process_block(columns.to_block())
        self.batches[-1] = columns

    def process_watermark(self, timestamp: int) -> None:
        self.elements.append(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        self.elements.append(WatermarkStatus(idle))


LONGEST_WAIT = 60.0
"""The longest time in seconds that an operator may wait for another thread."""


class OperatorHarness:
    """Runs one subtask of an operator, on a manual clock that starts at 0.

    Args:
        keyed: whether the operator has keyed state.
        side_outputs: ids of the tags whose output is recorded.
        restore: a snapshot to begin with, or the snapshots of several subtasks.
        checkpoint_id: id of the checkpoint in which this same subtask took *restore*. Then the next
            snapshots may contain only the changes since that checkpoint. None: they contain the
            whole state.
        **context: further fields of its OperatorContext, such as ``max_parallelism``.
    """

    make_keyed_state: ClassVar[KeyedStateBackendFactory] = backends.DEFAULT
    """Factory of the keyed state backend of every harness; tests may set another one."""

    def __init__(
        self,
        operator: StreamOperator,
        keyed: bool = False,
        side_outputs: Sequence[str] = (),
        restore: OperatorState | Sequence[OperatorState] | None = None,
        checkpoint_id: int | None = None,
        **context: Any,
    ) -> None:
        self.operator = operator
        self.clock = ManualClock()
        self.time_service = ProcessingTimeService(self.clock)
        self._mail: deque[Callable[[], None]] = deque()
        self._signal = Signal()
        self._turn = Turn()
        self._turn.wake = self._signal.set
        self._turn.post = self._post
        self._turn.wait_until = self._wait_until
        self._main = _Recorder()
        self._side = {tag: _Recorder() for tag in side_outputs}
        operator.setup(
            OperatorContext(
                "operator",
                self.time_service,
                self.clock,
                **{
                    "keyed": keyed,
                    "turn": self._turn,
                    "make_keyed_state": type(self).make_keyed_state,
                    **context,
                },
            ),
            Output([self._main], {tag: [recorder] for tag, recorder in self._side.items()}),
        )
        states = [restore] if isinstance(restore, OperatorState) else restore
        try:
            if states:
                operator.restore(states, checkpoint_id)
            operator.open()
        except BaseException:
            operator.close()  # as the operator's task does
            raise

    def process(self, *values: Any, at: Sequence[int] | int | None = None, on: int = 0) -> None:
        """Feed values to the operator in one block.

        Args:
            at: timestamp of all values, or of each value; None: no timestamps.
            on: index of the input.
        """
        times = [at] * len(values) if isinstance(at, int) else at
        self.operator.inputs()[on].process_block(Block(list(values), times))

    def process_columns(self, columns: Columns, on: int = 0) -> None:
        self.operator.inputs()[on].process_columns(columns)

    def watermark(self, timestamp: int, on: int = 0) -> None:
        self.operator.inputs()[on].process_watermark(timestamp)

    def status(self, idle: bool, on: int = 0) -> None:
        self.operator.inputs()[on].process_status(idle)

    def processing_time(self, milliseconds: int) -> None:
        """Set the clock to this processing time, and fire the due timers."""
        self.clock.set_milliseconds(milliseconds)
        self.time_service.fire_due()

    def snapshot(self, checkpoint_id: int = 1) -> OperatorState:
        return self.operator.capture(checkpoint_id).write()

    def finish(self) -> None:
        self.operator.finish()

    def close(self) -> None:
        self.operator.close()
        if self.operator.keyed_state is not None:
            self.operator.keyed_state.close()

    def run_mail(self) -> None:
        """Run in this thread the callbacks that other threads have posted for the thread of the
        operator."""
        while self._mail:
            self._mail.popleft()()
        while self._turn.has_unfinished:
            self._turn.go_on()

    def wait_for(self, elements: int) -> list[Any]:
        """Wait until the output has *elements* elements, which other threads produce; return the
        output since the last call of :meth:`output`."""

        def is_there() -> bool:
            self.run_mail()
            return len(self._main.elements) >= elements

        self._wait_until(is_there)
        return self.output()

    def _post(self, mail: Callable[[], None]) -> None:
        self._mail.append(mail)
        self._signal.set()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if not self._signal.wait(LONGEST_WAIT):
                raise AssertionError(f"nothing has come for {LONGEST_WAIT:g} s")

    def output(self) -> list[Any]:
        """Return the output since the last call, in order: records, watermarks and watermark
        statuses."""
        taken, self._main.elements = self._main.elements, []
        return taken

    def values(self) -> list[Any]:
        """Return the values of the records in the output since the last call. Other output is
        dropped."""
        return [element.value for element in self.output() if isinstance(element, Record)]

    def records(self) -> list[tuple[Any, int | None]]:
        """Return (value, timestamp) of the records in the output since the last call. Other output
        is dropped."""
        return [tuple(e) for e in self.output() if isinstance(e, Record)]

    def batches(self) -> list[Block | Columns]:
        """Return the batches that the operator has emitted since the last call, as they were
        emitted."""
        taken, self._main.batches = self._main.batches, []
        return taken

    def side(self, tag_id: str) -> list[Any]:
        """Return the values in the side output *tag_id* since the last call."""
        recorder = self._side[tag_id]
        taken, recorder.elements = recorder.elements, []
        return [element.value for element in taken if isinstance(element, Record)]
