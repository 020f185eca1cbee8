"""Operators that keep columns, as random stories: batches, watermarks, whole snapshots and changes,
failures, other parallelism.  Results are those of a naive evaluation."""

from __future__ import annotations

import copy
from collections import Counter
from operator import add
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
from flinkray.streaming.operators.operator import OperatorState, OperatorStateCapture
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
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


class Story:
    """Plays one, with a naive evaluator beside it.

    Args:
        naive: has ``process(columns)``, ``process_watermark(timestamp)``, ``restored()``, and
            ``results``.
    """

    def __init__(self, subtasks: Subtasks, naive: Any) -> None:
        self.subtasks = subtasks
        self.naive = naive
        self._watermark = -(10**9)
        self._checkpoints: dict[int, Checkpoint] = {}
        """Of the subtasks as they are now."""
        self._last: Checkpoint | None = None
        self._number = 0
        self._first = copy.deepcopy(naive)

    def play(self, *step: Any) -> None:
        match step:
            case ("snapshot", ago, is_written_later):
                self._number += 1
                since = (
                    [None, *self._checkpoints][-ago] if 0 < ago <= len(self._checkpoints) else None
                )
                captures = self.subtasks.capture(self._number, since)
                begin = None if since is None else self._checkpoints[since]
                self._last = Checkpoint(captures, begin, copy.deepcopy(self.naive))
                if not is_written_later:
                    self._last.states()
                self._checkpoints[self._number] = self._last
            case ("restore", parallelism):
                self._restore(parallelism)
            case ("batch", columns):
                self.subtasks.process(columns)
                self.naive.process(columns)
            case ("second", (_, columns)):
                self.subtasks.process(columns, on=1)
                self.naive.process_second(columns)
            case ("rows", (_, columns)):
                self.subtasks.process(columns, as_rows=True)
                self.naive.process(columns)
            case ("watermark", timestamp):
                timestamp = self._watermark = max(timestamp, self._watermark)
                self.subtasks.watermark(timestamp)
                self.naive.process_watermark(timestamp)
        found, self.naive.results[:], expected = (
            Counter(map(comparable, self.subtasks.records())),
            [],
            Counter(map(comparable, self.naive.results)),
        )
        assert found == expected, step

    def _restore(self, parallelism: int) -> None:
        last = self._last
        self._checkpoints.clear()
        if last is None:
            self.subtasks.restart(parallelism, [])
        elif parallelism == last.parallelism:
            self.subtasks.restart(parallelism, last.states(), self._number)
            self._checkpoints[self._number] = last
        else:
            self.subtasks.restart(parallelism, last.states())
        self.naive = copy.deepcopy(self._first if last is None else last.naive)
        self.naive.restored()
        self._watermark = -(10**9)


class Checkpoint:
    """Captures of all subtasks, and those that they are about."""

    def __init__(
        self, captures: list[OperatorStateCapture], begin: Checkpoint | None, naive: Any
    ) -> None:
        self._captures = captures
        self._begin = begin
        self.naive = naive
        self._parts: list[list[OperatorState]] | None = None

    @property
    def parallelism(self) -> int:
        return len(self._captures)

    def parts(self) -> list[list[OperatorState]]:
        """Of each subtask: a whole snapshot, and changes after it."""
        if self._parts is None:
            begin = [[] for _ in self._captures] if self._begin is None else self._begin.parts()
            self._parts = [
                [capture.write()] if capture.is_whole else [*before, capture.write()]
                for before, capture in zip(begin, self._captures, strict=True)
            ]
        return self._parts

    def states(self) -> list[OperatorState]:
        """Operator state is always whole."""
        found = []
        for parts in self.parts():
            found += [OperatorState(part.keyed) for part in parts]
            found.append(OperatorState(None, parts[-1].operator))
        return found


def comparable(record: Any) -> Any:
    values, time = record
    return (*values, time)


