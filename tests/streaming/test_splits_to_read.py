"""Splits that are read one after the other: time waits for those that nobody reads yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.clock import Clock
from flinkray.datastream import StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.common import Time
from flinkray.datastream.connectors import FileSource, FixedSplitsEnumerator
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Block, Watermark
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    SequentialReader,
    Source,
    SplitEnumerator,
)
from flinkray.streaming.time.watermarks import PerElementWatermarks
from flinkray.testing.operator_harness import OperatorHarness, Record

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


def test_without_waiting_for_splits_watermarks_follow_the_records_read() -> None:
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
