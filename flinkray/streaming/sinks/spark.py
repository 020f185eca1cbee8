"""A sink that passes the rows of each checkpoint to a Spark stage of the same job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa

from flinkray.core.arguments import first_twice
from flinkray.core.errors import SuppressRestartsError
from flinkray.core.ids import JobVertexID
from flinkray.file_results import EpochPart, Epochs, PublishedBatches, ResultWriter
from flinkray.state.operator_state import StateFile
from flinkray.streaming.columnar.conversion import batch_of_type, block_to_batch
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sinks.sink import (
    CommitRequest,
    Committed,
    Committer,
    CommitterContext,
    CommitterWithFiles,
    Sink,
    SinkError,
    SinkWriter,
    WriterContext,
)
from flinkray.streaming.sources.source import StageLocations

_MOST_HELD = 8 << 20
"""Bytes held in memory before a row group is written: many small groups are slow to read."""


class SparkEpochSink(Sink[object, EpochPart]):
    """Writes rows to Parquet files before each checkpoint. When the checkpoint is complete, its
    rows (an *epoch*) are published to a Spark stage. *vertex_id*, *name*: id and name of the stage.
    *is_read*: whether a stream reads the stage's output."""

    commits_in_order = True

    def __init__(self, vertex_id: JobVertexID, name: str, is_read: bool = False) -> None:
        self.vertex_id = vertex_id
        self._name = name
        self._is_read = is_read
        self._location: str | None = None
        self._published = ""

    def locate(self, location: str, published: str) -> None:
        """Set the directory from which the stage takes epochs (*location*), and the directory where
        it publishes its output, if a stream reads this output (*published*)."""
        self._location, self._published = location, published

    def _locate(self, stages: StageLocations | None) -> None:
        """Set the stage's directories as *stages* says. None, outside of a cluster: do nothing."""
        if stages is not None:
            self.locate(stages.epochs(self.vertex_id), stages.published(self.vertex_id))

    def create_writer(self, context: WriterContext) -> SinkWriter[EpochPart]:
        self._locate(context.stages)
        return _EpochWriter(self._epochs(), context.type_info)

    def create_committer(self, context: CommitterContext) -> Committer[EpochPart]:
        self._locate(context.stages)
        published = PublishedBatches(self._published) if self._is_read else None
        return _EpochCommitter(self._epochs(), self._name, published)

    def _epochs(self) -> Epochs:
        if self._location is None:
            raise StreamError(
                f"the Spark stage {self._name!r} runs in the slots of a cluster: give the "
                "environment one, StreamExecutionEnvironment.get_execution_environment("
                "cluster=flinkray.connect())"
            )
        return Epochs(self._location)


class EpochOfAnotherJobError(SinkError, SuppressRestartsError):
    """Raised when a savepoint refers to rows of another job, but has no copies of them."""


class _EpochWriter(SinkWriter[EpochPart]):
    def __init__(self, epochs: Epochs, type_info: TypeInformation | None) -> None:
        self._epochs = epochs
        self._type_info = type_info
        self._held: list[pa.RecordBatch] = []
        self._bytes = 0
        self._name = ""
        self._writer: ResultWriter | None = None
        self._schema: pa.Schema | None = None
        """Schema of the present epoch."""

    def write(self, block: Block) -> None:
        if len(block):
            self._add(block_to_batch(block, self._type_info))

    def write_columns(self, columns: Columns) -> None:
        batch, declared = columns.batch, self._type_info
        self._add(batch if declared is None else batch_of_type(batch, declared))

    def _add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._schema is None or not batch.schema.equals(self._schema):
            check_columns(batch.schema)
            self._write_held()  # the writer reports what is wrong with a second schema
            self._schema = batch.schema
        self._held.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= _MOST_HELD:
            self._write_held()

    def _write_held(self) -> None:
        if not self._held:
            return
        if self._writer is None:
            self._name, directory = self._epochs.new_part()
            self._writer = ResultWriter(directory)
        self._writer.write(_in_microseconds(pa.Table.from_batches(self._held)))
        self._held, self._bytes = [], 0

    def prepare_commit(self, end_of_input: bool) -> Sequence[EpochPart]:
        self._write_held()
        writer, schema, self._writer, self._schema = self._writer, self._schema, None, None
        if writer is None:
            return ()
        assert schema is not None
        writer.finish()
        self._epochs.sync(self._name)
        columns = ", ".join(f"{field.name}: {field.type}" for field in schema)
        return (EpochPart(self._name, writer.rows, columns, self._epochs.location),)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.abandon()


