"""A DataFrame that a stream reads: the Python workers of the executors publish its partitions."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flinkray.core.errors import FlinkRayError
from flinkray.file_results import (
    NonDeterministicSourceError,
    Publication,
    PublishedBatches,
    PublishedPartition,
    PublishedPartitions,
)
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.spark.result import InvalidStageResultError, described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

logger = logging.getLogger(__name__)

_EXPRESSION_ID = re.compile(r"#\d+")
_MOST_FIELDS = "spark.sql.debug.maxToStringFields"
_OPAQUE = re.compile(r"\b(?:LogicalRDD|ExternalRDD|LocalRelation|InMemoryRelation)\b")
"""Rows that Spark has already, or that come of functions: the plan does not say which they are."""
_ACCESS_TIME = re.compile(r"access_time=\d+; ")
_LIMIT = re.compile(r"^[\s:+|-]*(?:Global|Local)?Limit\b", re.MULTILINE)
"""Of whichever rows come first."""
_SHUFFLE = re.compile(r"(?<!Broadcast)Exchange\b")
_INDETERMINATE = "INDETERMINATE"
"""What Spark says of rows that are dealt out one after the other, in whichever order they came."""
_BY_RANGE = re.compile(r"(?<!Broadcast)Exchange rangepartitioning\(")
"""Spark draws the bounds from a sample, by a number that counts what its session did before."""


class UnsupportedSparkTypeError(FlinkRayError):
    """A column of a DataFrame that a stream is to read has a type that streams do not know."""


def finished_before(location: str) -> SparkResult | None:
    """What earlier attempts of the stage have published, if it is complete."""
    ended = PublishedBatches(location).ended()
    if ended is not None:
        return SparkResult(None, ended.rows, None)
    publication = PublishedPartitions(location).publication()
    if publication is None or publication.rows is None:
        return None
    return SparkResult(None, sum(publication.rows.values()), None)


def publish(returned: Any, location: str, attempt_name: str) -> SparkResult:
    """Compute a returned DataFrame, and publish its partitions.

    Readers see a partition when it is complete if the DataFrame is divided into the same partitions
    whenever it is computed; else they see all of them when the last one is.

    Raises:
        InvalidStageResultError: no bounded DataFrame was returned.
        UnsupportedSparkTypeError: a stream cannot read it.
        NonDeterministicSourceError: an earlier attempt has published parts of another DataFrame.
    """
    frame = bounded(returned)
    schema = arrow_schema(frame.schema)
    published = PublishedPartitions(location)
    can_be_repeated = is_repeatable(frame)
    publication_id = fingerprint(frame) if can_be_repeated else attempt_name
    there: dict[int, PublishedPartition] = {}
    if can_be_repeated:
        _begin(published, publication_id)
        there = published.list(Publication(publication_id, None))
    else:
        logger.info("its partitions are read when the last one is there: %s", publication_id)
    write = partial(_write, location, publication_id, schema)
    written = written_partitions(frame, write, frozenset(there))
    rows = {partition.number: partition.rows for partition in (*there.values(), *written)}
    published.seal(publication_id, rows)
    return SparkResult(None, sum(rows.values()), frame.schema.json())


_FOR_STREAMS = (
    "from_spark reads bounded ones: call from_spark_stream, or read with spark.read instead of "
    "spark.readStream"
)


def bounded(returned: Any, why: str = _FOR_STREAMS) -> DataFrame:
    """
    Args:
        why: a streaming one is no use, and what to do.

    Raises:
        InvalidStageResultError: it is no bounded DataFrame.
    """
    from pyspark.sql import DataFrame

    if not isinstance(returned, DataFrame):
        raise InvalidStageResultError(
            f"the function returned {described(returned)}; a stream reads the rows of a "
            "pyspark.sql.DataFrame: return one"
        )
    if returned.isStreaming:
        raise InvalidStageResultError(f"the function returned a streaming DataFrame, and {why}")
    return returned


def _begin(published: PublishedPartitions, publication_id: str) -> None:
    try:
        published.begin(publication_id)
    except NonDeterministicSourceError as error:
        raise NonDeterministicSourceError(
            "the function returned another DataFrame than the time before, of which a stream may "
            f"have read partitions ({error}): let it read the same input, and draw no random "
            "numbers whose seed is not fixed, or write the DataFrame to files and read those"
        ) from error


# --- whether it is the same whenever it is computed -----------------------------------------------


def is_repeatable(frame: DataFrame) -> bool:
    """Whether its partitions have the same rows, in whatever order, when it is computed again.

    What Spark decides while the query runs - of shuffles by adaptive execution, and of the bounds
    of a sort - may be decided otherwise then.
    """
    execution = frame._jdf.queryExecution()
    logical = execution.optimizedPlan()
    text = logical.toString()
    if not logical.deterministic() or _LIMIT.search(text) or _OPAQUE.search(text):
        return False
    is_adaptive = frame.sparkSession.conf.get("spark.sql.adaptive.enabled", "true") == "true"
    decided_later = _SHUFFLE if is_adaptive else _BY_RANGE
    if decided_later.search(execution.executedPlan().toString()):
        return False  # and an adaptive plan would compute its shuffles for its RDD
    level: str = execution.toRdd().outputDeterministicLevel().toString()
    return level != _INDETERMINATE


def fingerprint(frame: DataFrame) -> str:
    """Of the plan with all seeds in it, the input files with their lengths and times, and how many
    partitions there are."""
    conf = frame.sparkSession.conf
    most = conf.get(_MOST_FIELDS, "25")
    assert most is not None
    conf.set(_MOST_FIELDS, "1000000")  # else the text leaves some out
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    conf.set(_MOST_FIELDS, most)
    parts = [
        _EXPRESSION_ID.sub("#", plan),
        *sorted(frame.inputFiles()),
        *_file_statuses(frame),
        str(frame.rdd.getNumPartitions()),
        frame.schema.json(),
    ]
    return blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


def _file_statuses(frame: DataFrame) -> list[str]:
    """Of the files that Spark's own sources read."""
    leaves = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    statuses = []
    for place in range(leaves.size()):
        leaf = leaves.apply(place)
        if leaf.getClass().getSimpleName() != "LogicalRelation":
            continue
        relation = leaf.relation()
        if relation.getClass().getSimpleName() != "HadoopFsRelation":
            continue
        index = relation.location()
        if index.getClass().getSimpleName() == "InMemoryFileIndex":
            statuses.append(_ACCESS_TIME.sub("", index.allFiles().mkString("\n")))
    return sorted(statuses)


