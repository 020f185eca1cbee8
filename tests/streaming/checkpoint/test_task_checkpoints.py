"""A task's part in checkpoints: when it takes its snapshot, and what it makes of their news."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from flinkray.state.descriptors import ListStateDescriptor
from flinkray.streaming.channels import MemoryChannel, MemoryInputGate, RecordWriter
from flinkray.streaming.checkpoint.subtask_checkpoints import MOST_REMEMBERED, CheckpointResponder
from flinkray.streaming.errors import StreamError
from flinkray.streaming.network import Signal
from flinkray.streaming.operators.operator import (
    OperatorContext,
    OperatorStateCapture,
    Output,
    StreamOperator,
)
from flinkray.streaming.records.elements import (
    END_OF_DATA,
    END_OF_INPUT,
    MAX_TIMESTAMP,
    Barrier,
    Block,
    CancelledBarrier,
    Element,
    EndOfData,
    Watermark,
)
from flinkray.streaming.records.in_flight import InFlight, Settled
from flinkray.streaming.records.partitioners import ForwardPartitioner
from flinkray.streaming.task.task import StreamTask, StreamTaskInput
from flinkray.streaming.task.task_thread import TaskLoop
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing.manual_clock import ManualClock

SEEN: ListStateDescriptor[Any] = ListStateDescriptor("seen")


class Remembering(StreamOperator):
    """Keeps what it has seen as state, and what it was told of."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.ahead: list[Any] = []
        self.commits_with: int | None = None

    def prepare_snapshot_pre_barrier(self, barrier: Barrier) -> None:
        if self.ahead:
            self.output.emit(Block([*self.ahead, barrier.checkpoint_id]))

    @property
    def awaits_checkpoint(self) -> bool:
        return self.commits_with is not None and self.commits_with not in self.told

    def process_block(self, block: Block) -> None:
        self.operator_state.list_state(SEEN).add_all(list(block.values))
        self.output.emit(block)

    def finish(self) -> None:
        self.told.append("finish")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.append(checkpoint_id)


class Overtaking(MemoryChannel):
    """A channel where a barrier may overtake elements, as it may in channels of the network."""

    overtaken: Sequence[Element] = ()
    """Elements that waited when a barrier overtook them."""

    def put_first(self, barrier: Barrier) -> None:
        self.overtaken = [self.take() for _ in range(len(self.elements))]
        for element in (barrier, *self.overtaken):
            self.put(element)


class OvertakingGate(MemoryInputGate):
    """The gate of :class:`Overtaking` channels."""

    def __init__(self, channels: Sequence[Overtaking]) -> None:
        super().__init__(channels)
        self._overtaking = channels

    def in_flight(self, channel: int) -> Sequence[InFlight]:
        return self._overtaking[channel].overtaken


class NotSentYet:
    """A result that tells later what a barrier has overtaken in it."""

    def __init__(self) -> None:
        self.settled: list[Settled] = []

    def has_room(self) -> bool:
        return True

    def flush_when_idle(self) -> None: ...
    def cancelled_barrier(self, checkpoint_id: int) -> None: ...
    def process_watermark(self, timestamp: int) -> None: ...
    def end_of_data(self) -> None: ...
    def end_of_input(self) -> None: ...

    def is_processed(self) -> bool:
        return True

    def barrier(self, barrier: Barrier, settled: Settled) -> None:
        self.settled.append(settled)
        if barrier.unaligned:
            settled({4: [Watermark(1)], 7: [Watermark(2)]})