class _EpochCommitter(CommitterWithFiles[EpochPart]):
    def __init__(self, epochs: Epochs, name: str, published: PublishedBatches | None) -> None:
        """Make the committer of the Spark stage *name*, which publishes to *epochs*.
        *published*: the output of the stage, if a stream reads this output."""
        self._epochs = epochs
        self._name = name
        self._published = published
        self._files: Mapping[str, StateFile] = {}
        self._may_be_done = True
        """Whether there may be published epochs whose files were not deleted yet."""

    def commit(self, requests: Sequence[CommitRequest[EpochPart]]) -> None:
        """Publish the epoch of a checkpoint. *requests* are all requests of the checkpoint,
        because barriers are aligned."""
        parts = [request.committable for request in requests]
        checkpoint_id = requests[0].checkpoint_id
        if any(part.location != self._epochs.location for part in parts):
            if checkpoint_id <= self._epochs.last_done().checkpoint_id:
                return  # the job has failed since it was started, and begins anew
            parts = [self._own(part, parts, checkpoint_id) for part in parts]
        self._epochs.publish(checkpoint_id, parts)
        self._may_be_done = True

    def not_done(self) -> list[Committed]:
        """Return the epochs (rows of complete checkpoints) that a savepoint has to keep: those that
        the stage has not processed or, if a stream reads the stage's output, whose output was not
        read to its end. A job started from the savepoint makes this output again, and skips what
        was read."""
        consumed = self._epochs.last_done().checkpoint_id
        if self._published is not None:
            consumed = self._published.consumed()
        epochs = self._epochs.published(consumed)
        return [Committed(epoch.checkpoint_id, part) for epoch in epochs for part in epoch.parts]

    def files_of(self, committables: Sequence[EpochPart]) -> Iterator[StateFile]:
        for part in committables:
            directory = self._epochs.part(part.name)
            for name in directory.names():
                yield StateFile(_carried_name(part, name), partial(directory.read_pieces, name))

    def restore_files(self, files: Mapping[str, StateFile]) -> None:
        self._files = files

    def delete_done(self) -> None:
        if self._may_be_done:
            done = self._epochs.last_done().checkpoint_id
            if self._published is not None:
                done = min(done, self._published.consumed())
            self._epochs.delete(done)
            self._may_be_done = bool(self._epochs.published(done))

    def _own(self, part: EpochPart, parts: Sequence[EpochPart], checkpoint_id: int) -> EpochPart:
        """Return *part* if its files belong to this job. If they belong to another job, copy them
        from the savepoint to this job's files and return the copy. Raises EpochOfAnotherJobError:
        the savepoint has no copies."""
        if part.location == self._epochs.location:
            return part
        prefix = _carried_name(part, "")
        files = {
            name.removeprefix(prefix): file
            for name, file in self._files.items()
            if name.startswith(prefix)
        }
        if not files:
            rows = sum(part.rows for part in parts)
            raise EpochOfAnotherJobError(
                f"{rows} rows for {self._name!r} belong to checkpoint {checkpoint_id} of another "
                "job and lie in its files, which go with it, and what this job begins with has no "
                "copy of them: it is a checkpoint, or a savepoint of an earlier flinkray.  Take a "
                f"savepoint of that job, or look for checkpoint {checkpoint_id}, or the next one, "
                "in what Spark has written: that job has handed them over if it went on.  To go on "
                "without them, give the sink another uid, and allow state that is not restored"
            )
        directory = self._epochs.part(part.name)
        for name, file in files.items():
            directory.write_pieces(name, file.pieces())
        directory.list()  # raises if a file is missing
        self._epochs.sync(part.name)
        return part._replace(location=self._epochs.location)


def _carried_name(part: EpochPart, name: str) -> str:
    return f"{part.name}/{name}"


# --- columns --------------------------------------------------------------------------------------


def check_columns(schema: pa.Schema) -> None:
    """Check that Spark can read the columns.
    Raises SinkError: Spark cannot read a column. The text has its name, its type, and a remedy."""
    twice = first_twice([name.lower() for name in schema.names])
    if twice is not None:
        raise SinkError(
            f"the rows have several columns of the name {twice!r}, which are one to Spark, as "
            "it does not tell small letters from capitals: rename them"
        )
    for field in schema:
        way_out = _way_out(field.type, is_column=True)
        if way_out is not None:
            raise SinkError(
                f"column {field.name!r} is of type {field.type}, which Spark cannot read: {way_out}"
            )


def _way_out(kind: pa.DataType, *, is_column: bool = False) -> str | None:
    """Return what the user can do, as a text for errors, if Spark does not know the type. None:
    Spark knows it. *is_column*: whether it is the type of a whole column, not of a part of one."""
    if pa.types.is_dictionary(kind):
        return _way_out(kind.value_type)
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            return "give it a field, or leave it out"
        inner = [kind.field(place).type for place in range(kind.num_fields)]
        return next((out for one in inner if (out := _way_out(one))), None)
    if pa.types.is_map(kind):
        return _way_out(kind.key_type) or _way_out(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _way_out(kind.value_type)
    if pa.types.is_null(kind):
        return "none of its values says what it is; declare the type of the stream"
    if pa.types.is_timestamp(kind):
        return None if is_column or kind.unit != "ns" else "round it to microseconds"
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        return "make it a number"
    if pa.types.is_float16(kind):
        return "make it a float32"
    if pa.types.is_decimal(kind):
        return None if kind.precision <= 38 else "round it to 38 digits"
    known = (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_date(kind)
    )
    return None if known else "make it a string"


def _in_microseconds(table: pa.Table) -> pa.Table:
    """Return the table with its timestamps in microseconds. Raises SinkError if a timestamp has a
    rest of nanoseconds."""
    for place, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            try:
                column = table.column(place).cast(pa.timestamp("us", field.type.tz))
            except pa.ArrowInvalid as error:
                raise SinkError(
                    f"column {field.name!r} has nanoseconds, and Spark knows microseconds only: "
                    f"round it ({error})"
                ) from error
            table = table.set_column(place, field.name, column)
    return table
