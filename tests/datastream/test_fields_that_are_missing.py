"""Fields that a record lacks, or has too many of, are told of before they are lost."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import RuntimeExecutionMode, StreamExecutionEnvironment
from flinkray.datastream.common import Row, Types
from flinkray.streaming.errors import OperatorError, StreamError

TWO = [Types.INT(), Types.INT()]
NAMED = Types.ROW_NAMED(["a", "b"], TWO)


def environment(mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_runtime_mode(mode)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ((1, 2, 3), NAMED, "(1, 2, 3) has 3 fields, and its type has 2: RowTypeInfo(a: Integer,"),
        ([1], NAMED, "[1] has 1 field, and its type has 2"),
        (Row(1, 2, 3), NAMED, "has 3 fields, and its type has 2"),
        ((1,), Types.ROW(TWO), "(1,) has 1 field, and its type has 2"),
        ((1,), Types.TUPLE(TWO), "(1,) has 1 field, and its type has 2: TupleTypeInfo("),
        ((1, 2, 3), Types.TUPLE(TWO), "(1, 2, 3) has 3 fields, and its type has 2"),
        (
            (1, (2, 3, 4)),
            Types.TUPLE([Types.INT(), Types.TUPLE(TWO)]),
            "(2, 3, 4) has 3 fields, and its type has 2",
        ),
        (
            ((2, 3, 4), 1, 0),
            Types.TUPLE([Types.TUPLE(TWO), Types.INT()]),
            "((2, 3, 4), 1, 0) has 3 fields, and its type has 2",
        ),
    ],
)
def test_value_with_other_fields_than_its_declared_type_is_refused(
    value: Any, kind: Any, words: str
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(StreamError, match=re.escape(words)):
        env.from_collection([value], kind)
    results = env.from_collection([0]).map(lambda _: value, output_type=kind)
    with pytest.raises(OperatorError, match=re.escape(words)):
        list(results.execute_and_collect())


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH])
def test_unknown_column_to_sum_is_reported_although_no_key_comes_twice(
    mode: RuntimeExecutionMode,
) -> None:
    rides = environment(mode).from_arrow(pa.table({"city": ["A", "B"], "fare": [1, 2]}))
    with pytest.raises(OperatorError, match=r"no column 'fares' to sum: \['city', 'fare'\]"):
        list(rides.key_by("city").sum("fares").execute_and_collect())


@pytest.mark.parametrize(
    ("mode", "sums"),
    [(RuntimeExecutionMode.STREAMING, [1, 3]), (RuntimeExecutionMode.BATCH, [3])],
)
def test_dictionaries_are_aggregated_by_field_name(
    mode: RuntimeExecutionMode, sums: list[int]
) -> None:
    """Dictionaries can be keyed by field name as well."""
    sales = [{"city": "A", "n": 1}, {"city": "A", "n": 2}]

    def keyed() -> Any:
        return environment(mode).from_collection(sales).key_by("city")

    found = list(keyed().sum("n").execute_and_collect())
    assert found == [{"city": "A", "n": n} for n in sums]
    assert list(keyed().max_by("n").execute_and_collect())[-1] == sales[1]
    assert sales == [{"city": "A", "n": 1}, {"city": "A", "n": 2}]
    with pytest.raises(OperatorError, match="KeyError: 'm'"):
        list(keyed().sum("m").execute_and_collect())