# --- in the executors -----------------------------------------------------------------------------


WritePartition = Callable[[int, Iterable[pa.RecordBatch]], PublishedPartition]
"""Takes the number of a partition, and what is in it."""


def written_partitions(
    frame: DataFrame, write: WritePartition, there: frozenset[int] = frozenset()
) -> list[PublishedPartition]:
    """Compute a DataFrame whose partitions the executors write.

    Args:
        there: partitions that need not be computed.
    """
    writer = _PartitionWriter(write, there)
    written = frame.mapInArrow(writer, "number int, rows long, name string").collect()
    return [PublishedPartition(int(number), int(rows), name) for number, rows, name in written]


def _write(
    location: str,
    publication_id: str,
    schema: pa.Schema,
    number: int,
    batches: Iterable[pa.RecordBatch],
) -> PublishedPartition:
    return PublishedPartitions(location).write(publication_id, number, schema, batches)


class _PartitionWriter:
    """For ``mapInArrow``: puts out which partition it has written."""

    def __init__(self, write: WritePartition, there: frozenset[int]) -> None:
        self._write = write
        self._there = there

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if number in self._there:  # its rows are not computed: nobody asks for them
            return
        written = self._write(number, batches)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([number], pa.int32()),
                pa.array([written.rows], pa.int64()),
                pa.array([written.name], pa.string()),
            ],
            names=["number", "rows", "name"],
        )


# --- types ----------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """What the columns are in a stream.

    Raises:
        UnsupportedSparkTypeError: the text names column, type, and a way out.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    names = schema.fieldNames()
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnsupportedSparkTypeError(
            f"the DataFrame has several columns of the name {twice[0]!r}, and rows of a stream are "
            "read by names: rename them, with toDF(...) or alias(...)"
        )
    for field in schema.fields:
        way_out = _way_out(field.dataType)
        if way_out is not None:
            raise UnsupportedSparkTypeError(
                f"column {field.name!r} is of type {field.dataType.simpleString()}, which no "
                f"stream can read: {way_out}"
            )
    takes = signature(to_arrow_schema).parameters
    zone = {"timezone": "UTC"} if "timezone" in takes else {}  # from Spark 4.3 on it must be told
    converted: pa.Schema = to_arrow_schema(schema, **zone)
    return converted


def _way_out(kind: DataType) -> str | None:
    """None: streams know the type."""
    from pyspark.sql import types

    if isinstance(kind, types.ArrayType):
        return _way_out(kind.elementType)
    if isinstance(kind, types.StructType):
        return next((out for f in kind.fields if (out := _way_out(f.dataType))), None)
    if isinstance(kind, types.MapType):
        return "make it a list of keys and values, with map_entries(...)"
    if isinstance(kind, types.DayTimeIntervalType | types.YearMonthIntervalType):
        return "cast it to a number, or to a string"
    if isinstance(kind, types.UserDefinedType):
        return "select what it consists of, as vector_to_array(...) does"
    if isinstance(kind, types.NullType):
        return "give it a type, with cast(...)"
    known = (
        types.BooleanType,
        types.IntegralType,
        types.FractionalType,
        types.StringType,
        types.CharType,
        types.VarcharType,
        types.BinaryType,
        types.DateType,
        types.TimestampType,
        types.TimestampNTZType,
    )
    return None if isinstance(kind, known) else "cast it to a string"
