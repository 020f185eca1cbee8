"""Watermarks of sources that read several splits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.clock import Clock
from flinkray.core.durations import Duration
from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.common import Time
from flinkray.datastream.connectors import FileSource, FixedSplitsEnumerator, Source
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block, Watermark, WatermarkStatus
from flinkray.streaming.sources.files import FileSplit
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    OfSplit,
    ReaderContext,
    SequentialReader,
    SourceReader,
    SplitEnumerator,
)
from flinkray.streaming.time.watermarks import PerElementWatermarks
from flinkray.testing.operator_harness import OperatorHarness, Record

BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v)


class Script(Source[Any, str]):
    """Gives what it is told: (split, values), or the name of a split that ends."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def get_boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context: Any, clock: Any) -> Any:
        return FixedSplitsEnumerator(context, [])

    def create_reader(self, context: Any) -> Any:
        return ScriptReader(context, self.steps)


class ScriptReader(SourceReader[str]):
    def __init__(self, context: Any, steps: list[Any]) -> None:
        super().__init__(context)
        self.steps = steps

    def add_splits(self, splits: Sequence[str]) -> None: ...

    def notify_no_more_splits(self) -> None: ...

    def split_id(self, split: str) -> str:
        return split

    def poll(self, max_records: int) -> Any:
        while self.steps and isinstance(self.steps[0], str):
            self.context.finish_split(self.steps.pop(0))
        if not self.steps:
            return NOTHING_NOW
        split, values = self.steps.pop(0)
        return OfSplit(split, Block(values))

    def snapshot_state(self, checkpoint_id: int) -> list[str]:
        return []


class Reading:
    """Of splits a and b, and what has come of it."""

    def __init__(
        self, strategy: WatermarkStrategy = BY_VALUE, splits: Sequence[str] = "ab"
    ) -> None:
        self.source = Script()
        self.operator = SourceOperator(self.source, strategy=strategy)
        self.harness = OperatorHarness(self.operator, auto_watermark_interval=50)
        self.operator.add_splits(splits)
        self.now = 0

    def time(self, *steps: Any) -> list[Any]:
        """The signs of time that follow when this was read, and 50 ms have gone."""
        return [element for element in self.all(*steps) if not isinstance(element, Record)]

    def all(self, *steps: Any) -> list[Any]:
        self.source.steps += steps
        while self.operator.emit_next() is not NOTHING_NOW:
            pass
        self.now += 50
        self.harness.processing_time(self.now)
        return self.harness.output()


def test_watermark_of_a_source_is_the_least_watermark_of_its_splits() -> None:
    reading = Reading()
    assert reading.time(("a", [100])) == []
    assert reading.time(("b", [30])) == [Watermark(29)]
    assert reading.time(("b", [70]), ("a", [200])) == [Watermark(69)]
    assert reading.time(("b", [500])) == [Watermark(199)]


def test_later_split_delays_the_watermark_of_a_source_but_does_not_lower_it() -> None:
    reading = Reading()
    assert reading.time(("a", [100]), ("b", [90])) == [Watermark(89)]
    reading.operator.add_splits(["c"])
    assert reading.time(("a", [200]), ("b", [200])) == []
    assert reading.time(("c", [10])) == []
    assert reading.time(("c", [150])) == [Watermark(149)]


def test_split_that_has_ended_does_not_delay_the_watermark_of_its_source() -> None:
    reading = Reading()
    assert reading.time(("a", [100]), ("b", [30])) == [Watermark(29)]
    assert reading.time("b") == [Watermark(99)]


def test_watermark_of_a_source_whose_last_split_ends_is_that_of_its_last_record() -> None:
    reading = Reading()
    assert reading.time(("a", [100]), ("b", [30]), "a", ("b", [80]), "b") == [Watermark(79)]
    reading.operator.add_splits(["c"])
    assert reading.time(("c", [300])) == [Watermark(299)]


