"""Process functions in harnesses: keys, state, timers and side outputs, without a program."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    Types,
)
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.testing import ProcessFunctionTestHarnesses

LATE: OutputTag[Any] = OutputTag("late", Types.PICKLED_BYTE_ARRAY())


class Totals(KeyedProcessFunction[Any, Any, Any]):
    """A key's total, a minute of event time after its first record."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        if ctx.timestamp() < ctx.timer_service().current_watermark():
            yield LATE, value
            return
        if self.total.value() is None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)
        self.total.update((self.total.value() or 0) + value[1])

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.total.value()
        self.total.clear()


def by_name(value: Any) -> Any:
    return value[0]


def test_harness_of_a_keyed_function_has_state_timers_and_side_outputs() -> None:
    harness = ProcessFunctionTestHarnesses.for_keyed_process_function(Totals(), by_name, [LATE])
    harness.process(("a", 1), ("b", 10), ("a", 2), at=[0, 5, 9])
    assert harness.records() == []
    harness.watermark(60_000)
    assert harness.records() == [(("a", 3), 60_000)]
    harness.process(("c", 4), at=1)
    assert harness.side("late") == [("c", 4)]
    harness.watermark(60_005)
    assert harness.values() == [("b", 10)]
    harness.close()


def test_harness_continues_from_the_snapshot_of_another_harness() -> None:
    make = ProcessFunctionTestHarnesses.for_keyed_process_function
    before = make(Totals(), "name")
    before.process({"name": "a", 1: 5}, at=0)
    after = make(Totals(), "name", restore=before.snapshot())
    after.process({"name": "a", 1: 6}, at=30_000)
    after.watermark(60_000)
    assert after.values() == [("a", 11)]


class Doubled(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value * 2
        yield LATE, ctx.timestamp()


def test_harness_of_a_function_without_keys_collects_records_and_side_outputs() -> None:
    harness = ProcessFunctionTestHarnesses.for_process_function(Doubled(), [LATE])
    harness.process(1, 2, at=7)
    assert harness.records() == [(2, 7), (4, 7)]
    assert harness.side("late") == [7, 7]


class Told(CoProcessFunction[Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield "first", value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield "second", value


def test_harness_of_a_two_input_function_passes_records_to_each_input() -> None:
    harness = ProcessFunctionTestHarnesses.for_co_process_function(Told())
    harness.process(1)
    harness.process(2, on=1)
    assert harness.values() == [("first", 1), ("second", 2)]


class Joined(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))

    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield self.name.value(), value[1]

    def process_element2(self, value: Any, ctx: Any) -> Any:
        self.name.update(value["name"])


def test_harness_of_a_keyed_two_input_function_restores_its_state() -> None:
    make = ProcessFunctionTestHarnesses.for_keyed_co_process_function
    before = make(Joined(), by_name, "id")
    before.process({"id": 1, "name": "one"}, {"id": 2, "name": "two"}, on=1)
    after = make(Joined(), by_name, "id", restore=before.snapshot())
    after.process((2, 20), (1, 10), (3, 30))
    assert after.values() == [("two", 20), ("one", 10), (None, 30)]


@pytest.mark.parametrize(
    ("make", "function", "more"),
    [
        ("for_process_function", Totals(), ()),
        ("for_keyed_process_function", Doubled(), (by_name,)),
        ("for_co_process_function", Joined(), ()),
        ("for_keyed_co_process_function", Told(), (by_name, by_name)),
    ],
)
def test_harness_refuses_a_function_of_another_class(make: str, function: Any, more: Any) -> None:
    with pytest.raises(TypeError, match=r"ProcessFunction is needed, got <.*test_process_function"):
        getattr(ProcessFunctionTestHarnesses, make)(function, *more)
