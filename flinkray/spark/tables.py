"""Checks the key of a DataFrame in which a stream looks up rows, before it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from flinkray.core.errors import FlinkRayError
from flinkray.spark.publishing import bounded
from flinkray.spark.stage_code import SparkFunction

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableKeyError(FlinkRayError):
    """Raised if a DataFrame lacks a column of the key, or if values of this column cannot be
    keys."""


def with_key(function: SparkFunction, columns: Sequence[str]) -> SparkFunction:
    """Return *function* with a check that *columns* can be the key of the DataFrame that it
    returns. The result raises TableKeyError if they cannot."""

    @wraps(function)
    def keyed(spark: Any) -> Any:
        frame = bounded(function(spark))
        check_key(frame.schema, columns)
        return frame

    return keyed


def check_key(schema: StructType, columns: Sequence[str]) -> None:
    """Check that columns of *schema* can be a key. Raises TableKeyError, which names a column that
    cannot."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    kinds = {field.name: field.dataType for field in schema.fields}
    for column in columns:
        kind = kinds.get(column)
        if kind is None:
            raise TableKeyError(
                f"the key of the table is {column!r}, and the DataFrame has no such column; it has "
                f"{', '.join(kinds)}"
            )
        if isinstance(kind, ArrayType | MapType | StructType):
            raise TableKeyError(
                f"the key of the table is {column!r}, of type {kind.simpleString()}, which cannot "
                "be a key: select its parts as columns, or cast it to a string"
            )
