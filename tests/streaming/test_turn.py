"""How much work makes a portion, by how long the work before took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.streaming.functions.functions import FlatMapFunction, MapFunction
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.operators.basic import FlatMapOperator, MapOperator
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.program.transformations import (
    GraphSettings,
    OperatorTransformation,
    PartitionTransformation,
    build_graph,
)
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.partitioners import RebalancePartitioner
from flinkray.streaming.sinks.simple import CallbackSink
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.sources.collection import NumberSequenceSource
from flinkray.streaming.time.turn import TARGET, Portion, Turn
from flinkray.testing.manual_clock import ManualClock

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


def test_number_of_records_between_pauses_is_large_if_time_does_not_depend_on_it() -> None:
    assert sizes(8, lambda _, count: 5 * TARGET)[-1] == 4096


def test_number_of_records_between_pauses_falls_when_time_begins_to_depend_on_it() -> None:
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


def test_function_that_waits_is_paused_after_each_record() -> None:
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
