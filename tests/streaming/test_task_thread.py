"""The loop of a task: its mailbox, its turns and its pauses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flinkray.streaming.channels import MemoryChannel, MemoryInputGate
from flinkray.streaming.checkpoint.subtask_checkpoints import NotCheckpointed
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import FlatMapFunction, MapFunction
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.basic import FlatMapOperator, MapOperator
from flinkray.streaming.operators.operator import OperatorContext, Output, StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.transformations import (
    GraphSettings,
    OperatorTransformation,
    PartitionTransformation,
    build_graph,
)
from flinkray.streaming.records.elements import END_OF_INPUT, Barrier, Block, Columns
from flinkray.streaming.records.in_flight import Settled
from flinkray.streaming.records.partitioners import RebalancePartitioner
from flinkray.streaming.sinks.simple import CallbackSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.sources.collection import NumberSequenceSource
from flinkray.streaming.task import task_thread
from flinkray.streaming.task.task import StreamTask, StreamTaskInput, close_all, closing
from flinkray.streaming.task.task_mailbox import MailboxClosedError, TaskMailbox
from flinkray.streaming.task.task_thread import TaskLoop
from flinkray.streaming.time.time_service import ProcessingTimeService, WaitingSystemClock
from flinkray.streaming.time.turn import TARGET, Portion, Turn
from flinkray.testing.manual_clock import ManualClock


def new_loop(signal: Signal) -> TaskLoop:
    clock = ManualClock()
    service = ProcessingTimeService(clock)
    task = StreamTask("t", [("map", MapOperator(str))], MemoryInputGate(()), [], [], [], service)
    return TaskLoop(task, signal, clock, lambda: None, None)


def test_task_loop_measures_the_time_in_which_it_waits_for_room_in_its_output() -> None:
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


class PolledSignal(Signal):
    """Counts how often the task looks at its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0

    def poll(self) -> None:
        self.polls += 1


def test_task_looks_at_its_channels_and_gives_way_between_two_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[None] = []
    monkeypatch.setattr(task_thread, "give_way", lambda: given.append(None))
    signal = PolledSignal()
    service = ProcessingTimeService(WaitingSystemClock())
    operator = MapOperator(str)
    operator.setup(OperatorContext("map", service, service.clock), Output([]))
    channel = MemoryChannel()
    for element in (Block([1]), Block([2]), Block([3]), END_OF_INPUT):
        channel.put(element)
    task = StreamTask(
        "t",
        [("map", operator)],
        MemoryInputGate([channel]),
        [StreamTaskInput(operator, 1)],
        [(0, 0)],
        [],
        service,
    )
    task.open()
    TaskLoop(task, signal, service.clock, lambda: None).run()
    assert (signal.polls, len(given)) == (4, 4)


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


def test_mailbox_with_endless_mail_does_not_starve_the_records_of_its_task() -> None:
    """ST-23: a round handles only the mail that was there when the round began."""
    mailbox = TaskMailbox()
    done: list[int] = []

    def again() -> None:
        done.append(len(done))
        mailbox.put(again)

    mailbox.put(again)
    for round_number in range(1, 4):
        assert mailbox.run_pending()
        assert len(done) == round_number


def test_mail_with_priority_is_taken_before_other_mail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    order: list[str] = []
    for name in ("first", "second"):
        mailbox.put(lambda name=name: order.append(name))  # type: ignore[misc]
    mailbox.put_first(lambda: order.append("urgent"))
    mailbox.run_pending()
    assert order == ["urgent", "first", "second"]
    assert not mailbox.run_pending()


def test_quiesced_mailbox_refuses_new_mail_but_returns_pending_mail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    mailbox.put(lambda: None)
    mailbox.quiesce()
    with pytest.raises(MailboxClosedError, match="quiesced"):
        mailbox.put(lambda: None)
    assert mailbox.try_take() is not None
    assert mailbox.try_take() is None


def test_closing_a_mailbox_returns_pending_mail_and_makes_later_use_fail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    mail = [lambda: None, lambda: None]
    for each in mail:
        mailbox.put(each)
    assert mailbox.close() == mail
    for use in (mailbox.try_take, mailbox.take, lambda: mailbox.put(mail[0])):
        with pytest.raises(MailboxClosedError, match="closed"):
            use()


def test_waiting_for_mail_ends_when_another_thread_sends_mail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    taken: list[object] = []
    waiter = threading.Thread(target=lambda: taken.append(mailbox.take(timeout=300)))
    waiter.start()

    def mail() -> None:
        return None

    mailbox.put(mail)
    waiter.join(300)
    assert taken == [mail]


def test_waiting_for_mail_fails_when_the_mailbox_is_closed() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    failures: list[str] = []

    def wait() -> None:
        try:
            mailbox.take(timeout=300)
        except MailboxClosedError as error:
            failures.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    mailbox.close()
    waiter.join(300)
    assert failures == ["the mailbox is closed"]


CLOCK = ManualClock()


