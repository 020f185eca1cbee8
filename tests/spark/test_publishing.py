"""Which DataFrames a stream can read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types

from flinkray.file_results import PublishedPartitions
from flinkray.spark.publishing import (
    UnsupportedSparkTypeError,
    arrow_schema,
    finished_before,
    publish,
)
from flinkray.spark.result import InvalidStageResultError


def schema_of(**columns: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def test_spark_types_become_arrow_types() -> None:
    of_place = schema_of(name=types.StringType(), height=types.FloatType())
    schema = arrow_schema(
        schema_of(
            id=types.LongType(),
            price=types.DecimalType(12, 2),
            on=types.DateType(),
            at=types.TimestampType(),
            local=types.TimestampNTZType(),
            tags=types.ArrayType(types.StringType()),
            place=of_place,
        )
    )
    assert schema.field("id").type == pa.int64()
    assert schema.field("price").type == pa.decimal128(12, 2)
    assert schema.field("on").type == pa.date32()
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert schema.field("local").type == pa.timestamp("us")
    assert pa.types.is_list(schema.field("tags").type)
    assert schema.field("place").type.field("height").type == pa.float32()


@pytest.mark.parametrize(
    ("kind", "way_out"),
    [
        (types.MapType(types.StringType(), types.LongType()), "map_entries"),
        (types.ArrayType(types.MapType(types.StringType(), types.LongType())), "map_entries"),
        (types.DayTimeIntervalType(), "cast it to a number"),
        (types.NullType(), "give it a type"),
        (schema_of(inner=types.NullType()), "give it a type"),
    ],
)
def test_column_of_an_unsupported_type_is_named_with_its_type_and_a_remedy(
    kind: types.DataType, way_out: str
) -> None:
    with pytest.raises(UnsupportedSparkTypeError, match=way_out) as caught:
        arrow_schema(schema_of(id=types.LongType(), strange=kind))
    assert f"column 'strange' is of type {kind.simpleString()}" in str(caught.value)


def test_two_columns_of_one_name_are_refused() -> None:
    column = types.StructField("id", types.LongType())
    with pytest.raises(UnsupportedSparkTypeError, match="several columns of the name 'id'"):
        arrow_schema(types.StructType([column, column]))


@pytest.mark.parametrize("returned", [None, 42, "rows"])
def test_function_that_returns_no_dataframe_fails_and_names_the_wanted_type(
    returned: object, tmp_path: Path
) -> None:
    with pytest.raises(InvalidStageResultError, match=r"pyspark\.sql\.DataFrame: return one"):
        publish(returned, str(tmp_path), "attempt")


def test_attempt_returns_its_result_at_once_if_all_partitions_were_published_before(
    tmp_path: Path,
) -> None:
    published = PublishedPartitions(str(tmp_path))
    published.begin("a")
    assert finished_before(str(tmp_path)) is None

    published.seal("a", {0: 3, 1: 4})

    result = finished_before(str(tmp_path))
    assert result is not None
    assert (result.location, result.num_rows) == (None, 7)
