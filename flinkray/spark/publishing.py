"""Publishes a DataFrame's partitions for a stream; the executors' Python workers write them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.core.errors import FlinkRayError
from flinkray.file_results import (
    NonDeterministicSourceError,
    Publication,
    PublishedBatches,
    PublishedPartition,
    PublishedPartitions,
)
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.spark.repeatable_plans import fingerprint, is_repeatable
from flinkray.spark.result import InvalidStageResultError, described

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

logger = logging.getLogger(__name__)


class UnsupportedSparkTypeError(FlinkRayError):
    """Raised if a column of a DataFrame has a type that streams cannot read."""


def finished_before(location: str) -> SparkResult | None:
    """Return the stage's result if earlier attempts have published all partitions or micro-batches;
    None if not."""
    ended = PublishedBatches(location).ended()
    if ended is not None:
        return SparkResult(None, ended.rows, None)
    publication = PublishedPartitions(location).publication()
    if publication is None or publication.rows is None:
        return None
    return SparkResult(None, sum(publication.rows.values()), None)


def publish(
    returned: Any, location: str, attempt_name: str, division: Mapping[str, str] | None = None
) -> SparkResult:
    """Compute a returned DataFrame, and publish its partitions.

    If Spark proves that each partition has the same rows in every computation, readers see a
    partition when it is complete. Otherwise they see all partitions when the last one is complete.

    Args:
        division: session settings that decide how Spark divides rows; a job that continues from a
            savepoint of this one must have the same.

    Raises:
        InvalidStageResultError: no bounded DataFrame was returned.
        UnsupportedSparkTypeError: a stream cannot read a column.
        NonDeterministicSourceError: an earlier attempt has published parts of another DataFrame.
    """
    frame = bounded(returned)
    schema = arrow_schema(frame.schema)
    published = PublishedPartitions(location)
    with _Accepting(published) as accepting:
        writing = _Writing(frame, partial(_write, location, schema), accepting.put)
        # Ask the very plan that is computed: another plan of the same rows may divide them
        # differently.
        if is_repeatable(writing.frame, is_written=True):
            publication_id = fingerprint(writing.frame, is_written=True)
            _begin(published, publication_id, division)
            there = published.list(Publication(publication_id, None))
            accepting.begin(publication_id)
        else:
            publication_id, there = attempt_name, {}
            logger.info("its partitions are read when the last one is there: %s", publication_id)
        written = writing.run(frozenset(there), publication_id)
    for partition in written:
        if partition.name not in accepting.accepted:
            published.accept(publication_id, partition)
    rows = {partition.number: partition.rows for partition in (*there.values(), *written)}
    published.seal(publication_id, rows, division)
    return SparkResult(None, sum(rows.values()), frame.schema.json())


_FOR_STREAMS = (
    "from_spark reads bounded ones: call from_spark_stream, or read with spark.read instead of "
    "spark.readStream"
)


def bounded(returned: Any, why: str = _FOR_STREAMS) -> DataFrame:
    """Return *returned* if it is a bounded DataFrame; otherwise raise InvalidStageResultError.

    Args:
        returned: the value that a user's function returned.
        why: text that says why a streaming DataFrame cannot be used, and what to do.
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


def _begin(
    published: PublishedPartitions, publication_id: str, division: Mapping[str, str] | None
) -> None:
    try:
        published.begin(publication_id, division)
    except NonDeterministicSourceError as error:
        raise NonDeterministicSourceError(
            "the function returned another DataFrame than the time before, of which a stream may "
            f"have read partitions ({error}): let it read the same input, and draw no random "
            "numbers whose seed is not fixed, or write the DataFrame to files and read those"
        ) from error


# --- in the executors -----------------------------------------------------------------------------


WritePartition = Callable[[int, Iterable[pa.RecordBatch]], PublishedPartition]
"""Function that takes the number and the batches of a partition, and writes the partition."""

OnWritten = Callable[[PublishedPartition], None]


def written_partitions(
    frame: DataFrame,
    write: WritePartition,
    there: frozenset[int] = frozenset(),
    on_written: OnWritten | None = None,
) -> list[PublishedPartition]:
    """Compute a DataFrame whose executors write its partitions; return the written partitions.

    Spark may compute a partition several times. Only files of the task attempts that Spark accepts
    are returned: other files may lack rows, or contain rows that Spark has moved elsewhere since.

    *there*: numbers of partitions that need not be computed. *on_written*: called with each
    returned partition (normally; not guaranteed) when Spark reports it. Spark waits during the
    call.
    """
    return _Writing(frame, write, on_written).run(there)