def test_idle_split_does_not_delay_the_watermark_until_its_next_record() -> None:
    reading = Reading(BY_VALUE.with_idleness(Duration.of_millis(100)))
    assert reading.time(("a", [100])) == []
    assert reading.time(("a", [110])) == [Watermark(109)]  # b has had no record for 100 ms
    assert reading.time(("a", [300]), ("b", [120])) == [Watermark(119)]
    assert reading.time(("a", [400]), ("b", [130])) == [Watermark(129)]


def test_source_is_idle_when_all_its_splits_are_idle() -> None:
    reading = Reading(BY_VALUE.with_idleness(Duration.of_millis(100)))
    assert reading.time(("a", [100]), ("b", [50])) == [Watermark(49)]
    assert reading.time() == [WatermarkStatus(True)]
    assert reading.time(("b", [60])) == [WatermarkStatus(False), Watermark(59)]


def test_watermark_generated_on_a_record_waits_until_all_splits_have_reached_it() -> None:
    strategy = WatermarkStrategy.for_generator(PerElementWatermarks).with_timestamp_assigner(
        lambda value, _: value
    )
    reading = Reading(strategy)
    assert reading.all(("a", [5]), ("b", [2, 4, 9])) == [
        Record(5, 5),
        Record(2, 2),
        Watermark(1),
        Record(4, 4),
        Watermark(3),
        Record(9, 9),
        Watermark(4),
    ]


@pytest.mark.parametrize("restored", [False, True])
def test_assigned_file_that_is_not_read_yet_delays_the_watermark(
    tmp_path: Path, restored: bool
) -> None:
    """Two files are assigned to one reader if a job is restored with fewer subtasks."""
    paths = [tmp_path / "new.json", tmp_path / "old.json"]
    for path, time in zip(paths, (1000, 10), strict=True):
        path.write_text(f"{time}\n")
    splits = [FileSplit(str(path), 0) for path in paths]

    def reading(restore: Any = None) -> tuple[SourceOperator, OperatorHarness]:
        source = FileSource(tmp_path, file_format="json")
        operator = SourceOperator(source, strategy=BY_VALUE)
        return operator, OperatorHarness(operator, restore=restore, auto_watermark_interval=50)

    operator, h = reading()
    operator.add_splits(splits)
    if restored:
        operator, h = reading(h.snapshot())
    operator.no_more_splits()
    times = []
    for now in range(50, 1000, 50):
        if operator.emit_next() is END_OF_INPUT:
            break
        h.processing_time(now)
        times += h.output()
    h.processing_time(1000)
    times += h.output()
    assert [t for t in times if isinstance(t, Watermark)] == [Watermark(9)]


AT_ONCE = WatermarkStrategy.for_generator(PerElementWatermarks).with_timestamp_assigner(
    lambda value, _: int(value)
)
"""A watermark behind every record."""

Times = tuple[int, ...]


class Splits(Source[Any, Times]):
    """Each is the times of its records."""

    waits_for_splits = True

    def __init__(self, splits: Sequence[Times]) -> None:
        self.splits = splits

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Times], clock: Clock
    ) -> SplitEnumerator[Times]:
        return FixedSplitsEnumerator(context, self.splits)

    def create_reader(self, context: ReaderContext) -> SequentialReader[Times]:
        return _Reader(context)


class _Reader(SequentialReader[Times]):
    def open_split(self, split: Times) -> None:
        self._left = split

    def read(self, max_records: int) -> Any:
        if not self._left:
            return END_OF_INPUT
        first, *left = self._left
        self._left = tuple(left)
        return Block([first])

    def remaining(self) -> Times:
        return self._left


def reading(strategy: WatermarkStrategy = AT_ONCE, **arguments: Any) -> OperatorHarness:
    return OperatorHarness(SourceOperator(Splits(()), strategy=strategy), **arguments)


def read(harness: OperatorHarness) -> list[object]:
    """What comes until the reader waits for another split."""
    while isinstance(harness.operator.emit_next(), int):  # type: ignore[attr-defined]
        pass
    return list(harness.output())