def sizes(portions: int, seconds: Callable[[int, int], float]) -> list[int]:
    """Of portions that take *seconds* of the number of records before, and of those in it."""
    clock = ManualClock()
    portion = Portion(clock)
    found: list[int] = []
    for _ in range(portions):
        found.append(portion.begin())
        clock.advance(seconds(sum(found) - found[-1], found[-1]))
        assert portion.end(found[-1]) >= 1
    return found


def test_number_of_records_between_two_pauses_is_chosen_to_take_ten_milliseconds() -> None:
    assert sizes(8, lambda _, count: 0.001 * count)[-4:] == [4, 4, 4, 4]
    assert sizes(8, lambda _, count: 1e-6 * count)[-1] == 4096


def test_batch_between_pauses_grows_if_time_does_not_depend_on_the_number_of_records() -> None:
    assert sizes(8, lambda _, count: 5 * TARGET)[-1] == 4096


def test_batch_between_pauses_shrinks_once_time_depends_on_the_number_of_records() -> None:
    def seconds(before: int, count: int) -> float:
        return 0.015 if before < 20_000 else 0.001 * count

    assert 4096 in sizes(10, seconds)
    assert sizes(20, seconds)[-1] <= 16


def test_pause_of_a_task_does_not_reduce_its_number_of_records_between_pauses() -> None:
    clock, turn = ManualClock(), Turn()
    portion = Portion(clock, turn)
    for _ in range(5):
        done = portion.begin()
        clock.advance(3.0)
        turn.paused += 3.0
        portion.end(done)
    assert portion.size == 4096


class Numbers(FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        yield from range(50_000)


class Slow(MapFunction[Any, Any]):
    """Time passes here, and nowhere else."""

    def map(self, value: Any) -> Any:
        CLOCK.advance(0.001)
        return value


def test_task_of_a_local_job_measures_how_long_it_is_paused() -> None:
    source = OperatorTransformation("Source", operator=SourceOperator(NumberSequenceSource(1, 3)))
    numbers = OperatorTransformation(
        "Numbers", operator=FlatMapOperator(Numbers()), inputs=[source]
    )
    dealt = PartitionTransformation("", input=numbers, partitioner=RebalancePartitioner())
    slow = OperatorTransformation("Slow", operator=MapOperator(Slow()), inputs=[dealt])
    sink = OperatorTransformation(
        "Sink", operator=SinkWriterOperator(CallbackSink(lambda _: None)), inputs=[slow]
    )
    job = LocalJob(build_graph([sink], GraphSettings()), CLOCK)
    producing, slowly = job.tasks
    while not producing.finished:
        job.advance()
    paused = producing.turn.paused
    assert paused > 0.0
    assert slowly.turn.paused == 0.0
    job.run()
    assert producing.turn.paused == paused <= CLOCK.monotonic() == pytest.approx(150.0, rel=0.01)


class Waits(StreamOperator):
    """For ten milliseconds a record, as where others have to answer for each."""

    def open(self) -> None:
        self.sizes: list[int] = []
        SIZES.append(self.sizes)

    def process_block(self, block: Block) -> None:
        self.sizes.append(len(block))
        clock = self.context.clock
        done = clock.monotonic() + TARGET * len(block)
        self.context.turn.wait_until(lambda: clock.monotonic() >= done)


SIZES: list[list[int]] = []


def test_task_whose_function_blocks_at_each_record_pauses_after_each_record() -> None:
    source = OperatorTransformation("Source", operator=SourceOperator(NumberSequenceSource(1, 99)))
    dealt = PartitionTransformation("", input=source, partitioner=RebalancePartitioner())
    waits = OperatorTransformation("Waits", operator=Waits(), inputs=[dealt])
    sink = OperatorTransformation(
        "Sink", operator=SinkWriterOperator(CallbackSink(lambda _: None)), inputs=[waits]
    )
    job = LocalJob(build_graph([sink], GraphSettings()), ManualClock())
    job.run()
    (sizes,) = SIZES
    assert sum(sizes) == 99
    assert set(sizes[2:]) == {1}
    assert [task.turn.paused for task in job.tasks] == [0.0, 0.0]


class Closing:
    """Notes that it is closed, and then raises an error if there is one."""

    def __init__(self, closed: list[object], error: BaseException | None = None) -> None:
        self._closed = closed
        self._error = error

    def close(self) -> None:
        self._closed.append(self)
        if self._error is not None:
            raise self._error


def test_closing_several_objects_raises_the_first_error_and_logs_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[object] = []
    first, second = ValueError("first"), SystemExit("second")
    objects = [Closing(closed), Closing(closed, first), Closing(closed, second), Closing(closed)]
    with pytest.raises(ValueError, match="first"):
        close_all(objects)
    assert closed == objects
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [second]


def test_error_of_close_does_not_replace_an_earlier_error(caplog: pytest.LogCaptureFixture) -> None:
    fails = Closing([], ValueError("close")).close
    with pytest.raises(KeyError), closing(fails, "task a (1/2)#0"):
        raise KeyError
    assert caplog.messages == ["task a (1/2)#0 could not be closed after an error"]
    with pytest.raises(ValueError, match="close"), closing(fails, "task a (1/2)#0"):
        pass
