"""A task: one subtask of a chain of operators, driven step by step through its mailbox.

Whoever runs the task calls :meth:`StreamTask.step` from one thread. A step runs mail, then due
timers, then one portion of a batch or of the timers that a watermark fires. So user code is never
interrupted, and checkpoints fall between portions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

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
from flinkray.streaming.errors import UnavailableError
from flinkray.streaming.operators.operator import OperatorState, Receiver, StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import (
    MAX_TIMESTAMP,
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfData,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.sources.source import END_OF_INPUT
from flinkray.streaming.task.task_mailbox import TaskMailbox
from flinkray.streaming.time.combined_watermarks import WatermarkValve
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.streaming.time.turn import Portion, Turn

logger = logging.getLogger(__name__)


class StreamTaskOutput(Protocol):
    """An output of the task, which sends results to other tasks."""

    def has_room(self) -> bool:
        """Return whether the output has room for more results. False: the readers are too slow."""

    def flush_when_idle(self) -> None:
        """Send results that wait to be sent with others; no result follows at the moment."""

    def barrier(self, barrier: Barrier, settled: Settled) -> None: ...
    def cancelled_barrier(self, checkpoint_id: int) -> None: ...
    def process_watermark(self, timestamp: int) -> None: ...

    def end_of_data(self) -> None:
        """Announce the end of data: only barriers follow."""

    def is_processed(self) -> bool:
        """Return whether the readers have processed all data. Called after :meth:`end_of_data`."""

    def end_of_input(self) -> None:
        """Announce the end of input: nothing follows."""


class StreamTaskInput:
    """An input of the task: the receiver of its batches (*port*), and its channels' watermarks."""

    def __init__(self, port: Receiver, channels: int) -> None:
        self.port = port
        self.takes_columns = bool(getattr(port, "takes_columns", True))
        self.valve = WatermarkValve(channels)


