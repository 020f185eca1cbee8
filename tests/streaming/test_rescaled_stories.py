"""Keyed operators as long random stories: records in and out of order, watermarks that have come to
all subtasks or to some, whole snapshots and changes, failures, and 1, 2, 4 and 1 subtasks.  Results
are those of a naive evaluation that knows nothing of snapshots."""

from __future__ import annotations

import copy
import os
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.datastream.field_aggregates import FieldReduce
from flinkray.streaming.columnar.keyed_aggregate import KeyedAggregateOperator
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.columnar.window_operators import WindowBatchesOperator
from flinkray.streaming.functions.functions import AggregateFunction, ProcessWindowFunction
from flinkray.streaming.operators.keyed import ReduceOperator
from flinkray.streaming.operators.look_up import LookUpOperator
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import MAX_TIMESTAMP, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.aligned import make_window_operator
from flinkray.streaming.windowing.assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    WindowAssigner,
)
from flinkray.streaming.windowing.contents import (
    AggregateContents,
    ListContents,
    Process,
    TimestampedContents,
    WindowContents,
)
from flinkray.streaming.windowing.evictors import CountEvictor
from flinkray.streaming.windowing.operator import WindowOperator, WindowSpec
from flinkray.streaming.windowing.triggers import CountTrigger, EventTimeTrigger, PurgingTrigger
from flinkray.streaming.windowing.window import TimeWindow
from flinkray.testing.operator_harness import OperatorHarness
from tests.state.every_backend import small_disk_backend
from tests.streaming.stories import Rolling, Rows, Story, Timed, Windows
from tests.streaming.subtasks_of_one import Subtasks

STORIES = int(os.environ.get("FLINKRAY_STORIES", "3"))
"""Of each operator."""
IS_ON_DISK = os.environ.get("FLINKRAY_STORIES_ON") == "disk"
BY_K = Keys("k")


@pytest.fixture(scope="module", autouse=True)
def keyed_backend() -> Iterator[None]:
    """Of every harness."""
    before = OperatorHarness.make_keyed_state
    if IS_ON_DISK:
        OperatorHarness.make_keyed_state = staticmethod(small_disk_backend)
    yield
    OperatorHarness.make_keyed_state = staticmethod(before)


def play_all(make: Callable[[], StreamOperator], naive: Any, *, as_rows: bool) -> None:
    for seed in range(STORIES):
        try:
            play(make, copy.deepcopy(naive), seed, as_rows=as_rows)
        except AssertionError as error:
            raise AssertionError(f"story {seed}: {error}") from error


def play(make: Callable[[], StreamOperator], naive: Any, seed: int, *, as_rows: bool) -> None:
    """One story, the same for a seed."""
    rng = random.Random(seed)
    story = Story(Subtasks(make, ("k",), 1), naive)
    now = 0
    for parallelism in (1, 2, 4, 1, rng.choice((2, 3, 4)), rng.choice((1, 2, 3))):
        story.play("rescale", parallelism)
        for _ in range(8):
            now += rng.choice((0, 2, 5, 9))
            match rng.choices(("batch", "time", "snapshot", "failure"), (6, 5, 1, 0.5))[0]:
                case "batch":
                    batch = "batch", records(rng, now)
                    story.play(*(("rows", batch) if as_rows else batch))
                case "time":
                    place = rng.choice((None, None, 0, 1, 2, 3))
                    story.play("watermark", now - rng.randrange(12), place)
                case "snapshot":
                    story.play("snapshot", rng.randrange(3), rng.random() < 0.5)
                case "failure":
                    story.play("restore", parallelism)
    story.play("watermark", now + 1000, None)
    story.subtasks.close()


def records(rng: random.Random, now: int) -> Columns:
    size = rng.randrange(1, 7)
    fields = {
        "k": pa.array([rng.randrange(12) for _ in range(size)]),
        "v": pa.array([rng.randrange(1000) for _ in range(size)]),
        "other": pa.nulls(size),
    }
    times = [now + rng.randrange(-16, 8) for _ in range(size)]
    return Columns(pa.record_batch(fields), np.array(times, np.int64))


# --- columns --------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [(10, 10), (20, 10), (10, 4)])
def test_columnar_window_aggregates_equal_a_model_despite_rescaling(times: tuple[int, int]) -> None:
    aggregates = [
        ColumnAggregate("n", "count"),
        *(ColumnAggregate(how, how, "v") for how in ("sum", "min", "max")),
    ]

    def operator() -> WindowAggregateOperator:
        return WindowAggregateOperator(PaneTimes(*times, 0), aggregates, BY_K)

    play_all(operator, Windows(*times), as_rows=False)


def test_rows_of_columnar_windows_equal_a_model_despite_rescaling() -> None:
    def operator() -> WindowBatchesOperator:
        wanted = ["k", "v", "window_start", "window_end"]
        return WindowBatchesOperator(lambda batch: batch.select(wanted), 10, 0, BY_K)

    play_all(operator, Rows(), as_rows=False)


