"""The operator that reads a source, with the timestamps and watermarks it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.durations import Duration
from flinkray.datastream import WatermarkStrategy
from flinkray.datastream.connectors import (
    CollectionSource,
    FixedSplitsEnumerator,
    SequentialReader,
    Source,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.source import SourceOperator
from flinkray.streaming.records.elements import (
    MAX_TIMESTAMP,
    Block,
    Columns,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, Boundedness, SourceHold
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import columns, failure, unlike_five

BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v)
BY_SOURCE = WatermarkStrategy.for_monotonous_timestamps()


class Batches(Source[Any, int]):
    """Gives batches as they are."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(self, context: Any, clock: Any) -> Any:
        return FixedSplitsEnumerator(context, [0])

    def create_reader(self, context: Any) -> Any:
        return BatchesReader(context, self.batches)


class BatchesReader(SequentialReader[int]):
    def __init__(self, context: Any, batches: Any) -> None:
        super().__init__(context)
        self._batches = list(batches)

    def open_split(self, split: int) -> None:
        del self._batches[:split]

    def read(self, max_records: int) -> Any:
        return self._batches.pop(0) if self._batches else END_OF_INPUT

    def remaining(self) -> int:
        return 0


def run(operator: SourceOperator, hold: SourceHold | None = None) -> OperatorHarness:
    h = OperatorHarness(operator, auto_watermark_interval=50, hold=hold)
    operator.reader.add_splits([0])
    operator.reader.notify_no_more_splits()
    return h


def test_source_assigns_timestamps_and_watermarks_of_its_strategy() -> None:
    operator = SourceOperator(Batches(Block([3, 8])), strategy=BY_VALUE)
    h = run(operator)
    assert operator.emit_next() == 2
    h.processing_time(50)
    assert h.output() == [Record(3, 3), Record(8, 8), Watermark(7)]
    assert operator.emit_next() is END_OF_INPUT
    h.finish()
    assert h.output() == [Watermark(MAX_TIMESTAMP)]


def test_draining_a_job_raises_an_error_if_a_source_has_not_been_read_completely() -> None:
    """Stopping the job with drain does this."""
    source = Batches(Block([3]))
    source.is_needed_whole = True
    operator = SourceOperator(source)
    h = run(operator)
    operator.emit_next()
    with pytest.raises(StreamError, match="Stop the job without draining it"):
        h.finish()
    assert h.output() == [Record(3, None)]
    assert operator.emit_next() is END_OF_INPUT
    h.finish()
    assert h.output() == [Watermark(MAX_TIMESTAMP)]


def test_records_keep_the_timestamps_of_their_source() -> None:
    batches = (
        Block(["a"], [10]),
        Columns(pa.record_batch({"x": [1]}), np.array([20], np.int64)),
        Block(["untimed"]),
        Columns(pa.record_batch({"x": [2]})),
    )
    operator = SourceOperator(Batches(*batches), strategy=BY_SOURCE)
    h = run(operator)
    for _ in batches:
        operator.emit_next()
    h.processing_time(50)
    *records, watermark = h.output()
    assert [record.timestamp for record in records] == [10, 20, None, None]
    assert watermark == Watermark(19)


def test_source_in_batch_mode_emits_only_the_last_watermark() -> None:
    operator = SourceOperator(Batches(Block([3, 8])), strategy=BY_VALUE, progressive=False)
    h = run(operator)
    operator.emit_next()
    h.processing_time(500)
    h.finish()
    assert h.output() == [Record(3, 3), Record(8, 8), Watermark(MAX_TIMESTAMP)]


def test_source_held_for_spark_starts_paused_and_emits_records_only_when_resumed() -> None:
    hold = SourceHold()
    operator = SourceOperator(Batches(Block([3]), Block([8])))
    h = run(operator, hold)
    assert operator.emit_next() is NOTHING_NOW
    hold.tell(False)
    assert operator.emit_next() == 1
    hold.tell(True)
    assert operator.emit_next() is NOTHING_NOW
    assert h.values() == [3]
    hold.tell(False)
    assert operator.emit_next() == 1
    assert operator.emit_next() is END_OF_INPUT