class Running(CheckpointResponder):
    """A task with channels in and one out, and all that it reports."""

    def __init__(
        self,
        channels: int = 1,
        exactly_once: bool = True,
        restored_from: int = 0,
        other_results: Sequence[NotSentYet] = (),
        had_finished: bool = False,
    ) -> None:
        service = ProcessingTimeService(ManualClock())
        self.channels = [Overtaking() for _ in range(channels)]
        self.out = MemoryChannel()
        self.writer = writer = RecordWriter([self.out], ForwardPartitioner())
        self.operator = Remembering()
        self.operator.setup(OperatorContext("op", service, service.clock), Output([writer]))
        self.is_busy = False
        self.reports: list[Any] = []
        self.base: int | None = None
        self.captures: dict[int, OperatorStateCapture] = {}
        self.task = StreamTask(
            "task",
            [] if had_finished else [("op", self.operator)],
            OvertakingGate(self.channels),
            [StreamTaskInput(self.operator, channels)],
            [(0, channel) for channel in range(channels)],
            [writer, *other_results],
            service,
            self,
            exactly_once=exactly_once,
            restored_from=restored_from,
        )
        self.task.open()

    def base_of(self, operator_id: str, barrier: Barrier) -> int | None:
        return self.base

    def captured(self, barrier: Barrier, states: Mapping[str, OperatorStateCapture]) -> None:
        self.reports.append(f"captured {barrier.checkpoint_id}")
        if states:
            self.captures[barrier.checkpoint_id] = states["op"]

    def declined(self, checkpoint_id: int, reason: str) -> None:
        self.reports.append(f"declined {checkpoint_id}: {reason}")

    def overtaken_results(
        self, checkpoint_id: int, result: int, subpartition: int, elements: Sequence[InFlight]
    ) -> None:
        self.reports.append((checkpoint_id, f"result {result}", subpartition, elements))

    def in_flight(self, checkpoint_id: int, channel: int, elements: Sequence[InFlight]) -> None:
        values = [e.values if isinstance(e, Block) else e for e in elements]
        self.reports.append((checkpoint_id, channel, values))

    def in_flight_completed(self, checkpoint_id: int) -> None:
        self.reports.append(f"in flight completed {checkpoint_id}")

    def aborted(self, checkpoint_id: int) -> None:
        self.reports.append(f"aborted {checkpoint_id}")

    def put(self, channel: int, *elements: Element) -> None:
        for element in elements:
            self.channels[channel].put(element)

    def run(self) -> list[Any]:
        """Until there is nothing more to do, for the reader either, which processes all unless it
        :attr:`is_busy`; what came out, records as their values."""
        came: list[Any] = []
        while self.task.step() or self.out.elements:
            while self.out.elements:
                element = self.out.take()
                if isinstance(element, EndOfData):
                    self.out.is_processed = not self.is_busy
                came += element.values if isinstance(element, Block) else [element]
        return came

    def seen(self, checkpoint_id: int) -> list[Any]:
        restored = Running()
        restored.operator.restore([self.captures[checkpoint_id].write()])
        return list(restored.operator.operator_state.list_state(SEEN).get())


def test_snapshot_contains_only_records_before_the_barriers_though_written_later() -> None:
    """ST-01: the snapshot is written later, when the task has processed more records."""
    running = Running(2)
    running.put(0, Block([1]), Barrier(1, 0), Block([2]))
    running.put(1, Block([3]))
    assert running.run() == [1, 3]
    running.put(1, Block([4]), Barrier(1, 0))
    assert running.run() == [4, Barrier(1, 0), 2]
    assert running.reports == ["captured 1"]
    assert sorted(running.seen(1)) == [1, 3, 4]


def test_unaligned_snapshot_contains_the_records_that_the_barrier_overtook() -> None:
    """ST-06: in order and with the values of that moment, although a value changes later."""
    running = Running(2)
    running.put(0, Block([[1]]), Block([[2]]))
    running.put(1, Block([[3]]))
    running.channels[0].put_first(Barrier(1, 0, unaligned=True))
    running.put(0, Block([[5]]))
    assert running.task.step()
    assert running.out.take() == Barrier(1, 0, unaligned=True)
    assert running.reports == ["captured 1", (1, 0, [[[1]], [[2]]])]
    read = running.run()
    assert sorted(read) == [[1], [2], [3], [5]]
    read[read.index([3])].append("changed")
    running.put(1, Watermark(7))
    running.run()
    running.put(1, Block([[4]]))
    running.channels[1].put_first(Barrier(1, 0, unaligned=True))
    running.run()
    assert running.reports[2:] == [
        (1, 1, [[[3]]]),
        (1, 1, [Watermark(7)]),
        (1, 1, [[[4]]]),
        "in flight completed 1",
    ]
    assert running.seen(1) == []


def test_task_reports_results_overtaken_by_an_unaligned_barrier_before_its_snapshot() -> None:
    """ST-06: with the positions of result and subpartition."""
    running = Running(other_results=[NotSentYet()])
    running.channels[0].put_first(Barrier(1, 0, unaligned=True))
    running.run()
    assert running.reports == [
        (1, "result 1", 4, [Watermark(1)]),
        (1, "result 1", 7, [Watermark(2)]),
        "captured 1",
        (1, 0, []),
        "in flight completed 1",
    ]


