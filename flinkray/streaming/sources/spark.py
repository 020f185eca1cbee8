"""Source of the rows of a DataFrame that a Spark stage of the same job publishes, by partition."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from flinkray.core.clock import Clock
from flinkray.core.ids import JobVertexID
from flinkray.file_results import (
    FileResultLostError,
    NonDeterministicSourceError,
    PublishedPartition,
    PublishedPartitions,
    digest_of,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns, Origin
from flinkray.streaming.records.row import Row
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    Boundedness,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SourceReader,
    SplitEnumerator,
)

PublishedSplitT = TypeVar("PublishedSplitT", bound=tuple[Any, ...])
"""A tuple whose first items define the order of the splits."""

LOOK_INTERVAL = 0.2
"""Seconds between two looks for splits, while a reader waits for one."""


class PublishedSplitsEnumerator(SplitEnumerator[PublishedSplitT]):
    """Hands out splits in order, each as soon as it is published. A reader that asks for a split
    before that waits. Waiting readers are served in the order of their requests."""

    def __init__(self, context: EnumeratorContext[PublishedSplitT], clock: Clock) -> None:
        super().__init__(context)
        self._clock = clock
        self._remaining: list[PublishedSplitT] = []
        """Splits that were found or given back and not handed out, in order. Part of the state."""
        self._waiting: dict[int, None] = {}
        """Waiting subtasks, in the order of their requests."""
        self._due = 0.0

    @abstractmethod
    def find_splits(self) -> list[PublishedSplitT] | None:
        """Return the splits that follow those found before, in order. Empty: they are not published
        yet. None: no split follows."""

    def handle_split_request(self, subtask: int) -> None:
        self._waiting[subtask] = None
        self._serve()

    def next_discovery_time(self) -> float | None:
        return self._due if self._waiting else None

    def discover(self) -> None:
        self._serve()

    def add_splits_back(self, splits: Sequence[PublishedSplitT], subtask: int) -> None:
        self._remaining = sorted([*splits, *self._remaining])
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            found = self._remaining or self.find_splits()
            if found is None:
                self.context.signal_no_more_splits(self._next_waiting())
            elif found:
                self._remaining = found
                self.context.assign_split(self._remaining.pop(0), self._next_waiting())
            else:
                self._due = self._clock.time() + LOOK_INTERVAL
                return

    def _next_waiting(self) -> int:
        subtask = next(iter(self._waiting))
        del self._waiting[subtask]
        return subtask


Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class SparkSplit(NamedTuple):
    """A partition of the DataFrame, of which the first *offset* batches have been read."""

    publication_id: str
    number: int
    rows: int
    name: str
    """Name of the file within the publication."""
    offset: int = 0
    digest: int = 0
    """Digest of the batches that have been read."""


class SparkSource(Source[Row, SparkSplit]):
    """A source of the rows of a Spark stage, in batches of columns. Partitions are handed out in
    order, each when it is published. *type_info*: type of the rows, to which *convert* converts
    them; None: the types of the DataFrame. *is_needed_whole*: whether the job needs all rows,
    because the DataFrame is a lookup table."""

    def __init__(
        self,
        vertex_id: JobVertexID,
        name: str,
        type_info: TypeInformation[Row] | None = None,
        convert: Convert = lambda batch: batch,
        is_needed_whole: bool = False,
    ) -> None:
        self.is_needed_whole = is_needed_whole
        self.vertex_id = vertex_id
        self._name = name
        self._type_info = type_info
        self._convert = convert
        self._location: str | None = None
        self._execution = ""

    def locate(self, location: str, execution: str = "") -> None:
        """Set the directory to which the stage publishes, and the id of the execution of the stream
        that reads it. Both are known only in the processes of the cluster."""
        self._location, self._execution = location, execution

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def get_produced_type(self) -> TypeInformation[Row] | None:
        return self._type_info

    def create_enumerator(
        self, context: EnumeratorContext[SparkSplit], clock: Clock
    ) -> SplitEnumerator[SparkSplit]:
        return SparkEnumerator(context, PublishedPartitions(self.location), self._name, clock)

    def create_reader(self, context: ReaderContext) -> SourceReader[SparkSplit]:
        published = PublishedPartitions(self.read_location(context))
        return _SparkReader(context, published, self._name, self._convert)

    def read_location(self, context: ReaderContext) -> str:
        """Return the directory that a reader reads. Raises StreamError outside of a cluster."""
        if context.stages is not None:
            return context.stages.published(self.vertex_id)
        return self.location

    @property
    def location(self) -> str:
        """Directory in which the stage publishes. Raises StreamError outside of a cluster."""
        if self._location is None:
            raise StreamError(
                f"the Spark stage {self._name!r} runs in the slots of a cluster: give the "
                "environment one, StreamExecutionEnvironment.get_execution_environment("
                "cluster=flinkray.connect())"
            )
        return self._location


class SparkEnumerator(PublishedSplitsEnumerator[SparkSplit]):
    """Hands out the published partitions.
    Its state: id of the publication, number of the next partition, partitions that were given back,
    and the settings by which Spark has divided the rows."""

    def __init__(
        self,
        context: EnumeratorContext[SparkSplit],
        published: PublishedPartitions,
        name: str,
        clock: Clock,
    ) -> None:
        super().__init__(context, clock)
        self._published = published
        self._name = name
        self._publication_id: str | None = None
        self._division: dict[str, str] = {}
        self._next = 0
        self._found: dict[int, PublishedPartition] = {}
        self._end: int | None = None
        """Number after the last partition. None: not known yet."""

    def start(self) -> None:
        """Publish the settings by which Spark has to divide the rows into partitions: those of the
        savepoint from which the job starts, for which its Spark stage waits. Empty: Spark uses its
        own settings."""
        self._published.divide_as(self._division)

    def find_splits(self) -> list[SparkSplit] | None:
        if self._next not in self._found and (self._end is None or self._next < self._end):
            self._look()
        while self._end is not None and self._next < self._end and self._next not in self._found:
            self._next += 1  # Spark has no rows for this partition
        partition = self._found.pop(self._next, None)
        if partition is None:
            return [] if self._end is None else None
        assert self._publication_id is not None
        self._next += 1
        return [SparkSplit(self._publication_id, partition.number, partition.rows, partition.name)]

    def _look(self) -> None:
        publication = self._published.publication()
        if publication is None:
            return
        if publication.publication_id != self._publication_id:
            if self._next:
                raise _computed_otherwise(self._name)
            self._publication_id = publication.publication_id
            self._division = publication.division
        found = self._published.list(publication)
        self._found = {number: one for number, one in found.items() if number >= self._next}
        if publication.rows is not None:
            self._end = max(publication.rows, default=-1) + 1
            for number, rows in publication.rows.items():
                if number >= self._next and number not in found:
                    text = f"partition {number} of {self._name!r}, of {rows} rows, is gone"
                    raise FileResultLostError(text, self._published.location)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self._publication_id, self._next, list(self._remaining), dict(self._division)

    def restore(self, checkpoint: Any) -> None:
        self._publication_id, self._next, given_back, *division = checkpoint
        self._remaining = list(given_back)
        (self._division,) = division or ({},)  # checkpoints of earlier versions have no division


class _SparkReader(SequentialReader[SparkSplit]):
    def __init__(
        self,
        context: ReaderContext,
        published: PublishedPartitions,
        name: str,
        convert: Convert,
    ) -> None:
        super().__init__(context)
        self._published = published
        self._name = name
        self._convert = convert
        self._file: pa.RecordBatchFileReader | None = None
        self._digested = 0
        """Number of batches that the split's digest covers. The digest is updated only when it is
        requested, because most splits are read without a request."""

    def open_split(self, split: SparkSplit) -> None:
        self._split, self._file, self._digested = split, None, split.offset

    def read(self, max_records: int) -> Polled:
        if self._file is None:
            self._file = self._open()
            if self._file is None:
                return NOTHING_NOW
        split = self._split
        if split.offset == self._file.num_record_batches:
            return END_OF_INPUT
        batch = self._convert(self._file.get_batch(split.offset))
        self._split = split._replace(offset=split.offset + 1)
        return Columns(batch, origin=Origin(f"partition {split.number}", split.offset))

    def next_poll_time(self) -> float | None:
        if self._current is not None and self._file is None:
            return self.context.clock.time() + LOOK_INTERVAL
        return super().next_poll_time()

    def _open(self) -> pa.RecordBatchFileReader | None:
        split, published = self._split, self._published
        try:
            return published.open(split.publication_id, split.name)
        except FileResultLostError:
            found = self._published_anew()
        if found is None:
            return None
        file = published.open(split.publication_id, found.name)
        is_same = split.rows == found.rows and split.offset <= file.num_record_batches
        if split.offset and not (is_same and _digest(file, split.offset) == split.digest):
            raise NonDeterministicSourceError(
                f"partition {split.number} of {self._name!r} was read up to batch {split.offset}, "
                f"of {split.rows} rows; computed anew, it has {found.rows} rows, or others, or in "
                f"another order: {_WAY_OUT}"
            )
        self._split = split._replace(name=found.name, rows=found.rows)
        return file

    def _published_anew(self) -> PublishedPartition | None:
        """Return the partition, as this job's Spark stage has published it, that the split of a
        savepoint refers to. None if it is not published yet. Raises an error if this stage
        publishes other data."""
        split, published = self._split, self._published
        publication = published.publication()
        if publication is None:
            return None
        if publication.publication_id != split.publication_id:
            raise _computed_otherwise(self._name)
        found = published.list(publication).get(split.number)
        if found is None and publication.rows is not None:
            text = f"partition {split.number} of {self._name!r}, which was read in part, is gone"
            raise FileResultLostError(text, published.location)
        return found

    def remaining(self) -> SparkSplit:
        if self._file is not None:
            begin, digest = self._digested, self._split.digest
            self._digested = self._split.offset
            digest = _digest(self._file, self._digested, begin, digest)
            self._split = self._split._replace(digest=digest)
        return self._split


def _digest(file: pa.RecordBatchFileReader, end: int, begin: int = 0, before: int = 0) -> int:
    digest = before
    for place in range(begin, end):
        digest = digest_of(file.get_batch(place), digest)
    return digest


_WAY_OUT = (
    "a DataFrame that is read on after a failure has to be the same whenever it is computed; write "
    "it to files first, and read those"
)


def _computed_otherwise(name: str) -> NonDeterministicSourceError:
    return NonDeterministicSourceError(
        f"partitions of {name!r} were read, and what is computed now is another DataFrame, or is "
        f"divided otherwise: {_WAY_OUT}"
    )
