"""Publishes a streaming DataFrame's micro-batches, which a stream reads, as Spark computes them.

Before Spark computes a micro-batch, Spark notes in its own checkpoint which rows of its sources
belong to the batch. After the publication, Spark notes that the batch is done. A new attempt
computes a batch between these notes again, from the same rows. If this batch was published, it is
not published again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flinkray.core.errors import ConfigurationError
from flinkray.file_results import Epoch, MicroBatch, PublishedBatches, PublishedPartition
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.spark.epochs import EpochTaker, NoMoreWantedError, handed_over_before
from flinkray.spark.publishing import arrow_schema, bounded, written_partitions
from flinkray.spark.result import InvalidStageResultError, described
from flinkray.spark.stage_code import SparkFunction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

MOST_WAITING = 16
"""Largest number of published micro-batches that no task has read yet; with more, Spark waits."""

LOOK_INTERVAL = 0.2
"""Seconds between two checks of the stream's progress."""

_OF_ROWS = (
    "through_spark makes a bounded one of the rows of each checkpoint: make it of the DataFrame "
    "that the function is given, and read tables with spark.read instead of spark.readStream"
)

AS_SOON_AS_POSSIBLE: Mapping[str, object] = {"processingTime": "0 seconds"}
_TRIGGERS = ("processingTime", "availableNow", "once")
_OUTPUT_MODES = ("append", "update")


@dataclass(frozen=True, slots=True)
class StreamedFrame:
    """A streaming DataFrame that the user's function returned, with trigger and output mode."""

    returned: Any
    trigger: Mapping[str, object]
    output_mode: str


def streamed(
    function: SparkFunction, trigger: Mapping[str, object] | None, output_mode: str
) -> SparkFunction:
    """Wrap a function that returns a streaming DataFrame, and fix the query's trigger and output
    mode.

    *trigger* None: a micro-batch begins as soon as possible.

    Raises:
        ConfigurationError: there is no such trigger, or no such output mode.
    """
    chosen = AS_SOON_AS_POSSIBLE if trigger is None else dict(trigger)
    if len(chosen) != 1 or not chosen.keys() <= set(_TRIGGERS):
        raise ConfigurationError(
            f"trigger is {trigger!r}: give one of {', '.join(_TRIGGERS)}, as PySpark's "
            "DataStreamWriter.trigger takes it, {'processingTime': '1 second'} for instance"
        )
    if output_mode not in _OUTPUT_MODES:
        raise ConfigurationError(
            f"output_mode is {output_mode!r}: it is one of {', '.join(_OUTPUT_MODES)}.  (In the "
            "mode 'complete' each micro-batch would repeat all rows, which a stream would count "
            "again)"
        )

    @wraps(function)
    def run(spark: Any) -> StreamedFrame:
        return StreamedFrame(function(spark), chosen, output_mode)

    return run


def publish_stream(
    frame: StreamedFrame,
    location: str,
    execution: str,
    stopping: threading.Event,
    *,
    goes_on: bool = False,
) -> SparkResult:
    """Run the query and publish its micro-batches at *location*.

    Returns when the query ends, no stream reads it any more, or the stage is to stop.

    Args:
        execution: id of the reading stream's execution (see ``stream_execution``); another id each
            time the stream goes back to a checkpoint.
        goes_on: whether the job starts from a savepoint. Then the query begins only when the
            reader has noted how many batches are before the savepoint.

    Raises:
        InvalidStageResultError: no streaming DataFrame was returned.
        UnsupportedSparkTypeError: a stream cannot read a column.
        MicroBatchColumnsError: an earlier attempt has published other columns.
        FlinkRayError, OSError: a micro-batch could not be published.
        StreamingQueryException: the query failed.
    """
    streaming = _streaming(frame.returned)
    batches = PublishedBatches(location)
    publisher = _Publisher(batches, arrow_schema(streaming.schema), execution, stopping)
    schema = streaming.schema.json()
    while goes_on and batches.goes_on_after() is None:
        if publisher.is_over():
            return SparkResult(None, batches.progress().rows, schema)
        stopping.wait(LOOK_INTERVAL)
    batches.begin(streaming.schema.simpleString())
    trigger: Any = frame.trigger
    query = (
        streaming.writeStream.foreachBatch(publisher)
        .outputMode(frame.output_mode)
        .option("checkpointLocation", batches.query.location)
        .trigger(**trigger)
        .start()
    )
    from pyspark.errors import StreamingQueryException

    while query.isActive:
        if publisher.is_over():
            query.stop()
        stopping.wait(LOOK_INTERVAL)
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if publisher.error is None:
            raise
        if not isinstance(publisher.error, NoMoreWantedError):
            raise publisher.error from None
    if not publisher.is_over():
        batches.end()
    return SparkResult(None, batches.progress().rows, schema)