def test_checkpoint_with_alignment_timeout_is_complete_once_all_barriers_are_sent() -> None:
    """ST-08: or when they have overtaken waiting elements, which belong to the checkpoint."""
    late, later = NotSentYet(), NotSentYet()
    running = Running(other_results=[late, later])
    running.put(0, Barrier(1, 0, alignment_timeout=1000))
    running.run()
    later.settled[0]({3: [Watermark(5)]})
    assert running.reports == ["captured 1", (1, "result 2", 3, [Watermark(5)])]
    late.settled[0]({})
    assert running.reports[2:] == ["in flight completed 1"]


@pytest.mark.parametrize("barrier", [Barrier(1, 0), Barrier(1, 0, True, alignment_timeout=1000)])
def test_aligned_checkpoints_and_savepoints_have_no_data_in_flight(barrier: Barrier) -> None:
    """ST-07."""
    running = Running()
    running.put(0, barrier)
    running.run()
    assert running.reports == ["captured 1"]


def test_checkpoint_that_was_aborted_gets_no_data_in_flight_any_more() -> None:
    """Neither from results nor from channels."""
    late = NotSentYet()
    running = Running(2, other_results=[late])
    running.put(0, Barrier(1, 0, alignment_timeout=1000))
    running.put(1, Barrier(1, 0, alignment_timeout=1000))
    running.run()
    running.task.notify_checkpoint_aborted(1, 0)
    late.settled[0]({3: [Watermark(5)]})
    assert running.reports == ["captured 1", "aborted 1"]
    running.task.notify_checkpoint_aborted(2, 0)
    running.reports.clear()
    for channel in running.channels:
        channel.put(Block([1]))
        channel.put_first(Barrier(2, 0, unaligned=True))
    running.run()
    assert running.reports == ["aborted 2"], "for who waits for it to take its snapshot"


def test_completion_of_a_later_checkpoint_does_not_complete_an_earlier_one() -> None:
    late = NotSentYet()
    running = Running(other_results=[late])
    running.put(0, Barrier(1, 0, alignment_timeout=1000), Barrier(2, 0, alignment_timeout=1000))
    running.run()
    late.settled[1]({})
    late.settled[0]({0: [Watermark(1)]})
    assert running.reports == [
        "captured 1",
        "captured 2",
        "in flight completed 2",
        (1, "result 1", 0, [Watermark(1)]),
        "in flight completed 1",
    ]
    running.put(0, Barrier(3, 0, alignment_timeout=1000), Barrier(4, 0, alignment_timeout=1000))
    running.run()
    running.task.notify_checkpoint_aborted(3, 0)
    late.settled[2]({0: [Watermark(1)]})
    late.settled[3]({})
    assert running.reports[5:] == ["captured 3", "captured 4", "aborted 3", "in flight completed 4"]


def test_task_declines_a_checkpoint_cancelled_upstream_and_forwards_the_marker() -> None:
    running = Running(2)
    running.put(0, Barrier(1, 0), Block([1]))
    running.put(1, CancelledBarrier(1))
    assert running.run() == [CancelledBarrier(1), 1]
    assert running.reports == ["declined 1: a task before this one has given it up"]


def test_task_skips_a_checkpoint_aborted_before_its_barrier_comes() -> None:
    """ST-10: the task tells its consumers, and takes part in the next checkpoint."""
    running = Running()
    running.task.notify_checkpoint_aborted(1, 0)
    running.put(0, Barrier(1, 0), Barrier(2, 0))
    assert running.reports == ["aborted 1"], "the coordinator waits for all to answer"
    assert running.run() == [CancelledBarrier(1), Barrier(2, 0)]
    assert running.reports == ["aborted 1", "aborted 1", "captured 2"]


def test_snapshot_is_released_when_its_checkpoint_is_aborted_later() -> None:
    """ST-10."""
    running = Running()
    running.put(0, Barrier(1, 0))
    running.run()
    running.task.notify_checkpoint_aborted(1, 0)
    assert running.reports == ["captured 1", "aborted 1"]


def test_task_forgets_the_oldest_of_too_many_aborted_checkpoints() -> None:
    """ST-10"""
    running = Running()
    for checkpoint_id in range(1, MOST_REMEMBERED + 2):
        running.task.notify_checkpoint_aborted(checkpoint_id, 0)
    running.put(0, Barrier(1, 0), Barrier(2, 0))
    assert running.run() == [Barrier(1, 0), CancelledBarrier(2)]


