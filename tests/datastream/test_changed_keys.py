"""Keys that user code changes: state, timers and windows keep those that they were given."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import (
    KeyedBatchFunction,
    KeyedGroupFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    WindowFunction,
)
from flinkray.datastream.common import Configuration, Time
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import OperatorError

BY_POSITION = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
    lambda value, _: value[1]
)


@dataclasses.dataclass(unsafe_hash=True)
class Customer:
    name: Any


@dataclasses.dataclass(frozen=True)
class Holder:
    """Frozen, around what is not."""

    customer: Customer

    @property
    def name(self) -> Any:
        return self.customer.name

    @name.setter
    def name(self, name: Any) -> None:
        self.customer.name = name


class Written:
    """With an equality that somebody has written."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Written) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def _change(key: Any) -> None:
    part = key.customer if isinstance(key, Holder) else key
    part.name = f"{part.name}!"


class Counts(KeyedProcessFunction[Any, Any, Any]):
    """Changes whatever it is given after it has used state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(100)
        _change(ctx.get_current_key())
        _change(value[0])
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield count

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        key = ctx.get_current_key()
        name = key.name
        _change(key)
        yield name, self.count.value()


class Groups(KeyedGroupFunction[Any, Any, Any]):
    def process_group(self, key: Any, values: Any, ctx: Any) -> Any:
        _change(key)
        yield ctx.get_current_key().name, len(values)


class Batches(KeyedBatchFunction):
    def process_batch(self, batch: Any, ctx: Any) -> Any:
        names = [key.name for key in ctx.keys]
        _change(ctx.keys[0])
        _change(ctx.keys[:1][0])
        slots = ctx.slots.tolist()
        return pa.record_batch({"name": [names[slot] for slot in slots], "slot": slots})


class Windowed(ProcessWindowFunction[Any, Any, Any, Any]):
    """Fires again for each late record, and would find another key."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Any:
        name = key.name
        total = context.global_state().get_state(ValueStateDescriptor("total"))
        total.update((total.value() or 0) + len(list(elements)))
        count = total.value()
        _change(key)
        yield name, count


class Applied(WindowFunction[Any, Any, Any, Any]):
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Any:
        name = key.name
        _change(key)
        yield name, len(list(inputs))


def _reduce(first: Any, second: Any) -> Any:
    _change(first[0])
    return first[0], first[1] + second[1]


def _environment(backend: str = "hashmap") -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.configure(Configuration().set_string("state.backend.type", backend))
    return env


def _keyed(kind: Callable[[Any], Any], *times: int, backend: str = "hashmap") -> Any:
    env = _environment(backend)
    stream = env.from_collection([(kind("ann"), time) for time in times])
    return stream.assign_timestamps_and_watermarks(BY_POSITION).key_by(lambda value: value[0])


KINDS: dict[str, Callable[[Any], Any]] = {
    "dataclass": Customer,
    "written": Written,
    "within a frozen one": lambda name: Holder(Customer(name)),
}


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_state_and_timers_keep_their_key_when_a_function_changes_the_object(
    kind: str, backend: str
) -> None:
    stream = _keyed(KINDS[kind], 1, 2, 3, backend=backend)
    results = list(stream.process(Counts()).execute_and_collect())
    assert results == [1, 2, 3, ("ann", 3)]


def test_key_selector_may_return_one_object_that_it_changes_for_each_record() -> None:
    key = Customer("")

    def select(value: str) -> Customer:
        key.name = value
        return key

    class Names(KeyedProcessFunction[Any, Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value, ctx.get_current_key().name

    stream = _environment().from_collection(["a", "b", "a"]).key_by(select).process(Names())
    assert list(stream.execute_and_collect()) == [("a", "a"), ("b", "b"), ("a", "a")]


def test_group_and_batch_functions_may_change_the_keys_that_they_receive() -> None:
    assert list(_keyed(Customer, 1, 2).process_groups(Groups()).execute_and_collect()) == [
        ("ann", 2)
    ]
    env = _environment()
    rows = env.from_arrow(pa.table({"n": [1, 1, 1]}), batch_rows=1)
    stream = rows.key_by(lambda row: Customer("ann")).process_batches(Batches())
    assert [(row.name, row.slot) for row in stream.execute_and_collect()] == [("ann", 0)] * 3


def test_windows_keep_their_key_when_a_function_changes_the_object() -> None:
    windows = TumblingEventTimeWindows.of(Time.milliseconds(10))
    processed = _keyed(Customer, 1, 2, 12).window(windows).process(Windowed())
    assert list(processed.execute_and_collect()) == [("ann", 2), ("ann", 3)]
    applied = _keyed(Customer, 1, 2, 12).window(windows).apply(Applied())
    assert list(applied.execute_and_collect()) == [("ann", 2), ("ann", 1)]
    reduced = list(_keyed(Customer, 1, 2, 12).window(windows).reduce(_reduce).execute_and_collect())
    assert [(key.name, number) for key, number in reduced] == [("ann!", 3), ("ann", 12)]


def test_rolling_reduce_may_change_the_key_in_its_accumulator() -> None:
    results = list(_keyed(Customer, 1, 2, 3).reduce(_reduce).execute_and_collect())
    assert [number for _, number in results] == [1, 3, 6]


def test_key_and_value_of_a_collected_row_share_no_object() -> None:
    [row] = list(_keyed(Customer, 1).execute_and_collect())
    _change(row.f0)
    assert row.f1 == (Customer("ann"), 1)


def test_selector_of_mutable_keys_that_raises_stop_iteration_fails_the_program() -> None:
    def select(value: int) -> Customer:
        if value == 3:
            raise StopIteration
        return Customer("ann")

    stream = _environment().from_collection([1, 2, 3, 4]).key_by(select).map(lambda value: value)
    with pytest.raises(OperatorError, match="has raised StopIteration"):
        list(stream.execute_and_collect())
