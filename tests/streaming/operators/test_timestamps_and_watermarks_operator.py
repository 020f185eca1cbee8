"""The operator that assigns timestamps and makes watermarks."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.durations import Duration
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.timestamps import TimestampsAndWatermarksOperator
from flinkray.streaming.records.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    Columns,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.row import Row
from flinkray.streaming.time.watermarks import (
    PerElementWatermarks,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)
from flinkray.testing.operator_harness import OperatorHarness, Record
from tests.streaming.operators.contract import assert_failure_is_told, columns, unlike_five


def identity(value: Any, _: int) -> int:
    return int(value)


def harness(strategy: WatermarkStrategy, **context: Any) -> OperatorHarness:
    return OperatorHarness(
        TimestampsAndWatermarksOperator(strategy), auto_watermark_interval=50, **context
    )


def test_watermarks_are_emitted_at_the_interval_and_never_decrease() -> None:
    """ST-18"""
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(identity))
    h.process(3, 5, 4)
    assert h.output() == [Record(3, 3), Record(5, 5), Record(4, 4)]
    h.processing_time(50)
    assert h.output() == [Watermark(4)]
    h.process(1)
    h.processing_time(100)
    assert h.output() == [Record(1, 1)]
    h.process(9)
    h.processing_time(149)
    assert h.output() == [Record(9, 9)]
    h.processing_time(150)
    assert h.output() == [Watermark(8)]


def test_no_watermark_is_emitted_after_the_last_watermark() -> None:
    """ST-18: not even the watermark that is due when the input ends."""
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(identity))
    h.process(3)
    h.watermark(MAX_TIMESTAMP)
    assert h.output() == [Record(3, 3), Watermark(MAX_TIMESTAMP)]
    h.finish()
    assert h.output() == []


def test_no_watermark_is_emitted_before_the_first_record() -> None:
    """ST-18: it would be the smallest number, which is no progress."""
    h = harness(
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(20))
        .with_timestamp_assigner(identity)
    )  # fmt: skip
    h.processing_time(50)
    assert h.output() == []
    h.process(100, 90)
    h.processing_time(100)
    assert h.output()[-1] == Watermark(79)


def test_only_the_last_watermark_from_upstream_is_forwarded() -> None:
    """ST-18"""
    h = harness(WatermarkStrategy.no_watermarks().with_timestamp_assigner(identity))
    h.watermark(10)
    assert h.output() == []
    h.watermark(MAX_TIMESTAMP)
    assert h.output() == [Watermark(MAX_TIMESTAMP)]


def test_watermark_that_a_generator_emits_on_a_record_directly_follows_the_record() -> None:
    """ST-18"""

    class OnMultiplesOfThree(WatermarkGenerator):
        def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
            if event % 3 == 0:
                output.emit_watermark(event_timestamp)

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            return None

    strategy = WatermarkStrategy.for_generator(OnMultiplesOfThree)
    h = harness(strategy.with_timestamp_assigner(identity))
    h.process(1, 3, 2, 6, 5)
    assert h.output() == [
        Record(1, 1), Record(3, 3), Watermark(3),
        Record(2, 2), Record(6, 6), Watermark(6), Record(5, 5),
    ]  # fmt: skip


def test_per_element_watermark_is_one_less_than_the_latest_timestamp() -> None:
    strategy = WatermarkStrategy.for_generator(PerElementWatermarks)
    h = harness(strategy.with_timestamp_assigner(identity))
    h.process(0, 8, 4)
    assert h.output() == [
        Record(0, 0), Watermark(-1), Record(8, 8), Watermark(7), Record(4, 4),
    ]  # fmt: skip


def test_timestamp_assigner_gets_the_previous_timestamp() -> None:
    seen = []

    def assign(value: Any, before: int) -> int:
        seen.append(before)
        return 0

    h = harness(WatermarkStrategy.no_watermarks().with_timestamp_assigner(assign))
    h.process("a")
    h.process("b", at=7)
    assert seen == [MIN_TIMESTAMP, 7]


def test_stream_without_records_becomes_idle_until_its_next_record() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(identity)
    h = harness(strategy.with_idleness(Duration.of_millis(100)))
    h.process(1)
    h.processing_time(50)
    h.output()
    h.processing_time(100)
    assert h.output() == [WatermarkStatus(True)]
    h.processing_time(200)
    assert h.output() == []
    h.process(2)
    assert h.output() == [WatermarkStatus(False), Record(2, 2)]


def test_records_without_timestamp_and_assigner_are_refused() -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps())
    with pytest.raises(StreamError, match="with_timestamp_assigner"):
        h.process(1)
    h.process(1, at=5)
    assert h.output() == [Record(1, 5)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("us")])
def test_timestamp_column_gives_timestamps_and_the_batch_stays_columnar(kind: pa.DataType) -> None:
    """ST-18"""
    times = pa.array([5, 9, 7]).cast(pa.timestamp("ms")).cast(kind)
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t"))
    h.process_columns(Columns(pa.record_batch({"t": times, "v": [1, 2, 3]})))
    (batch,) = h.batches()
    assert isinstance(batch, Columns)
    assert np.array_equal(batch.timestamps, [5, 9, 7])  # type: ignore[arg-type]
    h.output()
    h.processing_time(50)
    assert h.output() == [Watermark(8)]


def test_missing_or_non_time_timestamp_column_is_refused_with_its_name() -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t"))
    with pytest.raises(StreamError, match="'t' holds string"):
        h.process_columns(Columns(pa.record_batch({"t": ["x"]})))
    with pytest.raises(StreamError, match="no column 't'"):
        h.process_columns(Columns(pa.record_batch({"u": [1]})))


BY_T = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_times_before_1970_are_rounded_down_to_milliseconds(unit: str) -> None:
    """In columns and in rows: half a millisecond before 1970 becomes -1."""
    micros = [-1500, -500, -1, 0, 999, 1500]
    times = pa.array(micros, pa.timestamp("us")).cast(pa.timestamp(unit))
    expected = [-2, -1, -1, 0, 0, 1]
    h = harness(BY_T)
    h.process_columns(Columns(pa.record_batch({"t": times})))
    assert [time for _, time in h.records()] == expected
    epoch = datetime.datetime(1970, 1, 1)
    h.process(*(Row(t=epoch + datetime.timedelta(microseconds=each)) for each in micros))
    assert [time for _, time in h.records()] == expected


def test_times_out_of_the_range_of_milliseconds_are_refused() -> None:
    for times in (pa.array([1 << 60], pa.timestamp("s")), pa.array([1 << 63], pa.uint64())):
        with pytest.raises(StreamError, match="column 't' holds what is no timestamp"):
            harness(BY_T).process_columns(Columns(pa.record_batch({"t": times})))


def test_timestamp_column_is_read_from_rows_and_dictionaries() -> None:
    """Also if a custom generator is called for each record."""
    zone = datetime.timezone(datetime.timedelta(hours=1))
    generator = WatermarkStrategy.for_generator(PerElementWatermarks).with_timestamp_column("t")
    for strategy in (BY_T, generator):
        h = harness(strategy)
        times = pa.array([5, 9]).cast(pa.timestamp("ms", "UTC"))
        h.process_columns(Columns(pa.record_batch({"t": times})))
        aware = datetime.datetime(1970, 1, 1, 1, 0, 0, 7000, zone)
        h.process(Row(t=aware), {"t": np.int32(8)})
        assert [time for _, time in h.records()] == [5, 9, 7, 8]


@pytest.mark.parametrize("value", [1.5, "12", None, datetime.date(2026, 1, 2)])
def test_non_time_value_in_the_timestamp_field_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(StreamError, match=r"field 't' holds .*, not timestamps or milliseconds"):
        harness(BY_T).process({"t": value})


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int16])
def test_numpy_timestamps_become_python_ints(kind: Any) -> None:
    """NumPy integers overflow: a window of 100 milliseconds that contains time 50 would be
    empty."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    h = harness(strategy.with_timestamp_assigner(lambda value, _: kind(value)))
    h.process(50, 70)
    records = h.records()
    assert records == [(50, 50), (70, 70)]
    assert {type(time) for _, time in records} == {int}