@pytest.mark.parametrize("as_rows", [False, True])
def test_rolling_aggregates_equal_a_model_despite_rescaling(as_rows: bool) -> None:
    reduce = FieldReduce("sum", "v")

    def operator() -> StreamOperator:
        if as_rows:
            return ReduceOperator(reduce, BY_K)
        return KeyedAggregateOperator("sum", "v", reduce, BY_K)

    play_all(operator, Rolling("sum"), as_rows=as_rows)


# --- windows of rows ------------------------------------------------------------------------------


class Total(AggregateFunction[Any, Any, Any]):
    """Number and sum."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value.v

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Told(ProcessWindowFunction[Any, Any, Any, Any]):
    """Key, window, number of records and their sum."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window = context.window()
        of_time = isinstance(window, TimeWindow)
        bounds = (window.start, window.end) if of_time else window.id
        if isinstance(elements[0], tuple):
            (total,) = elements
        else:
            total = len(elements), sum(row.v for row in elements)
        return [(key, bounds, *total)]


class RowWindows(Timed):
    """Windows of event time that tumble, slide or merge.  They fire when the watermark passes their
    end, and then with each late record until the lateness is over.  A record that comes after a
    restore, and before a watermark, is not late."""

    def __init__(self, size: int, slide: int | None, lateness: int) -> None:
        """*slide*: None for sessions, where *size* is the gap."""
        super().__init__()
        self._size, self._slide, self._lateness = size, slide, lateness
        self._open: dict[Any, dict[tuple[int, int], list[int]]] = {}
        self._due: set[tuple[Any, tuple[int, int]]] = set()

    def process(self, columns: Columns) -> None:
        assert columns.timestamps is not None
        times = columns.timestamps.tolist()
        for row, time in zip(columns.batch.to_pylist(), times, strict=True):
            for window in self._windows_of(time):
                self._put(row["k"], window, row["v"])

    def _windows_of(self, time: int) -> Iterable[tuple[int, int]]:
        if self._slide is None:
            return [(time, time + self._size)]
        starts = range(time - time % self._slide, time - self._size, -self._slide)
        return [(start, start + self._size) for start in starts]

    def _put(self, key: Any, window: tuple[int, int], value: int) -> None:
        watermark, known = self.watermark(key), self._open.setdefault(key, {})
        values: list[int] = known.get(window, [])
        if self._slide is None:
            window, values = self._merged(key, window)
        if window[1] - 1 + self._lateness <= watermark:
            return
        known[window] = [*values, value]
        if window[1] - 1 <= watermark:
            self._fire(key, window)
        else:
            self._due.add((key, window))

    def _merged(self, key: Any, window: tuple[int, int]) -> tuple[tuple[int, int], list[int]]:
        start, end = window
        known, values = self._open[key], []
        for other in sorted(known):
            if other[0] <= end and start <= other[1]:
                start, end = min(start, other[0]), max(end, other[1])
                values += known.pop(other)
                self._due.discard((key, other))
        return (start, end), values

    def time_went_on(self) -> None:
        for key, known in self._open.items():
            watermark = self.watermark(key)
            for window in sorted(known):
                if window[1] - 1 <= watermark and (key, window) in self._due:
                    self._due.remove((key, window))
                    self._fire(key, window)
                if window[1] - 1 + self._lateness <= watermark:
                    del known[window]

    def _fire(self, key: Any, window: tuple[int, int]) -> None:
        values = self._open[key][window]
        self.results.append(((key, window, len(values), sum(values)), window[1] - 1))


ASSIGNERS: dict[str, tuple[WindowAssigner, int, int | None]] = {
    "tumbling": (SlidingEventTimeWindows.of(10, 10), 10, 10),
    "sliding": (SlidingEventTimeWindows.of(20, 10), 20, 10),
    "unevenly sliding": (SlidingEventTimeWindows.of(10, 4), 10, 4),
    "sessions": (EventTimeSessionWindows.with_gap(4), 4, None),
}
CONTENTS: dict[str, Callable[[], WindowContents]] = {
    "list": ListContents,
    "aggregate": lambda: AggregateContents(Total()),
}


@pytest.mark.parametrize("is_short", [True, False], ids=["short way", "long way"])
@pytest.mark.parametrize("lateness", [0, 12])
@pytest.mark.parametrize("contents", CONTENTS)
@pytest.mark.parametrize("name", ASSIGNERS)
def test_windows_of_rows_equal_a_model_despite_rescaling(
    name: str, contents: str, lateness: int, is_short: bool
) -> None:
    """WI-04 to WI-07"""
    assigner, size, slide = ASSIGNERS[name]
    make = make_window_operator if is_short else WindowOperator

    def operator() -> StreamOperator:
        spec = WindowSpec(
            assigner,
            EventTimeTrigger(),
            CONTENTS[contents](),
            Process(Told(), True),
            allowed_lateness=lateness,
        )
        return make(spec, BY_K)

    play_all(operator, RowWindows(size, slide, lateness), as_rows=True)


