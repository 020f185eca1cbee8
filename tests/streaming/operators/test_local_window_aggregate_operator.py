"""What tasks put together before the exchange by key gives the windows that all records give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.streaming.columnar.local_aggregate import LocalWindowAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes, is_part
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import (
    IDLE,
    MAX_TIMESTAMP,
    Barrier,
    Columns,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.row import Row
from flinkray.streaming.time.combined_watermarks import ValveOutput, WatermarkValve
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import columns

TUMBLING = PaneTimes(10, 10, 0)
AGGREGATES = [
    ColumnAggregate("n", "count"),
    *(ColumnAggregate(how, how, "v") for how in ("sum", "min", "max", "mean")),
]
KEYS = {
    "int": (st.integers(-3, 3), pa.int64()),
    "text or null": (st.sampled_from(["a", "b", None]), pa.string()),
    "dictionary": (st.sampled_from(["a", "b"]), pa.dictionary(pa.int32(), pa.string())),
}
NUMBERS = {
    "int8": (st.integers(-128, 127), pa.int8()),
    "uint64": (st.integers(0, 2**64 - 1), pa.uint64()),
    "float": (st.integers(-(2**20), 2**20).map(float) | st.just(float("nan")), pa.float64()),
}


def local(times: PaneTimes = TUMBLING, **limits: int) -> OperatorHarness:
    return OperatorHarness(LocalWindowAggregateOperator(times, AGGREGATES, Keys("k"), **limits))


def final(times: PaneTimes) -> OperatorHarness:
    return OperatorHarness(WindowAggregateOperator(times, AGGREGATES, Keys("k")), keyed=True)


def columns_of(h: OperatorHarness) -> list[Columns]:
    batches = []
    for each in h.batches():
        assert isinstance(each, Columns)
        batches.append(each)
    return batches


def late(h: OperatorHarness) -> int:
    count: int = h.operator.context.metrics.counter("numLateRecordsDropped").get_count()
    return count


class Two:
    """A subtask that two feed, each with a watermark of its own."""

    def __init__(self, times: PaneTimes) -> None:
        self.harness = final(times)
        self._watermarks = [-(10**6)] * 2

    def add(self, batches: list[Columns]) -> None:
        for batch in batches:
            self.harness.process_columns(batch)

    def watermark(self, feeder: int, timestamp: int) -> None:
        before = min(self._watermarks)
        self._watermarks[feeder] = max(timestamp, self._watermarks[feeder])
        if min(self._watermarks) > before:
            self.harness.watermark(min(self._watermarks))

    def results(self) -> Iterator[tuple[str, int | None]]:
        """Texts, as NaN is not NaN, in no particular order of keys."""
        return iter(sorted((repr(tuple(row)), time) for row, time in self.harness.records()))


@pytest.mark.parametrize("numbers", list(NUMBERS))
@pytest.mark.parametrize("kind", list(KEYS))
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_windows_from_local_panes_of_two_tasks_equal_those_of_all_records(
    kind: str, numbers: str, data: Any
) -> None:
    some_keys, key_type = KEYS[kind]
    some_numbers, number_type = NUMBERS[numbers]
    row = st.tuples(some_keys, some_numbers, st.integers(-30, 60))
    records = st.lists(row, min_size=1, max_size=8)
    steps = data.draw(
        st.lists(st.tuples(st.integers(0, 1), records | st.integers(-20, 70)), max_size=12)
    )
    size, slide = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 12)))
    times = PaneTimes(size, slide, data.draw(st.integers(0, slide - 1)))
    most = data.draw(st.sampled_from([1, 1 << 20]))
    halves = [local(times, most_numbers=most) for _ in range(2)]
    all_records, parts = Two(times), Two(times)
    at_most = [-(10**6)] * 2
    for feeder, step in [*steps, (0, MAX_TIMESTAMP), (1, MAX_TIMESTAMP)]:
        half = halves[feeder]
        if isinstance(step, int):
            if step <= at_most[feeder]:
                continue  # time never goes back
            at_most[feeder] = step
            half.watermark(step)
            parts.add(columns_of(half))
            for each in (all_records, parts):
                each.watermark(feeder, step)
            continue
        keys, values, at = zip(*step, strict=True)
        batch = columns(at, k=pa.array(keys, key_type), v=pa.array(values, number_type))
        all_records.add([batch])
        half.process_columns(batch)
        parts.add(columns_of(half))
    assert list(parts.results()) == list(all_records.results())
    if slide <= size:  # else some records are in no window
        assert late(parts.harness) == late(all_records.harness)


def rows_of(h: OperatorHarness) -> list[tuple[Any, ...]]:
    """Key, begin of the pane, count and sum of all parts that were put out since."""
    found = []
    for each in columns_of(h):
        assert is_part(each.batch)
        assert each.timestamps is not None
        rows = each.batch.select(["k", "__count_of_part", "sum v"]).to_pylist()
        for row, time in zip(rows, each.timestamps.tolist(), strict=True):
            found.append((row["k"], time, row["__count_of_part"], row["sum v"]))
    return found


def test_local_pane_emits_one_row_per_key_before_the_watermark_that_ends_it() -> None:
    h = local()
    h.process_columns(columns([1, 12, 3], k=["a", "a", "b"], v=[1, 2, 3]))
    h.process_columns(columns([4], k=["a"], v=[4]))
    h.watermark(8)
    assert h.output() == [Watermark(8)]
    h.watermark(9)
    assert h.output()[-1] == Watermark(9)
    assert rows_of(h) == [("a", 0, 2, 5), ("b", 0, 1, 3)]
    h.watermark(MAX_TIMESTAMP)
    assert rows_of(h) == [("a", 10, 1, 2)]


@pytest.mark.parametrize("what", ["barrier", "idleness", "end"])
def test_local_panes_are_emitted_before_a_barrier_at_idleness_and_at_the_end(what: str) -> None:
    h = local()
    h.process_columns(columns([1], k=["a"], v=[1]))
    if what == "barrier":
        h.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
    elif what == "idleness":
        h.status(True)
        assert h.output()[-1] == IDLE
    else:
        h.finish()
    assert rows_of(h) == [("a", 0, 1, 1)]
    h.process_columns(columns([2], k=["a"], v=[2]))
    h.watermark(9)
    assert rows_of(h) == [("a", 0, 1, 2)]


def test_records_late_only_for_the_local_task_are_forwarded_at_once() -> None:
    """After the exchange, where other tasks delay the watermark, they may be in time."""
    h = local()
    h.watermark(12)
    h.process_columns(columns([5, 15], k=["a", "a"], v=[1, 2]))
    assert rows_of(h) == [("a", 0, 1, 1)]


def test_records_of_a_formerly_idle_task_are_not_late() -> None:
    halves, valve, behind = [local(), local()], WatermarkValve(2), final(TUMBLING)

    def pass_on(feeder: int) -> None:
        for batch in columns_of(halves[feeder]):
            behind.process_columns(batch)
        for element in halves[feeder].output():
            if isinstance(element, Watermark):
                tell(valve.watermark(feeder, element.timestamp))
            elif isinstance(element, WatermarkStatus):
                tell(valve.status(feeder, element == IDLE))

    def tell(output: ValveOutput) -> None:
        output.tell(lambda timestamp: behind.watermark(timestamp), lambda _: None)

    halves[1].watermark(5)
    halves[1].status(True)
    pass_on(1)
    halves[0].watermark(100)
    pass_on(0)
    halves[1].status(False)
    halves[1].watermark(95)
    halves[1].process_columns(columns([105, 105], k=["a", "a"], v=[1, 2]))
    pass_on(1)
    halves[0].watermark(109)
    pass_on(0)
    assert [row["n"] for row, _ in behind.records()] == [2]
    assert late(behind) == 0


def test_batches_are_forwarded_unaggregated_if_keys_of_the_sample_hardly_repeat() -> None:
    h = local(sample=4)
    h.process_columns(columns([1, 2, 3], k=["a", "b", "c"], v=[1, 2, 3]))
    h.watermark(9)
    assert len(rows_of(h)) == 3
    h.process_columns(columns([11, 12, 25], k=["a", "b", "c"], v=[1, 2, 3]))
    h.watermark(19)
    assert rows_of(h) == [("a", 10, 1, 1), ("b", 10, 1, 2), ("c", 20, 1, 3)]
    batch = columns([31, 32], k=["a", "a"], v=[1, 2])
    h.process_columns(batch)
    assert h.batches() == [batch]


def test_local_panes_are_forwarded_when_they_reach_their_memory_limit() -> None:
    h = local(most_numbers=3)
    h.process_columns(columns([1, 11], k=["a", "a"], v=[1, 2]))
    assert rows_of(h) == []
    h.process_columns(columns([2], k=["b"], v=[3]))
    assert rows_of(h) == [("a", 0, 1, 1), ("b", 0, 1, 3), ("a", 10, 1, 2)]


def test_rows_and_columns_without_timestamps_are_forwarded_by_local_windows() -> None:
    h = local()
    row = Row.of(["k", "v"], ["a", 1])
    h.process(row, at=3)
    untimed = columns(k=["a"], v=[1])
    h.process_columns(untimed)
    assert h.values() == [row, *untimed.to_block().values]
    empty = Columns(untimed.batch.slice(0, 0), np.empty(0, np.int64))
    h.process_columns(empty)
    assert h.batches()[-1] is empty


def test_column_that_cannot_be_aggregated_is_refused_with_its_name() -> None:
    with pytest.raises(StreamError, match="no column 'k' to key by"):
        local().process_columns(columns([1], v=[1]))
    with pytest.raises(StreamError, match="no column 'v' to aggregate"):
        local().process_columns(columns([1], k=[1]))
    with pytest.raises(StreamError, match="column 'v' has 1 nulls"):
        local().process_columns(columns([1, 1], k=[1, 1], v=[1, None]))
