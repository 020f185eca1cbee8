"""A DataFrame that a stream reads: the Python workers of the executors publish its partitions."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from hashlib import blake2b
from inspect import signature
from queue import SimpleQueue
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
_BY_ORDER = re.compile(r"^[\s:+|*()\d-]*(?:Window|Sample)\b", re.MULTILINE)
"""What these make of rows depends on their order, which a shuffle does not keep."""


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
    write = partial(_write, location, publication_id, schema)
    there: dict[int, PublishedPartition] = {}
    accepted: set[str] = set()
    if can_be_repeated:
        _begin(published, publication_id)
        there = published.list(Publication(publication_id, None))
        with _Accepting(published, publication_id) as accepting:
            written = written_partitions(frame, write, frozenset(there), accepting.put)
        accepted = accepting.accepted
    else:
        logger.info("its partitions are read when the last one is there: %s", publication_id)
        written = written_partitions(frame, write)
    for partition in written:
        if partition.name not in accepted:
            published.accept(publication_id, partition)
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
    if _has_times_of_now(frame):
        return False
    is_adaptive = frame.sparkSession.conf.get("spark.sql.adaptive.enabled", "true") == "true"
    decided_later = _SHUFFLE if is_adaptive else _BY_RANGE
    physical = execution.executedPlan().toString()
    if decided_later.search(physical) or _is_shuffled_by_order(physical):
        return False  # and an adaptive plan would compute its shuffles for its RDD
    level: str = execution.toRdd().outputDeterministicLevel().toString()
    return level != _INDETERMINATE


def _has_times_of_now(frame: DataFrame) -> bool:
    """Whether Spark puts in constants when it plans, which are others the next time."""
    context: Any = frame.sparkSession.sparkContext
    pattern = context._jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(frame._jdf.queryExecution().analyzed().containsPattern(pattern))


def _is_shuffled_by_order(physical: str) -> bool:
    """Whether rows go to partitions by what was made of them in whichever order they came."""
    shuffles = [match.start() for match in _SHUFFLE.finditer(physical)]
    return any(
        shuffles and shuffles[0] < match.start() < shuffles[-1]
        for match in _BY_ORDER.finditer(physical)
    )


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
        str(conf.get("spark.sql.session.timeZone")),
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

OnWritten = Callable[[PublishedPartition], None]


def written_partitions(
    frame: DataFrame,
    write: WritePartition,
    there: frozenset[int] = frozenset(),
    on_written: OnWritten | None = None,
) -> list[PublishedPartition]:
    """Compute a DataFrame whose partitions the executors write.

    A file counts only if the attempt at its task does.  Other ones may be of rows that Spark has
    dealt out once more since, or of a part of them: an input that breaks off between two batches
    ends like one that is complete.

    Args:
        there: partitions that need not be computed.
        on_written: told of each partition that counts, as soon as Spark says so; most times of
            all.  Spark waits meanwhile.
    """
    context: Any = frame.sparkSession.sparkContext
    tally = None if on_written is None else context.accumulator([], _Tally(on_written))
    readable = _with_names_for_python(frame)
    names = () if readable is frame else tuple(frame.columns)
    writer = _PartitionWriter(write, there, tally, names)
    written = readable.mapInArrow(writer, "number int, rows long, name string").collect()
    return [PublishedPartition(int(number), int(rows), name) for number, rows, name in written]


def _with_names_for_python(frame: DataFrame) -> DataFrame:
    """PySpark asks for the columns of an input by their names, and reads those: `a.b` is a field
    of `a` to it, and `A` is `a`."""
    names = [name.lower() for name in frame.columns]
    if len({*names}) == len(names) and not any(set(".`") & {*name} for name in names):
        return frame
    return frame.toDF(*(f"_{place}" for place in range(len(names))))


def _write(
    location: str,
    publication_id: str,
    schema: pa.Schema,
    number: int,
    batches: Iterable[pa.RecordBatch],
) -> PublishedPartition:
    return PublishedPartitions(location).write(publication_id, number, schema, batches)


class _Tally:
    """How an accumulator of PySpark adds up what is written.

    Executors collect it.  Spark hands to the driver what an attempt at a task has added, if the
    attempt counts, and of several of one partition that of one.
    """

    def __init__(self, on_written: OnWritten | None = None) -> None:
        """*on_written*: in the driver."""
        self._on_written = on_written

    def __reduce__(self) -> tuple[type[_Tally], tuple[()]]:
        return _Tally, ()

    def zero(self, value: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        return []

    def addInPlace(  # noqa: N802 - PySpark's name
        self, value: list[tuple[int, int, str]], added: list[tuple[int, int, str]]
    ) -> list[tuple[int, int, str]]:
        if self._on_written is None:
            return [*value, *added]
        for one in added:
            self._on_written(PublishedPartition(*one))
        return value


class _Accepting:
    """Accepts partitions of a publication in a thread of its own, while others are computed."""

    def __init__(self, published: PublishedPartitions, publication_id: str) -> None:
        self._published = published
        self._publication_id = publication_id
        self._written: SimpleQueue[PublishedPartition | None] = SimpleQueue()
        self.accepted: set[str] = set()
        """Names; to be asked for afterwards."""
        self._thread = threading.Thread(target=self._accept, name="spark-accepting", daemon=True)

    def put(self, partition: PublishedPartition) -> None:
        """Returns at once."""
        self._written.put(partition)

    def _accept(self) -> None:
        while (partition := self._written.get()) is not None:
            try:
                self._published.accept(self._publication_id, partition)
            except OSError as error:  # it is tried again when all are written
                logger.warning("partition %d is not to be seen yet: %s", partition.number, error)
            else:
                self.accepted.add(partition.name)

    def __enter__(self) -> _Accepting:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._written.put(None)
        self._thread.join()


class _PartitionWriter:
    """For ``mapInArrow``: puts out which partition it has written."""

    def __init__(
        self,
        write: WritePartition,
        there: frozenset[int],
        tally: Any,
        names: tuple[str, ...],
    ) -> None:
        """*tally*: PySpark's accumulator of a :class:`_Tally`, or None.  *names*: of columns
        that have others in the input."""
        self._write = write
        self._there = there
        self._tally = tally
        self._names = names

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if number in self._there:  # its rows are not computed: nobody asks for them
            return
        if self._names:
            batches = (_renamed(batch, self._names) for batch in batches)
        written = self._write(number, batches)
        if self._tally is not None:
            self._tally.add([(written.number, written.rows, written.name)])
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([number], pa.int32()),
                pa.array([written.rows], pa.int64()),
                pa.array([written.name], pa.string()),
            ],
            names=["number", "rows", "name"],
        )


def _renamed(batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.RecordBatch:
    fields = [field.with_name(name) for field, name in zip(batch.schema, names, strict=True)]
    return pa.RecordBatch.from_arrays(batch.columns, schema=pa.schema(fields))


# --- types ----------------------------------------------------------------------------------------


def arrow_schema(schema: StructType) -> pa.Schema:
    """What the columns are in a stream.

    Raises:
        UnsupportedSparkTypeError: the text names column, type, and a way out.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    names = schema.fieldNames()
    if not names:
        raise UnsupportedSparkTypeError(
            "the DataFrame has no columns, and so no rows that a stream could read: select some"
        )
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