class CountWindows(Timed):
    """Of the last *size* records of a key, each *slide* of them."""

    def __init__(self, size: int, slide: int, *, is_full: bool, is_numbered: bool) -> None:
        super().__init__()
        self._size, self._slide = size, slide
        self._is_full, self._is_numbered = is_full, is_numbered
        self._values: dict[Any, list[int]] = {}

    def process(self, columns: Columns) -> None:
        for row in columns.batch.to_pylist():
            values = self._values.setdefault(row["k"], [])
            values.append(row["v"])
            number = len(values) - self._size if self._is_full else len(values)
            if number >= 0 and number % self._slide == 0:
                last = values[-self._size :]
                window = number // self._slide if self._is_numbered else 0
                self.results.append(((row["k"], window, len(last), sum(last)), MAX_TIMESTAMP))


COUNTS: dict[str, tuple[Callable[[], WindowSpec], CountWindows]] = {
    "tumbling": (
        lambda: of_count(CountTumblingWindowAssigner(3)),
        CountWindows(3, 3, is_full=True, is_numbered=True),
    ),
    "sliding": (
        lambda: of_count(CountSlidingWindowAssigner(5, 2)),
        CountWindows(5, 2, is_full=True, is_numbered=True),
    ),
    "purging": (
        lambda: of_count(GlobalWindows.create(), trigger=PurgingTrigger(CountTrigger(3))),
        CountWindows(3, 3, is_full=True, is_numbered=False),
    ),
    "evicting": (
        lambda: of_count(
            GlobalWindows.create(), trigger=CountTrigger(2), evictor=CountEvictor.of(5)
        ),
        CountWindows(5, 2, is_full=False, is_numbered=False),
    ),
}


def of_count(assigner: WindowAssigner, **changes: Any) -> WindowSpec:
    trigger = changes.pop("trigger", None) or assigner.get_default_trigger()
    contents = TimestampedContents() if "evictor" in changes else ListContents()
    return WindowSpec(assigner, trigger, contents, Process(Told(), True), **changes)


@pytest.mark.parametrize("name", COUNTS)
def test_count_windows_equal_a_model_despite_rescaling(name: str) -> None:
    """WI-01"""
    spec, naive = COUNTS[name]
    play_all(lambda: make_window_operator(spec(), BY_K), naive, as_rows=True)


# --- look-ups -------------------------------------------------------------------------------------


class LookedUp(Timed):
    """Records wait until the table has ended for their key group, which its last watermark says."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Any, int] = {}
        self._waiting: list[tuple[Any, int]] = []

    def process(self, columns: Columns) -> None:
        assert columns.timestamps is not None
        times = columns.timestamps.tolist()
        self._waiting += zip(columns.batch.to_pylist(), times, strict=True)
        self.time_went_on()

    def process_second(self, columns: Columns) -> None:
        self.rows |= {row["k"]: row["v"] for row in columns.batch.to_pylist()}

    def time_went_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for record, time in waiting:
            if self.watermark(record["k"]) == MAX_TIMESTAMP:
                answer = record["k"], record["v"], self.rows.get(record["k"])
                self.results.append((answer, time))
            else:
                self._waiting.append((record, time))


def looked_up(record: Any, row: Any) -> Any:
    return record.k, record.v, row and row.v


@pytest.mark.parametrize("seed", range(5 * STORIES))
def test_look_ups_equal_a_model_despite_failures_and_rescaling(seed: int) -> None:
    """After a failure, the table is read on from the last snapshot, and ends again."""
    rng = random.Random(seed)
    subtasks = Subtasks(lambda: LookUpOperator(looked_up, BY_K, BY_K, "table"), ("k", "k"), 1)
    story = Story(subtasks, LookedUp())
    now = 0
    for parallelism in (1, 2, 4, 1, rng.choice((2, 3, 4)), rng.choice((1, 2, 3))):
        story.play("rescale", parallelism)
        for _ in range(8):
            now += 5
            unread = [key for key in range(0, 12, 2) if key not in story.naive.rows]
            match rng.choices(("records", "table", "snapshot", "failure"), (5, 3, 1, 0.5))[0]:
                case "records":
                    story.play("rows", ("batch", records(rng, now)))
                case "table" if unread:
                    story.play("second", ("batch", rows_of_table(rng.choice(unread))))
                case "table":
                    story.play("watermark", MAX_TIMESTAMP, rng.choice((None, 0, 1, 2, 3)))
                case "snapshot":
                    story.play("snapshot", rng.randrange(3), rng.random() < 0.5)
                case "failure":
                    story.play("restore", parallelism)
    story.subtasks.close()


def rows_of_table(key: int) -> Columns:
    return Columns(pa.record_batch({"k": pa.array([key]), "v": pa.array([1000 + key])}))
