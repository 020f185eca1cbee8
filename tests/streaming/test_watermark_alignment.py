"""Sources of a group wait for the slowest: in event time, not in records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.common import Duration
from flinkray.datastream.connectors import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    CallbackSink,
    DiscardingSink,
    FixedSplitsEnumerator,
    SequentialReader,
    Sink,
    Source,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block
from flinkray.streaming.time.watermark_alignment import (
    AlignedMember,
    Alignment,
    AlignmentGroups,
    TaskAlignment,
)
from flinkray.testing.manual_clock import ManualClock

RATE = 10
"""Records a second of every source."""
COUNT = 60


class Paced(Source[Any, range]):
    """Records at a rate; what was missed while it had to wait is not made up for."""

    def __init__(self, make: Callable[[int], Any], count: int, rate: float = RATE) -> None:
        self._make, self._count, self._interval = make, count, 1 / rate

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: Any, clock: Any) -> Any:
        parts, each = context.current_parallelism(), self._count // context.current_parallelism()
        return FixedSplitsEnumerator(
            context, [range(part * each, (part + 1) * each) for part in range(parts)]
        )

    def create_reader(self, context: Any) -> Any:
        return PacedReader(context, self._make, self._interval)


class InSplits(Paced):
    """Of three splits for each reader: there are no watermarks before the last is handed out."""

    waits_for_splits = True

    def create_enumerator(self, context: Any, clock: Any) -> Any:
        third = self._count // 3
        splits = [range(part * third, (part + 1) * third) for part in range(3)]
        return FixedSplitsEnumerator(context, splits)


class PacedReader(SequentialReader[range]):
    def __init__(self, context: Any, make: Callable[[int], Any], interval: float) -> None:
        super().__init__(context)
        self._make, self._interval = make, interval
        self._next: float = context.clock.time() + interval

    def open_split(self, split: range) -> None:
        self._left = split

    def read(self, max_records: int) -> Any:
        if not self._left:
            return END_OF_INPUT
        if self.context.clock.time() < self._next:
            return NOTHING_NOW
        self._next = self.context.clock.time() + self._interval
        number, self._left = self._left[0], self._left[1:]
        return Block([self._make(number)])

    def next_poll_time(self) -> float | None:
        return self._next

    def remaining(self) -> range:
        return self._left


def aligned(
    step: int, group: str = "g", drift: int = 1000, interval: int = 100
) -> WatermarkStrategy:
    """Record n has the event time n * step."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: value[1] * step
    )
    return strategy.with_watermark_alignment(
        group, Duration.of_millis(drift), Duration.of_millis(interval)
    )


class Race:
    """Two sources with equal rates, of which *fast* moves ten times as fast in event time."""

    def __init__(
        self,
        fast: WatermarkStrategy,
        slow: WatermarkStrategy,
        slow_count: int = COUNT,
        kind: type[Paced] = Paced,
    ) -> None:
        self.clock = ManualClock()
        self.env = StreamExecutionEnvironment(clock=self.clock)
        self.env.get_config().set_auto_watermark_interval(50)
        self.times: dict[str, list[float]] = {"fast": [], "slow": []}
        for name, strategy, count in (("fast", fast, COUNT), ("slow", slow, slow_count)):
            source = kind(self._numbered(name), count)
            self.env.from_source(source, strategy, name).sink_to(CallbackSink(self._take))

    @staticmethod
    def _numbered(name: str) -> Callable[[int], tuple[str, int]]:
        return lambda n: (name, n)

    def _take(self, value: tuple[str, int]) -> None:
        self.times[value[0]].append(self.clock.time())

    def run(self) -> dict[str, list[float]]:
        self.env.execute()
        return self.times


@pytest.mark.parametrize("kind", [Paced, InSplits])
def test_source_that_is_ahead_waits_for_the_slowest_of_its_group(kind: type[Paced]) -> None:
    times = Race(aligned(1000), aligned(100), kind=kind).run()
    # Until the slow one ends, after 6 s, it goes as fast as the clock; the other one may be a
    # second ahead of it, and what it reads until watermarks are compared.
    waited = [when for when in times["fast"] if when < 6]
    assert 6 <= len(waited) <= 9
    assert all(number <= when + 2.5 for number, when in enumerate(waited))
    assert times["slow"] == pytest.approx([(n + 1) / RATE for n in range(COUNT)], abs=0.1)
    assert len(times["fast"]) == COUNT


def test_sources_of_different_groups_do_not_wait_for_each_other() -> None:
    times = Race(aligned(1000, "a"), aligned(100, "b")).run()
    assert times["fast"] == pytest.approx([(n + 1) / RATE for n in range(COUNT)], abs=0.1)


def test_ended_source_does_not_delay_other_sources() -> None:
    times = Race(aligned(1000), aligned(100), slow_count=10).run()
    # From the end of the slow one (1 s) on, the fast one reads at its rate again.
    assert times["fast"][-1] < 1.5 + COUNT / RATE


@pytest.mark.parametrize(("kind", "number"), [(Paced, 2), (InSplits, 3)])
def test_idle_source_does_not_delay_other_sources(kind: type[Paced], number: int) -> None:
    """A source without records for half a second is ignored until its next record."""
    idle = aligned(100).with_idleness(Duration.of_millis(500))
    race = Race(aligned(1000), idle, slow_count=0)
    source = kind(lambda n: ("slow", n), number, 0.1)  # at 10 s, 20 s, …
    race.env.from_source(source, idle, "seldom").sink_to(CallbackSink(race._take))
    times = race.run()
    assert times["fast"][-1] <= COUNT / RATE + 0.1
    assert times["slow"] == pytest.approx([10, 20, 30][:number], abs=0.1)