class Rolling:
    """Every record gives its key's first row with the aggregate so far."""

    def __init__(self, how: str) -> None:
        self._combine: Any = {"sum": add, "min": min, "max": max}[how]
        self._kept: dict[Any, list[Any]] = {}
        self.results: list[Any] = []

    def process(self, columns: Columns) -> None:
        for row in columns.batch.to_pylist():
            known = self._kept.get(row["k"])
            if known is None:
                self._kept[row["k"]] = [row["k"], row["v"], row["other"]]
            else:
                known[1] = self._combine(known[1], row["v"])
            self.results.append((tuple(self._kept[row["k"]]), None))

    def restored(self) -> None:
        self.results = []


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_rolling_aggregates_go_on_from_any_snapshot(how: str, key: Any, data: Any) -> None:
    def operator() -> KeyedAggregateOperator:
        return KeyedAggregateOperator(how, "v", FieldReduce(how, "v"), Keys("k"))

    batch = batches(key, False)
    rows = st.tuples(st.just("rows"), batch) if data.draw(st.booleans()) else batch
    steps = st.lists(st.one_of(batch, batch, rows, SNAPSHOTS, RESTORES), max_size=12)
    story = Story(Subtasks(operator, ("k",), data.draw(st.integers(1, 4))), Rolling(how))
    for step in data.draw(steps):
        story.play(*step)


WATERMARKS = st.tuples(st.just("watermark"), st.integers(-20, 70))


class Windows:
    """Late records count for those of their windows that have not ended."""

    def __init__(self, size: int, slide: int) -> None:
        self.size, self.slide = size, slide
        self.watermark = -(10**9)
        self.open: dict[tuple[int, Any], list[Any]] = {}
        self.results: list[Any] = []

    def process(self, columns: Columns) -> None:
        assert columns.timestamps is not None
        times = columns.timestamps.tolist()
        for row, time in zip(columns.batch.to_pylist(), times, strict=True):
            for start in range(time - time % self.slide, time - self.size, -self.slide):
                if start + self.size - 1 > self.watermark:
                    self.open.setdefault((start, row["k"]), []).append(row["v"])

    def process_watermark(self, timestamp: int) -> None:
        self.watermark = max(self.watermark, timestamp)
        for start, key in sorted(self.open):
            if start + self.size - 1 <= self.watermark:
                values = self.open.pop((start, key))
                self.fire(key, start, values)

    def fire(self, key: Any, start: int, values: list[Any]) -> None:
        end = start + self.size
        numbers = len(values), sum(values), min(values), max(values)
        self.results.append(((key, start, end, *numbers), end - 1))

    def restored(self) -> None:
        """The watermark is part of the state."""


@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_window_aggregates_go_on_from_any_snapshot(key: Any, data: Any) -> None:
    size, slide = data.draw(st.sampled_from([(10, 10), (20, 10), (10, 4), (4, 10)]))
    aggregates = [
        ColumnAggregate("n", "count"),
        *(ColumnAggregate(how, how, "v") for how in ("sum", "min", "max")),
    ]

    def operator() -> WindowAggregateOperator:
        return WindowAggregateOperator(PaneTimes(size, slide, 0), aggregates, Keys("k"))

    batch = batches(key, True)
    steps = st.lists(
        st.one_of(batch, batch, WATERMARKS, SNAPSHOTS, SNAPSHOTS, RESTORES), max_size=14
    )
    story = Story(Subtasks(operator, ("k",), data.draw(st.integers(1, 4))), Windows(size, slide))
    for step in data.draw(steps):
        story.play(*step)


class Rows(Windows):
    """Rows are kept, and late ones are told by the watermark since the last failure."""

    def __init__(self) -> None:
        super().__init__(10, 10)
        self.second: dict[tuple[int, Any], list[Any]] = {}

    def restored(self) -> None:
        self.watermark = -(10**9)

    def fire(self, key: Any, start: int, values: list[Any]) -> None:
        self.results += (((key, value, start, start + 10), start + 9) for value in values)


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

    def process_watermark(self, timestamp: int) -> None:
        super().process_watermark(timestamp)
        for start, key in list(self.second):
            if start + 9 <= self.watermark:
                del self.second[start, key]


@pytest.mark.parametrize("keys", [Keys("k"), Keys(lambda row: row.k)], ids=["column", "function"])
@pytest.mark.parametrize("key", KEYS, ids=str)
@STORIES
@given(data=st.data())
def test_rows_of_windows_go_on_from_any_snapshot(key: Any, keys: Keys, data: Any) -> None:
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
def test_joins_go_on_from_any_snapshot(key: Any, data: Any) -> None:
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
def test_changes_are_as_large_as_what_has_changed(make: Any) -> None:
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
