"""Results of process functions and side outputs behave as PyFlink's."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream import (
    CoFlatMapFunction,
    OutputTag,
    ProcessFunction,
    Types,
)
from flinkray.datastream.common import Row
from tests.datastream.pyflink_streams import Collect, results

TAG: OutputTag[Any] = OutputTag("side", Types.INT())
NAMED: OutputTag[Any] = OutputTag("named", Types.ROW_NAMED(["x", "y"], [Types.INT(), Types.INT()]))


class Sides(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value
        yield TAG, value + 1


class NoneOrList(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return [value, value] if value % 2 else None


class CoSides(CoFlatMapFunction[Any, Any, Any]):
    def flat_map1(self, value: Any) -> Any:
        yield str(value)
        yield TAG, value

    def flat_map2(self, value: Any) -> Any:
        yield TAG, value * 10
        yield value


def test_process_function_may_return_a_generator_a_list_or_none(env: Any) -> None:
    """PF-14"""
    assert results(env.from_collection([1, 2, 3]).process(NoneOrList())) == [1, 1, 3, 3]


def test_chained_operators_with_one_tag_have_separate_side_outputs(env: Any) -> None:
    """PF-14"""
    first = env.from_collection([1, 2]).process(Sides(), Types.INT())
    second = first.map(lambda v: v * 10).process(Sides())
    of_first: list[int] = []
    of_second: list[int] = []
    first.get_side_output(TAG).add_sink(Collect(of_first))
    second.get_side_output(TAG).map(lambda v: v).add_sink(Collect(of_second))
    assert results(second) == [10, 20]
    assert (sorted(of_first), sorted(of_second)) == ([2, 3], [11, 21])


def test_side_output_has_values_of_both_connected_inputs(env: Any) -> None:
    """PF-14"""
    connected = env.from_collection([1, 2]).connect(env.from_collection(["a"]))
    both = connected.flat_map(CoSides())
    side: list[Any] = []
    both.get_side_output(TAG).add_sink(Collect(side))
    assert results(both) == ["1", "2", "a"]
    assert sorted(side, key=str) == [1, 2, "a" * 10]


def test_tagged_values_that_nobody_reads_do_not_reach_the_main_output(env: Any) -> None:
    """PF-14"""
    assert results(env.from_collection([1]).process(Sides())) == [1]


class Points(ProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield NAMED, Row(value, 2)
        yield value


@pytest.mark.parametrize("parallelism", [1, 2])
def test_side_output_values_have_the_type_of_the_tag(env: Any, parallelism: int) -> None:
    """PF-14: in the same task or in another task, keyed or not."""
    env.set_parallelism(1)
    points = env.from_collection([1, 2]).process(Points())
    env.set_parallelism(parallelism)
    side = points.get_side_output(NAMED)
    assert sorted(results(side.map(lambda row: (row.x, row.y)))) == [(1, 2), (2, 2)]
    by_x = side.key_by(lambda row: row.x)
    assert sorted(results(by_x.map(lambda row: row.as_dict()["x"]))) == [1, 2]