def test_source_paused_for_spark_emits_the_rest_of_its_current_batch() -> None:
    """Otherwise no checkpoint could begin."""
    hold = SourceHold()
    hold.tell(False)
    operator = SourceOperator(Batches(Block([3, 8])))
    h = run(operator, hold)
    operator.emit_next(1)
    hold.tell(True)
    assert operator.has_rest
    assert operator.emit_next(1) == 1
    assert h.values() == [3, 8]


def test_source_paused_for_spark_does_not_become_idle() -> None:
    """Otherwise windows would end without the records that the source has still to read."""
    hold = SourceHold()
    strategy = BY_VALUE.with_idleness(Duration.of_millis(100))
    operator = SourceOperator(Batches(Block([3])), strategy=strategy)
    h = run(operator, hold)
    h.processing_time(150)
    assert h.output() == []
    hold.tell(False)
    h.processing_time(300)
    assert h.output() == [WatermarkStatus(True)]


def test_position_of_a_source_batch_is_the_number_of_records_before_it() -> None:
    operator = SourceOperator(Batches(Block([1, 2]), Block([3])))
    h = run(operator)
    operator.emit_next()
    operator.emit_next()
    assert [batch.origin and batch.origin.position for batch in h.batches()] == [0, 2]


def test_source_without_strategy_emits_batches_unchanged_and_a_last_watermark() -> None:
    given = columns([7], x=[1])
    operator = SourceOperator(Batches(Block([1], [5]), given))
    h = run(operator)
    for _ in range(2):
        operator.emit_next()
    block, found = h.batches()
    assert (block.values, block.timestamps) == ([1], [5])  # type: ignore[union-attr]
    assert found is given
    h.output()
    assert operator.emit_next() is END_OF_INPUT
    h.finish()
    assert h.output() == [Watermark(MAX_TIMESTAMP)]


def test_source_without_records_becomes_idle_until_its_next_record() -> None:
    strategy = BY_VALUE.with_idleness(Duration.of_millis(100))
    operator = SourceOperator(Batches(Block([3])), strategy=strategy)
    h = run(operator)
    h.processing_time(100)
    assert h.output() == [WatermarkStatus(True)]
    operator.emit_next()
    assert h.output() == [WatermarkStatus(False), Record(3, 3)]


def test_restored_source_continues_at_the_position_of_the_snapshot() -> None:
    def fresh(restore: Any = None) -> tuple[SourceOperator, OperatorHarness]:
        operator = SourceOperator(CollectionSource("abcdef"), block_records=2)
        return operator, OperatorHarness(operator, restore=restore)

    operator, h = fresh()
    operator.reader.add_splits([Slice(0, 5), Slice(5, 6)])
    operator.emit_next()
    snapshot = h.snapshot()
    operator.emit_next()
    restored, again = fresh(snapshot)
    restored.reader.notify_no_more_splits()
    while restored.emit_next() is not END_OF_INPUT:
        pass
    assert again.values() == ["c", "d", "e", "f"]


def test_error_of_a_source_names_the_number_of_records_read_before() -> None:
    class Failing(Batches):
        def create_reader(self, context: Any) -> Any:
            return FailingReader(context, self.batches)

    class FailingReader(BatchesReader):
        def read(self, max_records: int) -> Any:
            batch = super().read(max_records)
            for value in batch.values:
                unlike_five(value)
            return batch

    operator = SourceOperator(Failing(Block([3, 4]), Block([5])))

    def act(h: OperatorHarness) -> None:
        operator.reader.add_splits([0])
        for _ in range(2):
            operator.emit_next()

    error = failure(operator, act)
    assert error.occasion == "reading what follows its first 2 records"