@pytest.mark.parametrize(
    ("restored_from", "news", "heard"),
    [
        (0, [(3, None), (5, 3), (10, 8), (8, None)], [3, 8]),
        (3, [(2, None), (4, 3), (5, None), (7, 6)], [5, 6]),
    ],
)
def test_operators_are_notified_only_of_increasing_completed_checkpoints(
    restored_from: int, news: list[tuple[int, int | None]], heard: list[int]
) -> None:
    """ST-12: an abort carries the latest completed id and implies its completion."""
    running = Running(restored_from=restored_from)
    for checkpoint_id, latest_completed in news:
        if latest_completed is None:
            running.task.notify_checkpoint_complete(checkpoint_id)
        else:
            running.task.notify_checkpoint_aborted(checkpoint_id, latest_completed)
    assert running.operator.told == heard


def test_barrier_notifies_operators_of_a_completed_checkpoint_before_their_snapshot() -> None:
    """ST-12: the notification itself may be lost; if it comes later, it is not repeated."""
    running = Running(restored_from=2)
    running.operator.capture = lambda *a: running.operator.told.append(a)  # type: ignore
    running.base = 4
    running.put(0, Barrier(5, 0, latest_completed=4))
    running.run()
    assert running.operator.told == [4, (5, 4)]
    running.task.notify_checkpoint_complete(4)
    running.base = None
    running.put(0, Barrier(6, 0, latest_completed=2))
    running.run()
    assert running.operator.told[2:] == [(6, None)]


# --- stop with savepoint --------------------------------------------------------------------------


def test_task_processes_no_record_after_a_stop_savepoint() -> None:
    """ST-13: when the savepoint is complete, the task ends without finishing its operators, so that
    a job can continue from the savepoint."""
    running = Running()
    running.put(0, Block([1]), Barrier(4, 0, savepoint=True, stops=True), Block([2]))
    barrier = Barrier(4, 0, savepoint=True, stops=True)
    assert running.run() == [1, barrier]
    running.task.notify_checkpoint_complete(3)
    assert running.run() == []
    assert not running.task.finished
    running.task.mailbox.put(partial(running.task.notify_checkpoint_complete, 4))
    assert running.run() == []
    assert not running.task.finished, "who puts out what it reads would wait for ever"
    running.put(0, END_OF_INPUT)
    assert running.run() == [END_OF_DATA, END_OF_INPUT]
    assert running.task.finished
    assert running.operator.told == [3, 4]
    assert running.seen(4) == [1]


def test_task_does_not_poll_while_its_stop_savepoint_is_being_stored() -> None:
    """A due timer that did not fire, or a source with records, kept the processor busy."""
    running, waits = Running(), []

    class Woken(Signal):
        def wait(self, timeout: float = -1) -> bool:
            waits.append(timeout)
            running.task.mailbox.put(partial(running.task.notify_checkpoint_complete, 4))
            running.put(0, END_OF_INPUT)
            running.out.is_processed = True
            return True

    running.put(0, Barrier(4, 0, savepoint=True, stops=True))
    running.run()
    clock = running.task.time_service.clock
    running.task.time_service.schedule(int(clock.time() * 1000) - 1, lambda _: None)
    TaskLoop(running.task, Woken(), clock, lambda: None).run()
    assert waits == [-1]


def test_operators_finish_before_a_draining_savepoint() -> None:
    running = Running()
    running.put(0, Watermark(MAX_TIMESTAMP), Barrier(1, 0, savepoint=True, stops=True, drains=True))
    running.run()
    assert running.operator.told == ["finish"]
    running.task.notify_checkpoint_complete(1)
    assert running.operator.told == ["finish", 1]
    running.put(0, END_OF_INPUT)
    assert running.run()[-1] == END_OF_INPUT
    assert running.task.finished


def test_aborted_stop_savepoint_fails_the_task() -> None:
    """ST-13."""
    running = Running()
    running.put(0, Barrier(4, 0, savepoint=True, stops=True))
    running.run()
    running.task.notify_checkpoint_aborted(3, 0)
    with pytest.raises(StreamError, match="savepoint 4 was aborted"):
        running.task.notify_checkpoint_aborted(4, 0)


# --- what goes ahead of barriers, and is committed with checkpoints -------------------------------


def test_records_that_an_operator_emits_for_a_checkpoint_precede_the_barrier() -> None:
    running = Running()
    running.operator.ahead = ["a"]
    running.put(0, Block([1]), Barrier(3, 0), Block([2]))
    assert running.run() == [1, "a", 3, Barrier(3, 0), 2]


def test_operators_get_the_id_of_their_restored_checkpoint() -> None:
    assert Running(restored_from=7).operator.context.restored_checkpoint_id == 7


