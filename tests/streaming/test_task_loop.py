"""How a task in a thread of its own waits, and how its time is told."""

from __future__ import annotations

import threading

import pytest

from flinkray.streaming.channels import MemoryChannel, MemoryInputGate
from flinkray.streaming.checkpoint.subtask_checkpoints import NotCheckpointed
from flinkray.streaming.errors import StreamError
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.basic import FlatMapOperator, MapOperator
from flinkray.streaming.operators.operator import OperatorContext, Output, StreamOperator
from flinkray.streaming.records.elements import END_OF_INPUT, Barrier, Block, Columns
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.task.task import StreamTask, StreamTaskInput
from flinkray.streaming.task.task_loop import TaskLoop
from flinkray.streaming.time.time_service import ProcessingTimeService, WaitingSystemClock
from flinkray.streaming.time.turn import Turn
from flinkray.testing.manual_clock import ManualClock


def new_loop(signal: Signal) -> TaskLoop:
    clock = ManualClock()
    service = ProcessingTimeService(clock)
    task = StreamTask("t", [("map", MapOperator(str))], MemoryInputGate(()), [], [], [], service)
    return TaskLoop(task, signal, clock, lambda: None, None)


def test_time_in_which_a_task_waits_for_room_does_not_count_as_work() -> None:
    signal = Signal()
    signal.set()
    answers = iter([False, True])
    loop = new_loop(signal)
    assert loop.waited() == 0.0
    loop.wait_until(lambda: next(answers))
    assert 0.0 < loop.waited() < loop.elapsed()


def test_elapsed_time_of_a_task_stops_when_the_task_ends() -> None:
    loop = new_loop(Signal())
    loop.end()
    elapsed = loop.elapsed()
    assert elapsed > 0.0
    assert loop.elapsed() == elapsed


class Committing(StreamOperator):
    """Has something to commit until a checkpoint is complete."""

    awaits_checkpoint = True

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.awaits_checkpoint = False


class Requests(NotCheckpointed):
    """Keeps the task's requests for a checkpoint."""

    def __init__(self) -> None:
        self.after: list[int] = []

    def awaits_checkpoint(self, after: int) -> None:
        self.after.append(after)


class CountedSignal(Signal):
    """Whoever waits for it learns that a checkpoint is complete."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self.task: StreamTask

    def wait(self, timeout: float = -1) -> bool:
        self.waits.append(timeout)
        self.task.mailbox.put(lambda: self.task.notify_checkpoint_complete(1))
        return True


def test_task_that_waits_for_its_final_checkpoint_does_not_poll() -> None:
    """A due timer that never fires would keep the processor busy."""
    signal = CountedSignal()
    service = ProcessingTimeService(WaitingSystemClock())
    operator = Committing()
    operator.setup(OperatorContext("commits", service, service.clock), Output([]))
    channel = MemoryChannel()
    channel.put(END_OF_INPUT)
    requests = Requests()
    signal.task = StreamTask(
        "t",
        [("commits", operator)],
        MemoryInputGate([channel]),
        [StreamTaskInput(operator, 1)],
        [(0, 0)],
        [],
        service,
        requests,
    )
    signal.task.open()
    loop = TaskLoop(signal.task, signal, service.clock, lambda: None)
    while not signal.task.has_ended:
        signal.task.step()
    service.schedule(service.now() - 1, lambda _: None)
    loop.run()
    assert (requests.after, signal.waits) == ([0], [-1])


def test_operator_that_commits_with_checkpoints_is_refused_without_checkpoints() -> None:
    """Otherwise the task would wait for ever."""
    service = ProcessingTimeService(ManualClock())
    operator = Committing()
    operator.setup(OperatorContext("commits", service, service.clock), Output([]))
    channel = MemoryChannel()
    channel.put(END_OF_INPUT)
    inputs = [StreamTaskInput(operator, 1)]
    operators = [("commits", operator)]
    task = StreamTask("t", operators, MemoryInputGate([channel]), inputs, [(0, 0)], [], service)
    with pytest.raises(StreamError, match="the job takes no checkpoints"):
        task.step()


class Narrow:
    """A way out that has room for one batch at a time; whoever reads tells the signal."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.taken: list[int] = []
        self.waiting = 0

    def has_room(self) -> bool:
        return self.waiting == 0

    def process_block(self, block: Block) -> None:
        assert self.has_room(), "the task has not waited for room"
        self.taken.append(len(block))
        self.waiting = 1
        threading.Thread(target=self.read).start()

    def read(self) -> None:
        self.waiting = 0
        self.signal.set()

    def process_watermark(self, timestamp: int) -> None: ...
    def process_status(self, idle: bool) -> None: ...
    def process_columns(self, columns: Columns) -> None: ...
    def flush_when_idle(self) -> None: ...
    def barrier(self, barrier: Barrier, settled: Settled) -> None: ...
    def cancelled_barrier(self, checkpoint_id: int) -> None: ...
    def end_of_data(self) -> None: ...
    def end_of_input(self) -> None: ...

    def is_processed(self) -> bool:
        return True


class EndedError(Exception):
    pass


@pytest.mark.parametrize("cancel_after", [None, 5])
def test_task_with_many_results_for_one_record_waits_for_room_and_can_be_cancelled(
    cancel_after: int | None,
) -> None:
    signal = Signal()
    out = Narrow(signal)
    channel = MemoryChannel()
    channel.put(Block([20_000]))
    channel.put(END_OF_INPUT)
    service = ProcessingTimeService(WaitingSystemClock())
    operator = FlatMapOperator(range)
    turn = Turn()
    operator.setup(
        OperatorContext("flat map", service, service.clock, turn=turn, is_head=True), Output([out])
    )
    task = StreamTask(
        "t",
        [("flat map", operator)],
        MemoryInputGate([channel]),
        [StreamTaskInput(operator, 1)],
        [(0, 0)],
        [out],
        service,
        turn=turn,
    )
    task.open()

    def check() -> None:
        if cancel_after is not None and len(out.taken) >= cancel_after:
            raise EndedError

    loop = TaskLoop(task, signal, service.clock, check)
    if cancel_after is None:
        loop.run()
        assert sum(out.taken) == 20_000
        assert max(out.taken) <= 4096
        assert turn.paused > 0.0
    else:
        with pytest.raises(EndedError):
            loop.run()
        assert len(out.taken) == cancel_after