def test_no_watermark_is_emitted_before_all_splits_are_assigned() -> None:
    harness = reading()
    harness.operator.add_splits([(7, 9)])  # type: ignore[attr-defined]
    assert read(harness) == [Record(7, 7), Record(9, 9)]
    harness.operator.add_splits([(3, 5)])  # type: ignore[attr-defined]
    harness.operator.no_more_splits()  # type: ignore[attr-defined]
    harness.processing_time(1000)
    assert harness.output() == [], "the second split may be of any time"
    assert read(harness) == [Record(3, 3), Watermark(2), Record(5, 5), Watermark(4)]
    harness.finish()
    assert harness.output() == [Watermark(MAX_TIMESTAMP)]


def test_no_watermark_is_emitted_while_a_split_waits_at_the_reader() -> None:
    """This happens after a restore with fewer readers."""
    harness = reading()
    harness.operator.add_splits([(7,), (3,)])  # type: ignore[attr-defined]
    harness.operator.no_more_splits()  # type: ignore[attr-defined]
    assert read(harness) == [Record(7, 7), Record(3, 3), Watermark(2)]


def test_watermarks_follow_the_records_read_if_the_strategy_waits_for_no_splits() -> None:
    harness = reading(AT_ONCE.without_waiting_for_splits())
    harness.operator.add_splits([(7,), (3,), (8,)])  # type: ignore[attr-defined]
    assert read(harness) == [
        Record(7, 7),
        Watermark(6),
        Record(3, 3),
        Record(8, 8),
        Watermark(7),
    ]


def test_restored_reader_that_still_has_a_split_requests_none_at_first() -> None:
    harness = reading()
    harness.operator.add_splits([(7, 8)])  # type: ignore[attr-defined]
    harness.operator.emit_next()  # type: ignore[attr-defined]
    restored = reading(restore=harness.snapshot())
    assert not restored.operator.reader_context.split_requested  # type: ignore[attr-defined]
    restored.operator.no_more_splits()  # type: ignore[attr-defined]
    assert read(restored) == [Record(8, 8), Watermark(7)]


class Telling(EnumeratorContext[int]):
    """Notes which readers are told that no split follows."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def current_parallelism(self) -> int:
        return 2

    def assign_split(self, split: int, subtask: int) -> None:
        """Nothing is noted."""

    def signal_no_more_splits(self, subtask: int) -> None:
        self.told.append(subtask)


def test_restored_reader_is_told_at_once_that_no_split_follows() -> None:
    """Otherwise its watermark would not advance until it has read its restored splits."""
    context = Telling()
    FixedSplitsEnumerator(context, [7]).add_reader(0)
    assert context.told == []
    enumerator = FixedSplitsEnumerator(context, [7])
    enumerator.restore([])
    enumerator.add_reader(1)
    assert context.told == [1]


def counted(
    env: StreamExecutionEnvironment, source: Source[Any], at_source: bool
) -> list[tuple[int, int]]:
    """Records by windows of 10 ms, which are given up as soon as they have fired."""
    if at_source:
        stream = env.from_source(source, AT_ONCE, "source")
    else:
        stream = env.from_source(
            source, WatermarkStrategy.no_watermarks(), "source"
        ).assign_timestamps_and_watermarks(AT_ONCE)
    counts = (
        stream.map(lambda value: (int(value) // 10, 1))
        .key_by(lambda value: value[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .reduce(lambda one, other: (one[0], one[1] + other[1]))
    )
    return sorted(counts.execute_and_collect())


@pytest.mark.parametrize("at_source", [True, False])
@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_windows_over_several_files_are_complete_in_any_reading_order(
    tmp_path: Path, parallelism: int, at_source: bool
) -> None:
    """Each file has records of all windows."""
    for file in range(3):
        (tmp_path / f"{file}.txt").write_text("".join(f"{n}\n" for n in range(file, 90, 3)))
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    result = counted(env, FileSource(str(tmp_path)), at_source)
    assert result == [(window, 10) for window in range(9)]