@pytest.mark.parametrize("unaligned", [False, True])
def test_task_with_a_committing_operator_ends_only_after_its_final_checkpoint(
    unaligned: bool,
) -> None:
    """It takes part in checkpoints that begin after the end of its input, and does nothing else."""
    running = Running()
    running.operator.commits_with = 2
    fired: list[int] = []
    running.task.time_service.schedule(0, fired.append)
    running.task.step()
    running.put(0, Block([1]), END_OF_INPUT)
    assert running.run() == [1, END_OF_DATA]
    assert fired == [0]
    running.task.time_service.schedule(0, fired.append)
    for checkpoint_id in (1, 2):
        barrier = Barrier(checkpoint_id, 0, unaligned=unaligned)
        running.task.mailbox.put(partial(running.task.trigger_checkpoint, barrier))
        assert running.run() == [barrier]
        assert not running.task.finished
        assert running.seen(checkpoint_id) == [1]
        running.task.mailbox.put(partial(running.task.notify_checkpoint_complete, checkpoint_id))
    assert running.run() == [END_OF_INPUT]
    assert running.task.finished
    assert (running.operator.told, fired) == (["finish", 1, 2], [0])
    captured = [f"captured {n}" for n in (1, 2)]
    completed = [f"in flight completed {n}" for n in (1, 2)] if unaligned else []
    assert sorted(running.reports) == captured + completed


def test_task_that_waits_for_its_final_checkpoint_has_sent_all_results() -> None:
    running = Running()
    running.operator.commits_with = 1
    running.put(0, Block([1]), END_OF_INPUT)
    assert running.run() == [1, END_OF_DATA]
    assert not running.task.finished


# --- behind the end of the data -------------------------------------------------------------------


@pytest.mark.parametrize("unaligned", [False, True])
def test_task_at_the_end_of_input_takes_snapshots_until_its_results_are_processed(
    unaligned: bool,
) -> None:
    """Barriers follow the end of the data, whether they come from the input or from a trigger after
    all producers have ended."""
    running = Running()
    running.is_busy = True
    by_input, by_trigger = Barrier(1, 0, unaligned=unaligned), Barrier(2, 0, unaligned=unaligned)
    running.put(0, Block([1]), END_OF_DATA, by_input)
    assert running.run() == [1, END_OF_DATA, by_input]
    running.put(0, END_OF_INPUT)
    assert running.run() == []
    running.task.mailbox.put(partial(running.task.trigger_checkpoint, by_trigger))
    assert running.run() == [by_trigger]
    assert not running.task.finished
    assert running.seen(1) == running.seen(2) == [1]
    running.out.is_processed = True
    assert running.run() == [END_OF_INPUT]
    assert running.operator.told == ["finish"]
    assert [report for report in running.reports if "captured" in report] == [
        "captured 1",
        "captured 2",
    ]


@pytest.mark.parametrize("stops", [False, True])
def test_pending_operator_work_runs_after_end_of_data_but_not_after_a_stop_savepoint(
    stops: bool,
) -> None:
    """An async operator does such work. After a stop savepoint, its results would be emitted
    twice."""
    running = Running()
    running.is_busy = True
    task, told, due = running.task, running.operator.told, partial(running.operator.told.append)
    if stops:
        barrier = Barrier(1, 0, savepoint=True, stops=True)
        running.put(0, barrier)
        assert running.run() == [barrier]
        task.mailbox.put(partial(task.notify_checkpoint_complete, 1))
    running.put(0, END_OF_DATA)
    assert running.run() == [END_OF_DATA]
    told.clear()
    task.mailbox.put(lambda: task.turn.leave(partial(due, "left")))
    task.mailbox.put(lambda: task.call_at(task.time_service.now(), partial(due, "due")))
    running.run()
    assert told == ([] if stops else ["left", "due"])


def test_task_whose_results_are_all_processed_waits_for_its_producers_to_end() -> None:
    """A producer with another, slower consumer takes part in checkpoints and sends barriers."""
    running = Running(2)
    running.put(0, END_OF_DATA, END_OF_INPUT)
    running.put(1, END_OF_DATA)
    assert running.run() == [END_OF_DATA]
    running.put(1, Barrier(1, 0))
    assert running.run() == [Barrier(1, 0)]
    running.put(1, END_OF_INPUT)
    assert running.run() == [END_OF_INPUT]