def test_timestamp_assigner_gets_columns_as_rows() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    h = harness(strategy.with_timestamp_assigner(lambda row, _: row.t))
    h.process_columns(columns(t=[5, 7]))
    h.processing_time(50)
    *records, watermark = h.output()
    assert [record.timestamp for record in records] == [5, 7]
    assert watermark == Watermark(6)


def test_idleness_of_the_input_of_a_watermark_operator_is_not_forwarded() -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(identity))
    h.status(True)
    h.status(False)
    assert h.output() == []


def test_watermark_that_was_not_due_yet_is_emitted_at_the_end_of_input() -> None:
    h = harness(WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(identity))
    h.process(8)
    h.output()
    h.finish()
    assert h.output() == [Watermark(7)]


def test_batch_mode_assigns_timestamps_and_emits_only_the_last_watermark() -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(identity)
    operator = TimestampsAndWatermarksOperator(strategy, progressive=False)
    h = OperatorHarness(operator, auto_watermark_interval=50)
    h.process(8)
    h.processing_time(500)
    h.finish()
    h.watermark(MAX_TIMESTAMP)
    assert h.output() == [Record(8, 8), Watermark(MAX_TIMESTAMP)]


def test_records_without_timestamps_are_forwarded_if_there_is_no_assigner() -> None:
    h = harness(WatermarkStrategy.no_watermarks())
    h.process(3, 5)
    h.process_columns(columns(x=[7]))
    h.processing_time(500)
    h.watermark(4)
    h.watermark(MAX_TIMESTAMP)
    assert h.output() == [
        Record(3), Record(5), Record(Row(x=7)), Watermark(MAX_TIMESTAMP),
    ]  # fmt: skip


def test_error_in_the_timestamp_assigner_names_the_record() -> None:
    strategy = WatermarkStrategy.no_watermarks()
    operator = TimestampsAndWatermarksOperator(
        strategy.with_timestamp_assigner(lambda value, _: unlike_five(value))
    )
    assert_failure_is_told(operator, 4, 5, 6, record=5)


def test_error_in_the_watermark_generator_names_the_record() -> None:
    class Fails(WatermarkGenerator):
        def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
            unlike_five(event)

        def on_periodic_emit(self, output: WatermarkOutput) -> None:
            return None

    operator = TimestampsAndWatermarksOperator(WatermarkStrategy.for_generator(Fails))
    assert_failure_is_told(operator, 4, 5, 6, at=[1, 2, 3], record=5)
