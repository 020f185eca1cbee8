"""The key of a table, as it is looked at before the table is computed."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import types

from flinkray.spark.result import InvalidStageResultError
from flinkray.spark.tables import TableKeyError, check_key, with_key
from flinkray.user_code import dump_function, load_function


def schema_of(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


PLANES = schema_of(
    tailnum=types.StringType(),
    built=types.IntegerType(),
    seats=types.ArrayType(types.IntegerType()),
    maker=schema_of(name=types.StringType()),
)


@pytest.mark.parametrize("columns", [["tailnum"], ["built", "tailnum"]])
def test_table_columns_whose_values_can_be_keys_are_accepted_as_key(columns: list[str]) -> None:
    check_key(PLANES, columns)


@pytest.mark.parametrize("columns", [["tail"], ["tailnum", "tail"]])
def test_unknown_key_column_is_refused_with_the_columns_that_exist(columns: list[str]) -> None:
    with pytest.raises(TableKeyError) as caught:
        check_key(PLANES, columns)
    assert str(caught.value) == (
        "the key of the table is 'tail', and the DataFrame has no such column; it has tailnum, "
        "built, seats, maker"
    )


@pytest.mark.parametrize(("column", "kind"), [("seats", "array<int>"), ("maker", "struct")])
def test_key_column_of_an_unsuitable_type_is_refused_with_its_type(column: str, kind: str) -> None:
    with pytest.raises(TableKeyError, match=f"'{column}', of type {kind}.*cannot be a key"):
        check_key(PLANES, ["tailnum", column])


def planes(spark: Any) -> Any:
    return spark


@pytest.mark.parametrize("function", [planes, lambda spark: spark])
def test_function_that_returns_no_dataframe_fails_when_called_on_the_cluster(function: Any) -> None:
    travelled = load_function(dump_function(with_key(function, ["tailnum"])))
    with pytest.raises(InvalidStageResultError, match=r"pyspark\.sql\.DataFrame: return one"):
        travelled(42)