def test_channel_counts_as_processed_once_the_task_has_read_the_end_of_its_data() -> None:
    """Not before: a snapshot would miss the data that still waits in the channel."""
    running = Running(2)
    running.put(0, Block([1]), Barrier(1, 0), Block([2]), END_OF_DATA)
    assert running.run() == [1]
    assert not running.channels[0].is_processed
    running.put(1, Barrier(1, 0))
    assert running.run() == [Barrier(1, 0), 2]
    assert running.channels[0].is_processed
    assert not running.channels[1].is_processed


def test_barriers_after_the_end_of_data_are_aligned() -> None:
    """ST-01, ST-04: a sender at the end of its data still sends barriers; after the end of input,
    it sends none."""
    running = Running(3)
    running.put(0, Barrier(1, 0), Block([2]))
    running.put(1, END_OF_DATA)
    running.put(2, END_OF_DATA, END_OF_INPUT)
    assert running.run() == []
    running.put(1, Barrier(1, 0))
    assert running.run() == [Barrier(1, 0), 2]


@pytest.mark.parametrize("drains", [False, True])
def test_task_at_the_end_of_its_input_takes_part_in_a_stop_savepoint(drains: bool) -> None:
    """ST-13: operators that have finished do not finish again."""
    running = Running()
    running.is_busy = True
    barrier = Barrier(1, 0, savepoint=True, stops=True, drains=drains)
    running.put(0, Block([1]), END_OF_DATA, barrier)
    assert running.run() == [1, END_OF_DATA, barrier]
    running.task.mailbox.put(partial(running.task.notify_checkpoint_complete, 1))
    running.put(0, END_OF_INPUT)
    assert running.run() == []
    running.out.is_processed = True
    assert running.run() == [END_OF_INPUT]
    assert running.operator.told == ["finish", 1]


def test_task_stopped_by_a_savepoint_reads_on_until_its_producers_have_ended() -> None:
    """Also from a producer that was at the end of its data before the savepoint."""
    running = Running(3)
    barrier = Barrier(1, 0, savepoint=True, stops=True)
    running.put(0, END_OF_DATA, barrier)
    running.put(1, barrier, END_OF_DATA)
    running.put(2, barrier)
    assert running.run() == [barrier]
    running.task.mailbox.put(partial(running.task.notify_checkpoint_complete, 1))
    running.put(0, END_OF_INPUT)
    running.put(2, END_OF_DATA)
    assert running.run() == [END_OF_DATA]
    running.put(1, END_OF_INPUT)
    running.put(2, END_OF_INPUT)
    assert running.run() == [END_OF_INPUT]
    assert running.operator.told == [1]


@pytest.mark.parametrize("channels", [0, 2])
def test_task_restored_as_finished_forwards_barriers_until_its_results_are_processed(
    channels: int,
) -> None:
    """Without inputs it ends at once, else together with its producers, which had finished as
    well."""
    running = Running(channels, had_finished=True)
    running.is_busy = True
    for channel in range(channels):
        running.put(channel, Watermark(MAX_TIMESTAMP), END_OF_DATA)
    assert running.run() == [Watermark(MAX_TIMESTAMP), END_OF_DATA]
    barrier = Barrier(1, 0)
    if channels:
        for channel in range(channels):
            running.put(channel, barrier, END_OF_INPUT)
    else:
        running.task.mailbox.put(partial(running.task.trigger_checkpoint, barrier))
    assert running.run() == [barrier]
    assert running.reports == ["captured 1"]
    running.out.is_processed = True
    assert running.run() == [END_OF_INPUT]


def test_checkpoint_triggered_while_a_task_ends_precedes_the_end_of_input() -> None:
    running = Running()
    running.is_busy = True
    running.put(0, END_OF_INPUT)
    assert running.run() == [END_OF_DATA]
    running.out.is_processed = True
    task, barrier = running.task, Barrier(1, 0)

    def trigger_at_the_last_moment() -> None:
        task.mailbox.put(partial(task.trigger_checkpoint, barrier))

    task.mailbox.put(trigger_at_the_last_moment)
    assert running.run() == [barrier, END_OF_INPUT]


def test_draining_savepoint_does_not_finish_finished_operators_again() -> None:
    running = Running()
    running.operator.commits_with = 1
    running.put(0, END_OF_INPUT)
    running.run()
    running.task.trigger_checkpoint(Barrier(1, 0, savepoint=True, stops=True, drains=True))
    running.task.notify_checkpoint_complete(1)
    assert running.operator.told == ["finish", 1]
    running.run()
    assert running.task.finished
