"""Operators that keep columns, as random stories: batches, watermarks, whole snapshots and changes,
failures, other parallelism.  Results are those of a naive evaluation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.state.snapshots import KeyedSnapshot
from flinkray.streaming.columnar.keyed_aggregate import KeyedAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator, WindowJoinOperator
from flinkray.streaming.operators.operator import OperatorStateCapture
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from tests.streaming.stories import Rolling, Rows, Story, Windows
from tests.streaming.subtasks_of_one import Subtasks

KEYS = {
    pa.int64(): st.integers(-3, 6),
    pa.string(): st.sampled_from(["a", "b", "c", "d", "e", "ü"]),
    pa.decimal128(5, 1): st.integers(0, 4),
}
VALUES = {
    pa.int16(): st.integers(-99, 99),
    pa.int64(): st.integers(-(2**40), 2**40),
    pa.float64(): st.integers(-99, 99).map(lambda n: n / 4),
}
OTHERS = {pa.null(): st.none(), pa.string(): st.sampled_from(["x", "y", None])}
SNAPSHOTS = st.tuples(st.just("snapshot"), st.integers(0, 3), st.booleans())
RESTORES = st.tuples(st.just("restore"), st.integers(1, 4))
RESCALES = st.tuples(st.just("rescale"), st.integers(1, 4))
STORIES = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def batches(key: pa.DataType, times: bool) -> st.SearchStrategy[Any]:
    """(columns, whether they come as rows)"""

    @st.composite
    def draw(draw: Any) -> Any:
        size = draw(st.integers(1, 6))
        kinds = {"k": (KEYS[key], key)}
        columns: Any = (("v", VALUES), ("other", OTHERS))
        for name, some in columns:
            kind = draw(st.sampled_from(list(some)))
            kinds[name] = some[kind], kind
        fields = {
            name: pa.array(draw(st.lists(some, min_size=size, max_size=size)), kind)
            for name, (some, kind) in kinds.items()
        }
        at = None
        if times:
            of_rows = draw(st.lists(st.integers(-20, 60), min_size=size, max_size=size))
            at = np.array(of_rows, np.int64)
        return "batch", Columns(pa.record_batch(fields), at)

    return draw()


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_rolling_aggregates_of_columns_continue_after_a_restore_from_any_snapshot(
    how: str, key: Any, data: Any
) -> None:
    def operator() -> KeyedAggregateOperator:
        return KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), Keys("k"))

    batch = batches(key, False)
    rows = st.tuples(st.just("rows"), batch) if data.draw(st.booleans()) else batch
    steps = st.lists(st.one_of(batch, batch, rows, SNAPSHOTS, RESTORES), max_size=12)
    story = Story(Subtasks(operator, ("k",), data.draw(st.integers(1, 4))), Rolling(how))
    for step in data.draw(steps):
        story.play(*step)


TIMES = st.integers(-20, 70)
WATERMARKS = st.one_of(
    st.tuples(st.just("watermark"), TIMES, st.none()),
    st.tuples(st.just("watermark"), TIMES, st.integers(0, 11)),
)
"""At all subtasks, or at one."""


@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_window_aggregates_of_columns_continue_after_a_restore_from_any_snapshot(
    key: Any, data: Any
) -> None:
    size, slide = data.draw(st.sampled_from([(10, 10), (20, 10), (10, 4), (4, 10)]))
    aggregates = [
        ColumnAggregate("n", "count"),
        *(ColumnAggregate(how, how, "v") for how in ("sum", "min", "max")),
    ]

    def operator() -> WindowAggregateOperator:
        return WindowAggregateOperator(PaneTimes(size, slide, 0), aggregates, Keys("k"))

    batch = batches(key, True)
    steps = st.lists(
        st.one_of(batch, batch, WATERMARKS, RESCALES, SNAPSHOTS, SNAPSHOTS, RESTORES), max_size=14
    )
    story = Story(Subtasks(operator, ("k",), data.draw(st.integers(1, 4))), Windows(size, slide))
    for step in data.draw(steps):
        story.play(*step)


class Joined(Rows):
    """A null has no partner."""

    def process_second(self, columns: Columns) -> None:
        self.open, self.second = self.second, self.open
        self.process(columns)
        self.open, self.second = self.second, self.open

    def fire(self, key: Any, start: int, values: list[Any]) -> None:
        for value in values:
            for other in self.second.get((start, key), []):
                self.results.append(((key, value, other, start, start + 10), start + 9))

    def time_went_on(self) -> None:
        super().time_went_on()
        for start, key in list(self.second):
            if start + 9 <= self.watermark(key):
                del self.second[start, key]


@pytest.mark.parametrize("keys", [Keys("k"), Keys(lambda row: row.k)], ids=["column", "function"])
@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_rows_of_open_windows_continue_after_a_restore_from_any_snapshot(
    key: Any, keys: Keys, data: Any
) -> None:
    def operator() -> WindowBatchesOperator:
        wanted = ["k", "v", "window_start", "window_end"]
        return WindowBatchesOperator(lambda batch: batch.select(wanted), 10, 0, keys)

    batch = batches(key, True)
    steps = st.lists(
        st.one_of(batch, batch, WATERMARKS, SNAPSHOTS, SNAPSHOTS, RESTORES), max_size=14
    )
    story = Story(Subtasks(operator, ("k",), data.draw(st.integers(1, 4))), Rows())
    for step in data.draw(steps):
        story.play(*step)


@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_window_joins_of_columns_continue_after_a_restore_from_any_snapshot(
    key: Any, data: Any
) -> None:
    def operator() -> WindowJoinOperator:
        return WindowJoinOperator(10, 0, Keys("k"), Keys("k"))

    batch = batches(key, True).map(without_other)
    second = st.tuples(st.just("second"), batch)
    steps = st.lists(
        st.one_of(batch, second, WATERMARKS, SNAPSHOTS, SNAPSHOTS, RESTORES), max_size=14
    )
    story = Story(Subtasks(operator, ("k", "k"), data.draw(st.integers(1, 4))), Joined())
    for step in data.draw(steps):
        story.play(*step)


def without_other(step: Any) -> Any:
    name, columns = step
    return name, Columns(columns.batch.select(["k", "v"]), columns.timestamps)


def rolling() -> Any:
    return KeyedAggregateOperator("sum", "v", FieldReduce("sum", "v"), Keys("k"))


def windows() -> Any:
    aggregates = [ColumnAggregate("total", "sum", "v")]
    return WindowAggregateOperator(PaneTimes(100, 100, 0), aggregates, Keys("k"))


def rows() -> Any:
    return WindowBatchesOperator(lambda batch: batch, 100, 0, Keys("k"))


@pytest.mark.parametrize("make", [rolling, windows, rows])
def test_increment_of_column_state_is_small_if_little_has_changed(make: Any) -> None:
    subtasks = Subtasks(make, ("k",), 2)
    many = 20_000
    subtasks.process(columns(many, 5))
    subtasks.process(columns(many, 105))
    whole = size_of(subtasks.capture(1, None))
    subtasks.process(columns(10, 110))
    subtasks.watermark(99)
    changes = size_of(subtasks.capture(2, 1))
    assert whole > 16 * many
    assert changes < 16 * 1500
    last = subtasks.capture(3, 2)
    assert size_of(last) == 0
    states = [capture.write() for capture in subtasks.capture(4, None)]
    subtasks.restart(2, states, 4)
    subtasks.process(columns(10, 110))
    assert 0 < size_of(subtasks.capture(5, 4)) < 16 * 1500


def columns(number: int, at: int) -> Columns:
    batch = pa.record_batch({"k": range(number), "v": [1] * number})
    return Columns(batch, np.full(number, at))


def size_of(captures: list[OperatorStateCapture]) -> int:
    """Bytes of columns and of all else that is by key."""
    size = 0
    for capture in captures:
        keyed = capture.write().keyed
        assert isinstance(keyed, KeyedSnapshot)
        tables: list[Any] = [*keyed.columns.values(), *keyed.tables.values()]
        size += sum(len(payload) for table in tables for payload in table.groups.values())
    return size