class StreamTask:
    """A subtask of a chain: reads batches, runs the operators, and takes part in checkpoints.

    *operators*: (id, operator), the first operator of the chain first, and each before the
    operators that it feeds. Empty: the task had ended in the checkpoint from which it is restored.
    *channel_inputs*: for each channel of the gate, its input and its number in the input.
    *responder*: gets the reports about checkpoints; None: the job takes no checkpoints.
    *exactly_once* False: checkpoints may include records behind their barriers, and no channel
    waits for the barriers of other channels. *restored_from*: id of the checkpoint from which the
    task is restored; 0: none.
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
        """The rest of the batch that was taken last: (channel, port, batch, index of the rest)."""
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
        """The savepoint with which the job stops. The task processes nothing after it."""
        self._is_stopped = False
        """Whether the savepoint with which the job stops is complete.
        Then the task waits for the ends of its inputs."""
        channels = len(self._channel_inputs)
        self._barriers: BarrierHandler = (
            ExactlyOnceHandler(gate, self, channels, self.checkpoints, time_service.clock)
            if exactly_once
            else BarrierTracker(gate, self, channels)
        )
        self.head = self.operators[0][1] if self.operators else None
        self._source = (
            self.head if isinstance(self.head, SourceOperator) and not gate.has_channels else None
        )
        self._restored_from = restored_from
        self.has_ended = False
        """Whether the task's data has ended and its operators are finished.
        Then the task only takes part in checkpoints, until its results are processed, its commits
        are done, and the tasks that it reads from have ended."""
        self.finished = False
        self._opened: list[Any] = []
        """Operators that are open, and their open functions for keys."""

    # --- life ---------------------------------------------------------------------------------

    def open(
        self,
        states: Mapping[str, Sequence[OperatorState]] | None = None,
        own: Collection[str] = (),
    ) -> None:
        """Restore and open the operators, the last of the chain first, so that an operator's
        successor is always ready. *states*: the state to restore, by operator id. *own*: ids of the
        operators whose keyed state is exactly this subtask's state in the checkpoint, without that
        of other subtasks."""
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
        """Close all operators, even if some of them fail to close. Then raises the first
        failure."""
        self.time_service.quiesce()
        self.mailbox.close()
        opened, self._opened = self._opened, []
        backends = (operator.keyed_state for _, operator in self.operators)
        close_all([*reversed(opened), *(it for it in backends if it is not None)])

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run mail and due timers, then do one portion of a batch or of unfinished work. Never
        waits. Returns False if there was nothing to do."""
        if self.finished:
            return False
        progressed = self.mailbox.run_pending()
        if self.has_ended:
            progressed = self.time_service.fire_due() or progressed
            if self.turn.has_unfinished and self._stopping_with is None:
                self.turn.go_on()  # left by mail after the end
                progressed = True
            progressed = self._read_sign() or progressed
            self._leave_when_done()
            return progressed or self.finished
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
        """Begin a checkpoint that can begin although the results have no room: the task has got a
        barrier that has overtaken elements, or it is a source and was told to begin one. Returns
        whether a checkpoint was begun."""
        overtaking = self.gate.poll_overtaking()
        if overtaking is not None:
            self._process(*overtaking)
            return True
        if self._triggered and self._source is not None and not self._source.has_rest:
            self.perform_checkpoint(self._triggered.popleft())
            return True
        return False

    def has_room(self) -> bool:
        """Return whether all outputs of the task can take results. False: a reader is too slow."""
        for writer in self._writers:  # noqa: SIM110 - all(...) takes longer
            if not writer.has_room():
                return False
        return True

    def _default_action(self) -> bool:
        if self.turn.has_unfinished:
            self.turn.go_on()
            return True
        if self._rest is not None:
            self._next_portion(*self._rest)
            return True
        if self._source is not None:
            return self._read(self._source)
        if self.gate.data_has_ended:  # restored after its end: reads nothing
            self._end()
            return True
        polled = self.gate.poll()
        if polled is None:
            self.flush()
            return False
        self._process(*polled)
        return True

    def _read_sign(self) -> bool:
        """Process the next barrier or end in the input, after all data was processed. Returns False
        if nothing has arrived."""
        polled = self.gate.poll()
        if polled is None:
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
        for writer in self._writers:
            writer.flush_when_idle()

    def _process(self, channel: int, element: Element) -> None:
        if isinstance(element, Barrier):
            self._barriers.barrier(channel, element)
            return
        if isinstance(element, CancelledBarrier):
            self._barriers.cancelled(channel, element.checkpoint_id)
            return
        if isinstance(element, EndOfData):
            self.gate.end_data(channel)
            self._end_with_input()
            return
        if isinstance(element, EndOfInput):
            self.gate.end(channel)
            self._barriers.ended(channel)
            self._end_with_input()
            return
        if not self.operators:
            return  # also the last watermark of a task that had ended
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

    def _end_with_input(self) -> None:
        if self.gate.data_has_ended and not self.has_ended and self._stopping_with is None:
            while self._triggered:  # a barrier would have come before the end
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
        self._end_data()
        if self.awaits_checkpoint:
            self.checkpoints.await_one()

    def _end_data(self) -> None:
        self.has_ended = True
        self.time_service.input_ended()
        for writer in self._writers:
            writer.end_of_data()
        self._leave_when_done()

    @property
    def alignment_seconds(self) -> float:
        """For how many seconds the task waited, at the last checkpoint, from the first to the last
        barrier. May be read from any thread."""
        return self._barriers.alignment_seconds

    @property
    def awaits_checkpoint(self) -> bool:
        """Whether the task has processed all its data, and needs a further checkpoint before it can
        end."""
        return (
            self.has_ended
            and not self.finished
            and any(operator.awaits_checkpoint for _, operator in self.operators)
        )

    @property
    def is_stopping(self) -> bool:
        """Whether the task has taken its part of the savepoint with which the job stops.
        Its source is not read any more, and its timers do not fire."""
        return self._stopping_with is not None and not self.has_ended

    def _read_ends(self) -> bool:
        """Read and drop the input up to the end of data of each channel, after the savepoint with
        which the job stops: upstream tasks end only when their ends were read. Returns False if an
        end has not arrived yet."""
        while not self.gate.data_has_ended:
            polled = self.gate.poll()
            if polled is None:
                return False
            channel, element = polled
            if isinstance(element, EndOfData):
                self.gate.end_data(channel)
            elif isinstance(element, EndOfInput):
                self.gate.end(channel)
        self._end_data()
        return True

    def _leave_when_done(self) -> None:
        if self.finished or not self.gate.finished or self.awaits_checkpoint:
            return
        if any(operator.is_retrying for _, operator in self.operators):
            return
        if all(writer.is_processed() for writer in self._writers):
            self._leave()

    def _finish_operators(self) -> None:
        for _, operator in self.operators:
            operator.finish()
        if not self.operators:
            for writer in self._writers:
                writer.process_watermark(MAX_TIMESTAMP)

    def _leave(self) -> None:
        self.mailbox.quiesce()
        self.mailbox.run_pending()  # a barrier goes before the end
        for writer in self._writers:
            writer.end_of_input()
        self.has_ended = self.finished = True

    # --- checkpoints --------------------------------------------------------------------------

    def trigger_checkpoint(self, barrier: Barrier) -> None:
        """Begin a checkpoint at a source, or at a task whose inputs have all ended. Called by mail.
        A source begins it at once or, if a batch is in progress, after this batch. A task whose
        inputs have ended gets no barrier, and begins it when it has processed all input."""
        if self.has_ended:
            self.perform_checkpoint(barrier, is_last=True)
        elif self.gate.has_channels or (self._source is not None and self._source.has_rest):
            self._triggered.append(barrier)
        else:
            self.perform_checkpoint(barrier)

    def perform_checkpoint(self, barrier: Barrier, is_last: bool = False) -> None:
        """Take the task's snapshot for a checkpoint and send the barrier to the next tasks; do
        nothing if the task takes no part. *is_last*: all input was processed."""
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
        self.checkpoints.abort_checkpoint(checkpoint_id, reason)

    def call_at(self, timestamp: int, action: Callable[[], None]) -> None:
        self.time_service.schedule(timestamp, lambda _: self.turn.then(action), also_after_end=True)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the operators that the checkpoint is complete in all tasks. Called by mail."""
        self.checkpoints.notify_complete(checkpoint_id)
        self._is_stopped |= self._is_stopping_with(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed: int) -> None:
        """Handle the abort of a checkpoint: the task stops taking part in it. Called by mail.
        Raises UnavailableError if the job stops with this savepoint: the task has dropped input
        after the savepoint, so the job has to restart."""
        self.checkpoints.notify_aborted(checkpoint_id, latest_completed)
        self._barriers.aborted(checkpoint_id)
        if self._is_stopping_with(checkpoint_id):
            raise UnavailableError(
                f"stop with savepoint failed: savepoint {checkpoint_id} was aborted, and the job "
                "goes on from its last checkpoint"
            )

    def _is_stopping_with(self, checkpoint_id: int) -> bool:
        stopping = self._stopping_with
        return stopping is not None and stopping.checkpoint_id == checkpoint_id


def close_all(objects: Sequence[Any]) -> None:
    """Close all objects, even if one of them fails to close. Raises the first failure."""
    if objects:
        with closing(lambda: close_all(objects[1:]), "an operator"):
            objects[0].close()


@contextmanager
def closing(close: Callable[[], None], name: str) -> Iterator[None]:
    """Context manager that calls *close* at the end. If the block fails, the block's error is
    raised, and an error of *close* is only logged."""
    try:
        yield
    except BaseException:
        try:
            close()
        except (Exception, SystemExit):
            logger.warning("%s could not be closed after an error", name, exc_info=True)
        raise
    close()


_LARGEST: int = 31 << 20
"""Bytes. The C library adapts to pieces of up to 32 MiB, but not to larger ones."""


def keep_freed_memory() -> None:
    """Make this process keep memory that it frees, up to about 60 MiB at the end of its heap. Does
    what glibc does by itself (mallopt(3)) when a large piece of memory was allocated and freed.
    Thresholds set by environment variables stay; with other C libraries nothing happens."""
    np.empty(_LARGEST, np.uint8)
