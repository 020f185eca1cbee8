"""Keyed streams, their aggregates and their state behave as PyFlink's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    Row,
    RuntimeExecutionMode,
    Types,
)
from flinkray.datastream.common import Time
from flinkray.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.streaming.errors import StreamError
from tests.datastream.pyflink_streams import Remembering, RememberMap, results

LETTERS = [("a", 0), ("b", 0), ("c", 1), ("d", 1), ("e", 1)]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (RuntimeExecutionMode.STREAMING, ["a", "ab", "c", "cd", "cde"]),
        (RuntimeExecutionMode.BATCH, ["ab", "cde"]),
        (RuntimeExecutionMode.AUTOMATIC, ["ab", "cde"]),
    ],
)
def test_reduce_gives_every_update_in_streaming_and_the_last_in_batch_mode(
    env: Any, mode: Any, expected: list[str]
) -> None:
    """PF-08"""
    env.set_runtime_mode(mode)
    reduced = env.from_collection(LETTERS).key_by(lambda v: v[1]).reduce(
        lambda a, b: (a[0] + b[0], b[1])
    )  # fmt: skip
    assert results(reduced.map(lambda v: v[0])) == expected


@pytest.mark.parametrize(
    ("how", "streaming", "batch"),
    [
        ("sum", [(1, 5), (1, 8), (1, 9), (2, 4)], [(1, 9), (2, 4)]),
        ("min", [(1, 1), (1, 3), (1, 5), (2, 4)], [(1, 1), (2, 4)]),
        ("max", [(1, 5), (1, 5), (1, 5), (2, 4)], [(1, 5), (2, 4)]),
        ("min_by", [(1, 1), (1, 3), (1, 5), (2, 4)], [(1, 1), (2, 4)]),
        ("max_by", [(1, 5), (1, 5), (1, 5), (2, 4)], [(1, 5), (2, 4)]),
    ],
)
@pytest.mark.parametrize("kind", ["tuple", "row by position", "row by name"])
def test_sum_min_and_max_aggregate_tuples_and_rows_by_position_or_name(
    env: Any, how: str, streaming: Any, batch: Any, kind: str
) -> None:
    """PF-08, PF-10"""
    data = [(1, 5), (2, 4), (1, 3), (1, 1)]
    row_type = Types.ROW_NAMED(["k", "v"], [Types.INT(), Types.INT()])
    for mode, expected in (("STREAMING", streaming), ("BATCH", batch)):
        env.set_runtime_mode(RuntimeExecutionMode[mode])
        stream = env.from_collection(data, None if kind == "tuple" else row_type)
        aggregated = getattr(stream.key_by(lambda v: v[0]), how)("v" if "name" in kind else 1)
        assert sorted(map(tuple, results(aggregated))) == expected


def test_aggregates_of_bare_numbers_need_no_position(env: Any) -> None:
    """PF-10"""
    numbers = env.from_collection([1, 2, 3, 4, 5])
    assert results(numbers.key_by(lambda v: v % 2).sum()) == [1, 2, 4, 6, 9]
    assert results(numbers.key_by(lambda v: v % 2).max(0)) == [1, 2, 3, 4, 5]
    with pytest.raises(Exception, match="only position 0"):
        results(numbers.key_by(lambda v: v % 2).sum(1))
    with pytest.raises(TypeError, match="position or its name"):
        numbers.key_by(lambda v: v).sum(1.5)


class RememberFilter(Remembering, FilterFunction[Any]):
    def filter(self, value: Any) -> bool:
        return self.swap(value) is not None


class RememberFlat(Remembering, FlatMapFunction[Any, Any]):
    def flat_map(self, value: Any) -> Any:
        yield self.swap(value)


def test_map_filter_and_flat_map_on_a_keyed_stream_can_use_keyed_state(env: Any) -> None:
    """PF-11"""
    stream = env.from_collection(LETTERS).key_by(lambda v: v[1])
    assert results(stream.map(RememberMap())) == [None, None, "a", "c", "d"]
    assert results(stream.filter(RememberFilter())) == [("b", 0), ("d", 1), ("e", 1)]
    assert results(stream.flat_map(RememberFlat())) == [None, None, "a", "c", "d"]


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("shuffle", ()), ("rebalance", ()), ("rescale", ()), ("broadcast", ()), ("forward", ()),
        ("name", ("x",)), ("get_name", ()), ("uid", ("x",)), ("set_uid_hash", ("x",)),
        ("set_parallelism", (1,)), ("set_max_parallelism", (1,)),
        ("partition_custom", (lambda k, n: 0, lambda v: v)),
    ],
)  # fmt: skip
def test_repartitioning_of_a_keyed_stream_is_refused(
    env: Any, method: str, arguments: tuple[Any, ...]
) -> None:
    """PF-13, PF-24"""
    stream = env.from_collection([1]).key_by(lambda v: v)
    with pytest.raises(StreamError, match=f"{method} is not supported on a KeyedStream"):
        getattr(stream, method)(*arguments)


class StateHabits(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        ttl = StateTtlConfig.new_builder(Time.seconds(1)).never_return_expired().build()
        map_descriptor: MapStateDescriptor[int, str] = MapStateDescriptor(
            "m", Types.INT(), Types.STRING()
        )
        map_descriptor.enable_time_to_live(ttl)
        self.value = runtime_context.get_state(ValueStateDescriptor("v", Types.INT()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("l", Types.INT()))
        self.map = runtime_context.get_map_state(map_descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (
            self.value.value(),
            list(self.list.get()),
            dict(self.map.items()),
            value[1] in self.map,
        )
        self.value.update(value[1])
        self.list.add(value[1])
        self.map[value[1]] = value[0]
        assert self.map[value[1]] == value[0]


def test_empty_list_state_is_an_empty_iterable_and_map_state_is_indexable(env: Any) -> None:
    """PF-16, PF-22: values whose time to live has not passed are present."""
    stream = env.from_collection([("a", 1), ("a", 2)]).key_by(lambda v: v[0])
    assert results(stream.process(StateHabits())) == [
        (1, [1], {1: "a"}, False),
        (None, [], {}, False),
    ]


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_collecting_a_keyed_stream_gives_rows_of_key_and_value(env: Any, mode: Any) -> None:
    env.set_runtime_mode(mode)
    keyed = env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda v: v[0])
    pairs = [("a", ("a", 1)), ("a", ("a", 3)), ("b", ("b", 2))]
    expected = [Row(f0=key, f1=value) for key, value in pairs]
    assert results(keyed) == expected
    assert sorted(keyed.execute_and_collect(limit=9), key=str) == expected
    typed = env.from_collection([1], Types.INT()).key_by(lambda v: v, Types.DOUBLE())
    ((key, value),) = typed.execute_and_collect()
    assert (type(key), type(value)) == (float, int)


def test_collecting_keyed_columns_gives_rows_of_key_and_row(env: Any) -> None:
    keyed = env.from_arrow(pa.table({"k": ["a"], "v": [1]})).key_by("k")
    assert keyed.execute_and_collect(limit=1) == [Row(f0="a", f1=Row(k="a", v=1))]
