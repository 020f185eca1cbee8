"""Which operator windows become, and what is refused before there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.core.durations import Duration
from flinkray.datastream import OutputTag, ProcessWindowFunction, ReduceFunction, WindowFunction
from flinkray.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flinkray.datastream.window_operator_builder import WindowOperatorBuilder
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.windowing.contents import (
    Apply,
    ListContents,
    PassOn,
    Process,
    ReduceContents,
    TimestampedContents,
)

KEYS = Keys("k")
TEN = TumblingEventTimeWindows.of(10)
LATE: OutputTag[Any] = OutputTag("late")


class Sum(ReduceFunction[Any]):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class Count(WindowFunction[Any, Any, Any, Any]):
    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return [len(inputs)]


class First(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [elements[0]]


REFINEMENTS: dict[str, Callable[[WindowOperatorBuilder], None]] = {
    "trigger": lambda builder: builder.trigger(CountTrigger.of(2)),
    "evictor": lambda builder: builder.evictor(CountEvictor.of(1)),
    "lateness": lambda builder: builder.allowed_lateness(1),
    "late records": lambda builder: builder.side_output_late_data(LATE),
}
OF_COLUMNS: dict[str, Callable[[WindowOperatorBuilder], Any]] = {
    "functions of batches": lambda builder: builder.build_batches(lambda rows: rows, KEYS),
    "a join of columns": lambda builder: builder.build_join(KEYS, KEYS, "_right"),
    "aggregates of columns": lambda builder: builder.build_aggregates({"n": "count"}, KEYS),
}


def test_window_operator_has_all_settings_of_its_builder() -> None:
    builder = WindowOperatorBuilder(TEN)
    trigger, evictor = CountTrigger.of(2), CountEvictor.of(1)
    builder.trigger(trigger)
    builder.evictor(evictor)
    builder.allowed_lateness(Duration.of_seconds(2))
    builder.side_output_late_data(LATE)
    spec = builder.build(ListContents(), Count(), KEYS).spec
    assert (spec.assigner, spec.trigger, spec.evictor) == (TEN, trigger, evictor)
    assert (spec.allowed_lateness, spec.late_tag) == (2000, LATE)
    assert isinstance(spec.contents, TimestampedContents)


def test_window_operator_without_settings_has_the_defaults_of_its_assigner() -> None:
    contents = ReduceContents(Sum())
    spec = WindowOperatorBuilder(TEN).build(contents, None, KEYS).spec
    assert type(spec.trigger) is EventTimeTrigger
    assert (spec.evictor, spec.allowed_lateness, spec.late_tag) == (None, 0, None)
    assert spec.contents is contents


@pytest.mark.parametrize(
    ("function", "kind"), [(None, PassOn), (Count(), Apply), (First(), Process)]
)
def test_window_contents_go_to_the_window_function_or_else_are_emitted(
    function: Any, kind: type
) -> None:
    spec = WindowOperatorBuilder(TEN).build(ListContents(), function, KEYS).spec
    assert type(spec.evaluation) is kind


def test_invalid_window_setting_is_refused_where_it_is_given() -> None:
    wrong: Any = 10
    with pytest.raises(TypeError, match="a WindowAssigner is needed, got 10"):
        WindowOperatorBuilder(wrong)
    builder = WindowOperatorBuilder(TEN)
    with pytest.raises(TypeError, match="a Trigger is needed, got 10"):
        builder.trigger(wrong)
    with pytest.raises(ValueError, match="lateness must not be negative, got -1 ms"):
        builder.allowed_lateness(-1)
    with pytest.raises(TypeError, match="a window function is needed, got 10"):
        builder.build(ListContents(), wrong, KEYS)


def test_evictor_with_an_incremental_aggregate_is_refused() -> None:
    builder = WindowOperatorBuilder(TEN)
    builder.evictor(CountEvictor.of(1))
    with pytest.raises(StreamError, match="evictors go with apply and process"):
        builder.build(ReduceContents(Sum()), None, KEYS)


@pytest.mark.parametrize("refine", REFINEMENTS.values(), ids=REFINEMENTS)
@pytest.mark.parametrize("what", OF_COLUMNS)
def test_column_operators_refuse_trigger_evictor_and_lateness_settings(
    what: str, refine: Callable[[WindowOperatorBuilder], None]
) -> None:
    builder = WindowOperatorBuilder(TEN)
    assert OF_COLUMNS[what](builder) is not None
    refine(builder)
    with pytest.raises(StreamError, match=what):
        OF_COLUMNS[what](builder)


@pytest.mark.parametrize(
    "assigner",
    [TumblingProcessingTimeWindows.of(10), EventTimeSessionWindows.with_gap(10)],
    ids=["processing time", "sessions"],
)
@pytest.mark.parametrize("what", OF_COLUMNS)
def test_column_operators_refuse_processing_time_and_session_windows(
    what: str, assigner: Any
) -> None:
    with pytest.raises(StreamError, match=f"{what} are|{what} is"):
        OF_COLUMNS[what](WindowOperatorBuilder(assigner))


def test_overlapping_windows_are_accepted_only_for_aggregates_of_columns() -> None:
    builder = WindowOperatorBuilder(SlidingEventTimeWindows.of(10, 5))
    assert OF_COLUMNS["aggregates of columns"](builder) is not None
    for what in ("functions of batches", "a join of columns"):
        with pytest.raises(StreamError, match=what):
            OF_COLUMNS[what](builder)


def test_aggregates_of_columns_without_an_aggregate_are_refused() -> None:
    with pytest.raises(StreamError, match="give at least one aggregate"):
        WindowOperatorBuilder(TEN).build_aggregates({}, KEYS)


@pytest.mark.parametrize("name", ["k", "window_start", "window_end"])
def test_aggregate_named_like_another_result_column_is_refused(name: str) -> None:
    with pytest.raises(StreamError, match=f"a column {name!r} already"):
        WindowOperatorBuilder(TEN).build_aggregates({name: ("v", "sum")}, Keys("k"))