class _Writing:
    """Writes the partitions of a DataFrame. :attr:`frame` is a second DataFrame, with one row for
    each written file; computing it writes the files."""

    def __init__(
        self, frame: DataFrame, write: WritePartition, on_written: OnWritten | None = None
    ) -> None:
        context: Any = frame.sparkSession.sparkContext
        tally = None if on_written is None else context.accumulator([], _Tally(on_written))
        self._context = context
        readable = _with_names_for_python(frame)
        names = () if readable is frame else tuple(frame.columns)
        writer = _PartitionWriter(write, tally, names)
        self.frame = readable.mapInArrow(writer, "number int, rows long, name string")

    def run(
        self, there: frozenset[int] = frozenset(), publication_id: str = ""
    ) -> list[PublishedPartition]:
        """Run the computation and return the written partitions.

        Args:
            there: partitions that need not be computed.
            publication_id: argument of :func:`_write`; known only when Spark has planned the
                DataFrame.
        """
        bits = sum(1 << number for number in there)
        with (
            self._property(_THERE, f"{bits:x}" if bits else None),
            self._property(_PUBLICATION, publication_id or None),
        ):
            rows = self.frame.collect()
        return [PublishedPartition(int(number), int(rows), name) for number, rows, name in rows]

    @contextmanager
    def _property(self, name: str, value: str | None) -> Iterator[None]:
        self._context.setLocalProperty(name, value)
        try:
            yield
        finally:
            self._context.setLocalProperty(name, None)


_THERE = "flinkray.partitions.there"
"""Local property with one bit for each partition that need not be computed, hexadecimal."""
_PUBLICATION = "flinkray.publication"


def _with_names_for_python(frame: DataFrame) -> DataFrame:
    """Return *frame* with columns ``_0``, ``_1``, … if PySpark would misread a name; otherwise
    unchanged. PySpark selects the columns of an input by their names and parses them: `a.b` is a
    field of `a` to it, and `A` is `a`."""
    names = [name.lower() for name in frame.columns]
    if len({*names}) == len(names) and not any(set(".`") & {*name} for name in names):
        return frame
    return frame.toDF(*(f"_{place}" for place in range(len(names))))


def _write(
    location: str, schema: pa.Schema, number: int, batches: Iterable[pa.RecordBatch]
) -> PublishedPartition:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    publication_id = context.getLocalProperty(_PUBLICATION)
    assert publication_id is not None
    return PublishedPartitions(location).write(publication_id, number, schema, batches)


class _Tally:
    """The rule by which a PySpark accumulator collects written partitions. Spark passes to the
    driver only the values of successful task attempts, one for each partition."""

    def __init__(self, on_written: OnWritten | None = None) -> None:
        """Make a rule that calls *on_written* with each written partition, in the driver.
        *on_written* None, as in executors: the values are collected."""
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
    """Context manager: makes written partitions visible to readers, in a thread, while Spark
    computes the others. :meth:`begin` names the publication, :meth:`put` adds a partition."""

    def __init__(self, published: PublishedPartitions) -> None:
        self._published = published
        self._publication_id: str | None = None
        self._written: SimpleQueue[PublishedPartition | None] = SimpleQueue()
        self.accepted: set[str] = set()
        """Names of the accepted partitions; to be read only after the context was left."""
        self._thread = threading.Thread(target=self._accept, name="spark-accepting", daemon=True)

    def begin(self, publication_id: str) -> None:
        self._publication_id = publication_id

    def put(self, partition: PublishedPartition) -> None:
        if self._publication_id is not None:
            self._written.put(partition)

    def _accept(self) -> None:
        while (partition := self._written.get()) is not None:
            assert self._publication_id is not None
            try:
                self._published.accept(self._publication_id, partition)
            except OSError as error:  # accepted again when all partitions are written
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
    """Writes a partition and returns a row that describes it; passed to ``mapInArrow``."""

    def __init__(
        self,
        write: WritePartition,
        tally: Any,
        names: tuple[str, ...],
    ) -> None:
        """Make a function that writes each partition with *write*. *tally*: PySpark's accumulator
        of a :class:`_Tally`, or None. *names*: the original names of the columns, if they were
        renamed in the input; otherwise empty."""
        self._write = write
        self._tally = tally
        self._names = names

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number = context.partitionId()
        if (
            int(context.getLocalProperty(_THERE) or "0", 16) >> number & 1
        ):  # its rows are not computed: no task asks for them
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
    """Convert the columns of a DataFrame to the Arrow schema in which a stream reads them.

    Raises:
        UnsupportedSparkTypeError: there are no columns, two have the same name, or the type of one
            is not supported. The text says what to do.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    names = schema.fieldNames()
    if not names:
        raise UnsupportedSparkTypeError(
            "the DataFrame has no columns, and so no rows that a stream could read: select some"
        )
    twice = first_twice(names)
    if twice is not None:
        raise UnsupportedSparkTypeError(
            f"the DataFrame has several columns of the name {twice!r}, and rows of a stream are "
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
    zone = {"timezone": "UTC"} if "timezone" in takes else {}  # required from Spark 4.3 on
    converted: pa.Schema = to_arrow_schema(schema, **zone)
    return converted


def _way_out(kind: DataType) -> str | None:
    """Return advice for a column type that streams cannot read. None: streams can read it."""
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