def _streaming(returned: Any) -> DataFrame:
    from pyspark.sql import DataFrame

    if not isinstance(returned, DataFrame):
        raise InvalidStageResultError(
            f"the function returned {described(returned)}; a stream reads the rows of a "
            "pyspark.sql.DataFrame: return one"
        )
    if not returned.isStreaming:
        raise InvalidStageResultError(
            "the function returned a bounded DataFrame, and from_spark_stream reads streaming "
            "ones: call from_spark, or read with spark.readStream instead of spark.read"
        )
    return returned


class _Publisher:
    """Publishes the micro-batches of a query; passed to ``foreachBatch``. Spark calls it in another
    thread than the one that created it."""

    def __init__(
        self,
        batches: PublishedBatches,
        schema: pa.Schema,
        execution: str,
        stopping: threading.Event,
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._execution = execution
        self._stopping = stopping
        self.error: BaseException | None = None
        """Error that a call has raised; Spark reports only its text."""

    def is_over(self) -> bool:
        return self._stopping.is_set() or self._batches.is_read_no_more(self._execution)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        with ExitStack() as calling:
            calling.push(self._note)
            if self._batches.is_published(batch_id):
                logger.info("micro-batch %d was published before", batch_id)
                # Only so does Spark learn the progress of event time and the state to keep.
                frame.write.format("noop").mode("overwrite").save()
                return
            _wait_for_room(self._batches, self._stopping, self.is_over)
            partitions = _written(frame, self._batches.location, self._schema)
            self._batches.publish(MicroBatch(batch_id, partitions))

    def _note(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.error = error


def gone_through_before(epochs: str, published: str, execution: str) -> SparkResult | None:
    """Return the stage's result if earlier attempts have processed all epochs at *epochs*; None if
    not. If there is a result, the end of the micro-batches at *published* is noted (again): the
    last attempt may have died before it noted the end."""
    result = handed_over_before(epochs, execution)
    if result is not None:  # the last attempt may have died before it reported its end
        PublishedBatches(published).end(execution)
    return result


class EpochsToBatches(EpochTaker):
    """Publishes the function's result for each epoch as the next micro-batch.

    Args:
        location: location of the published micro-batches.
        execution: id of the streams' execution; another id each time they go back to a checkpoint.
    """

    def __init__(self, location: str, execution: str, stopping: threading.Event) -> None:
        self._batches = PublishedBatches(location)
        self.location = self._batches.location
        self._execution = execution
        self._stopping = stopping
        self._batch_id = 0

    def is_over(self) -> bool:
        return self._batches.is_read_no_more(self._execution)

    def is_taken(self, epoch: Epoch) -> bool:
        # The id is read now, not at the publication: an attempt that was replaced in the meantime
        # publishes the same epoch under the same number.
        self._batch_id, origin = self._batches.next_batch()
        return origin >= epoch.checkpoint_id

    def take(self, returned: object, epoch: Epoch) -> None:
        frame = bounded(returned, _OF_ROWS)
        schema = arrow_schema(frame.schema)
        self._batches.begin(frame.schema.simpleString())
        self.wait_for_room()
        self.publish(_written(frame, self._batches.location, schema), epoch)

    def wait_for_room(self) -> None:
        """Wait while readers have too many micro-batches left to read. Raises NoMoreWantedError: no
        stream reads them any more, or the stage is to stop."""

        def is_over() -> bool:
            return self._stopping.is_set() or self.is_over()

        _wait_for_room(self._batches, self._stopping, is_over)

    def publish(self, partitions: tuple[PublishedPartition, ...], epoch: Epoch) -> None:
        """Publish *partitions* as the function's result for *epoch*, under the number that the last
        call of :meth:`is_taken` has chosen; *epoch* must be the argument of that call."""
        self._batches.publish(MicroBatch(self._batch_id, partitions, epoch.checkpoint_id))

    def end(self) -> None:
        self._batches.end(self._execution)


def _wait_for_room(
    batches: PublishedBatches, stopping: threading.Event, is_over: Callable[[], bool]
) -> None:
    while batches.waiting() >= MOST_WAITING:
        if is_over():
            raise NoMoreWantedError("the stream takes no more micro-batches")
        stopping.wait(LOOK_INTERVAL)


def _written(frame: DataFrame, location: str, schema: pa.Schema) -> tuple[PublishedPartition, ...]:
    write = partial(_write, location, schema)
    return tuple(one for one in written_partitions(frame, write) if one.rows)


def _write(
    location: str, schema: pa.Schema, number: int, batches: Iterable[pa.RecordBatch]
) -> PublishedPartition:
    return PublishedBatches(location).write(number, schema, batches)