def test_source_that_waits_for_alignment_does_not_become_idle() -> None:
    """Otherwise windows after it would end without the records it has still to read."""
    race = Race(aligned(1000).with_idleness(Duration.of_millis(300)), aligned(100))
    graph = race.env.get_stream_graph()
    job = LocalJob(graph, race.clock)
    (fast, *_), was_paused = job.tasks, False
    assert isinstance(fast.head, SourceOperator)
    stamping = fast.head.stamping
    assert stamping is not None
    while not job.finished and race.clock.time() < 4:
        job.advance()
        was_paused = was_paused or fast.head.paused
        assert not stamping._emitter._idle
    assert was_paused
    job.close()


def test_subtasks_of_the_same_source_wait_for_each_other() -> None:
    clock = ManualClock()
    env = StreamExecutionEnvironment(clock=clock).set_parallelism(2)
    env.get_config().set_auto_watermark_interval(50)
    seen: list[tuple[int, float]] = []
    # Subtask 0 reads 0 to 29 in 3 s, subtask 1 reads 30 to 59, which are seconds apart.
    source = Paced(lambda n: n, COUNT)
    strategy = aligned(1).with_timestamp_assigner(
        lambda n, _: n * 100 if n < 30 else (n - 30) * 1000
    )
    env.from_source(source, strategy, "numbers").sink_to(
        CallbackSink(lambda n: seen.append((n, clock.time())))
    )
    env.execute()
    until_then = [(n - 30, when) for n, when in seen if n >= 30 and when < 3]
    assert 3 <= len(until_then) <= 6
    assert all(second <= when + 2.5 for second, when in until_then)
    assert dict(seen)[29] == pytest.approx(3, abs=0.1)


def test_alignment_strategy_assigned_directly_after_a_source_makes_it_wait() -> None:
    expected = Race(aligned(1000), aligned(100)).run()
    env = StreamExecutionEnvironment(clock=(clock := ManualClock()))
    env.get_config().set_auto_watermark_interval(50)
    times: list[float] = []
    sinks: list[Sink[Any]] = [CallbackSink(lambda _: times.append(clock.time())), DiscardingSink()]
    for step, sink in zip((1000, 100), sinks, strict=True):
        numbers = env.from_source(Paced(lambda n: ("x", n), COUNT))
        numbers.assign_timestamps_and_watermarks(aligned(step)).sink_to(sink)
    env.execute()
    assert times == pytest.approx(expected["fast"], abs=0.1)


def test_alignment_strategy_that_cannot_reach_its_source_is_refused() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_sequence(0, 9).map(lambda n: ("x", n)).rebalance().map(lambda v: v)
    numbers.set_parallelism(2).assign_timestamps_and_watermarks(aligned(1)).set_parallelism(2)
    with pytest.raises(StreamError, match="give the strategy with watermark alignment to from_so"):
        env.execute()


def test_sources_in_batch_mode_do_not_wait_for_alignment() -> None:
    from flinkray.datastream import RuntimeExecutionMode

    race = Race(aligned(1000), aligned(100))
    race.env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    times = race.run()
    assert times["fast"] == pytest.approx([(n + 1) / RATE for n in range(COUNT)], abs=0.1)


# --- the parts ------------------------------------------------------------------------------------


def test_least_watermark_is_computed_over_all_members_of_the_group() -> None:
    groups = AlignmentGroups()
    assert groups.report("g", "a", 50) == 50
    assert groups.report("g", "b", 30) == 30
    assert groups.report("other", "c", 1) == 1
    assert groups.report("g", "b", 70) == 50
    assert groups.report("g", "a", MAX_TIMESTAMP) == 70


def test_failed_member_does_not_delay_other_members() -> None:
    groups = AlignmentGroups()
    groups.report("g", "a#0", 10)
    groups.report("g", "a#1", 20)
    groups.forget("a")
    assert groups.report("g", "b", 30) == 30


def test_member_waits_only_when_it_is_ahead_by_more_than_its_own_drift() -> None:
    told: list[tuple[str, str, int]] = []
    task = TaskAlignment("t", lambda *report: told.append(report))
    near, far = task.join(Alignment("g", 10, 100)), task.join(Alignment("g", 1000, 100))
    near.report()
    assert told == []  # it had no watermark yet
    near.on_watermark(40)
    far.on_watermark(500)
    near.report()
    far.report()
    assert told == [("g", "t#0", 40), ("g", "t#1", 500)]
    task.announce("other", 0)
    assert not task.paused
    task.announce("g", 30)
    assert not task.paused
    task.announce("g", 29)
    assert (near.ahead, far.ahead, task.paused) == (True, False, True)
    near.idle = True
    assert not task.paused
    near.report()
    assert told[-1] == ("g", "t#0", MAX_TIMESTAMP)


def test_least_watermark_plus_drift_above_the_maximum_does_not_overflow() -> None:
    member = AlignedMember(Alignment("g", 10, 100), "m", lambda *_: None)
    member.on_least(MAX_TIMESTAMP)
    member.on_watermark(MAX_TIMESTAMP)
    assert not member.ahead


@pytest.mark.parametrize(("drift", "interval"), [(-1, 100), (1, 0), (1, -5)])
def test_negative_drift_and_interval_of_zero_are_refused(drift: int, interval: int) -> None:
    with pytest.raises(ValueError, match="must"):
        WatermarkStrategy.no_watermarks().with_watermark_alignment("g", drift, interval)
