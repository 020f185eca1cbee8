"""Source of the rows of a streaming DataFrame that a Spark stage publishes by micro-batch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from flinkray.core.clock import Clock
from flinkray.core.errors import SuppressRestartsError
from flinkray.file_results import PublishedBatches, QueryCheckpointError
from flinkray.state.operator_state import StateFile
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns, Origin
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SequentialReader,
    SourceReader,
    SourceReaderWithFiles,
    SplitEnumerator,
)
from flinkray.streaming.sources.spark import PublishedSplitsEnumerator, SparkSource

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]

_QUERY = "query.tar"
"""The file of a savepoint with Spark's checkpoint of the query."""

_CUT_LOOKS = 50
_CUT_INTERVAL = 0.2
"""Seconds between two looks for the number of micro-batches at a cut."""


class MicroBatchLostError(StreamError, SuppressRestartsError):
    """A micro-batch that a checkpoint needs does not exist any more."""


class MicroBatchesOfAnotherJobError(StreamError, SuppressRestartsError):
    """The job cannot continue with the micro-batches of another job.
    They do not match the micro-batches of this job, or they lie in the other job's files, of which
    the checkpoint or savepoint has no copies."""


class MicroBatchSplit(NamedTuple):
    """A partition of a micro-batch, of which the first *offset* record batches have been read."""

    batch_id: int
    number: int
    name: str
    """Name of the partition's file."""
    offset: int = 0
    location: str = ""
    """Location of the micro-batches that the file belongs to."""


class SparkStreamSource(SparkSource):
    """A source of the rows that a streaming query of Spark puts out, in batches of columns.
    Micro-batches are handed out in order, each as soon as it is published. Readers add copies of
    the micro-batches' files to savepoints."""

    of_epochs: ClassVar[bool] = False
    """Whether the micro-batches are made of the epochs of a stream, not by a query."""

    def get_boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Any], clock: Clock
    ) -> SplitEnumerator[Any]:
        batches = PublishedBatches(self.location)
        return MicroBatchEnumerator(
            context, batches, self._name, clock, self._execution, of_epochs=self.of_epochs
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[Any]:
        batches = PublishedBatches(self.read_location(context))
        return _QueryReader(context, batches, self._name, self._convert)


class SparkEpochsSource(SparkStreamSource):
    """A source of the rows that a Spark stage makes of the epochs of another stream."""

    of_epochs = True

    def create_reader(self, context: ReaderContext) -> SourceReader[Any]:
        batches = PublishedBatches(self.read_location(context))
        return _MicroBatchReader(context, batches, self._name, self._convert)


class MicroBatchEnumerator(PublishedSplitsEnumerator[MicroBatchSplit]):
    """Hands out the partitions of published micro-batches.

    Its state: location of the micro-batches, number of the next micro-batch, partitions not handed
    out, cuts of checkpoints that may still be completed, origin of the last micro-batch found. When
    the state is taken, all found partitions go to readers, which can copy them to a savepoint.
    """

    keeps_cuts = True

    def __init__(
        self,
        context: EnumeratorContext[MicroBatchSplit],
        batches: PublishedBatches,
        name: str,
        clock: Clock,
        execution: str = "",
        *,
        of_epochs: bool,
    ) -> None:
        super().__init__(context, clock)
        self._of_epochs = of_epochs
        self._batches = batches
        self._name = name
        self._execution = execution
        self._next = 0
        self._taken = 0
        """Number of micro-batches that were reported as taken."""
        self._origin = -1
        """Origin of the last batch found, by this job or by the job that took the savepoint."""
        self._cuts: dict[int, tuple[int, int]] = {}
        """Cuts by checkpoint id: (number of the next batch, origin of the last batch)."""
        self._may_be_lost = False
        """Whether :meth:`_check_query` is still to be called. True after a restore, for queries."""

    def find_splits(self) -> list[MicroBatchSplit] | None:
        following = self._next
        if self._may_be_lost and following:
            self._check_query(following)
        splits: list[MicroBatchSplit] = []
        is_at_end = False
        while not splits:
            ended = self._batches.ended(self._execution)  # must be read before the batch
            batch = self._batches.batch(following)
            if batch is None:
                is_at_end = ended is not None and following >= ended.batches
                break
            following += 1
            if -1 < batch.origin <= self._origin:  # it was found before the savepoint
                for partition in batch.partitions:
                    self._batches.delete(partition.name)
                continue
            self._origin = batch.origin
            splits = [
                MicroBatchSplit(
                    batch.batch_id, one.number, one.name, location=self._batches.location
                )
                for one in batch.partitions
            ]
        if self._taken != following:
            self._batches.note_taken(following)
            self._taken = following
        self._next = following
        return None if is_at_end else splits

    def snapshot_state(self, checkpoint_id: int) -> Any:
        if checkpoint_id not in self._cuts:  # a repeated call may come after the cut
            self._cuts[checkpoint_id] = self._next, self._origin
            if not self._of_epochs:
                self._batches.note_cut(checkpoint_id, self._next)
        self._hand_out_all()
        batches, found, cuts = self._batches, list(self._remaining), dict(self._cuts)
        return batches.location, self._next, found, cuts, self._origin

    def _hand_out_all(self) -> None:
        readers = self.context.reading_subtasks()
        if readers:
            remaining, self._remaining = self._remaining, []
            for place, split in enumerate(remaining):
                self.context.assign_split(split, readers[place % len(readers)])

    def restore(self, checkpoint: Any) -> None:
        location, following, remaining, cuts, *origin = checkpoint
        (self._origin,) = origin or (-1,)
        self._may_be_lost = not self._of_epochs
        if location != self._batches.location:
            # in a savepoint, the readers have copies of all files
            if not origin or remaining:
                raise self._without_copies(following)
            if not self._of_epochs:
                self._next = following
            return
        self._next = following
        self._remaining = [MicroBatchSplit(*split) for split in remaining]
        self._cuts = {
            it: (cut, -1) if isinstance(cut, int) else tuple(cut) for it, cut in cuts.items()
        }
        if self._next < self._batches.progress().batches and not self._batches.batch(self._next):
            raise MicroBatchLostError(
                f"micro-batch {self._next} of {self._name!r} was published and is not read to its "
                f"end, but is gone from {location}: files of running jobs must not be deleted "
                "there.  The job cannot go on from its checkpoint; start it anew, without one"
            )

    def _check_query(self, following: int) -> None:
        """Raise an error if the Spark query, as restored, has published fewer micro-batches than
        the stream has read (*following*: number of the next one). This happens if the savepoint has
        no copy of Spark's checkpoint of the query."""
        goes_on_after = self._batches.goes_on_after()
        if goes_on_after is None:
            return  # no reader has restored the query yet
        if self._batches.progress().batches < following:
            raise self._without_copies(following)
        self._may_be_lost = False

    def _without_copies(self, read: int) -> MicroBatchesOfAnotherJobError:
        return MicroBatchesOfAnotherJobError(
            f"another job read the micro-batches of {self._name!r} up to number {read}, and the "
            "savepoint has no copies of that job's files: an earlier flinkray took the savepoint, "
            "or some tasks of the source had ended.  To begin the query anew, give the source "
            "another uid, and allow state that is not restored"
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        known = [cut for cut in self._cuts if cut <= checkpoint_id]
        if known:
            below, origin = self._cuts[max(known)]
            self._batches.forget(below)
            self._batches.note_consumed(origin)
            if not self._of_epochs:
                self._batches.forget_cuts(max(known))
        for cut in known:
            del self._cuts[cut]


class _MicroBatchReader(SequentialReader[MicroBatchSplit], SourceReaderWithFiles[MicroBatchSplit]):
    """Reads micro-batches. A file that was read is deleted when the next checkpoint is complete."""

    def __init__(
        self, context: ReaderContext, batches: PublishedBatches, name: str, convert: Convert
    ) -> None:
        super().__init__(context)
        self._batches = batches
        self._name = name
        self._convert = convert
        self._file: pa.RecordBatchFileReader | None = None
        self._read: list[str] = []
        """Names of the files read since the last snapshot."""
        self._read_before: dict[int, list[str]] = {}
        """Files read before, by the id of the checkpoint that followed."""
        self._carried: Mapping[str, StateFile] = {}
        self._unread: list[MicroBatchSplit] = []

    @property
    def location(self) -> str:
        return self._batches.location

    def restore_files(self, files: Mapping[str, StateFile], is_complete: bool) -> None:
        if not is_complete:
            raise self._without_copies("rows")
        self._carried = files

    def add_splits(self, splits: Sequence[MicroBatchSplit]) -> None:
        super().add_splits([self._own(MicroBatchSplit(*split)) for split in splits])

    def _own(self, split: MicroBatchSplit) -> MicroBatchSplit:
        """Return *split* if its files belong to this job. If they belong to another job, copy them
        from the savepoint to this job's files and return the split of the copy."""
        if split.location in ("", self._batches.location):
            return split
        file = self._carried.get(split.name)
        if file is None:
            raise self._without_copies(f"rows of micro-batch {split.batch_id}")
        self._batches.write_pieces(split.name, file.pieces())
        return split._replace(location=self._batches.location)

    def _without_copies(self, what: str) -> MicroBatchesOfAnotherJobError:
        return MicroBatchesOfAnotherJobError(
            f"{what} for {self._name!r} may be in files of another job, and this job begins with "
            "a checkpoint, which has no copies of these files.  Take a savepoint of that job.  To "
            "go on without these rows, give the source and the sink of the stage other uids, and "
            "allow state that is not restored"
        )

    def open_split(self, split: MicroBatchSplit) -> None:
        self._split, self._file = split, None

    def read(self, max_records: int) -> Polled:
        split = self._split
        if self._file is None:
            self._file = self._batches.open(split.name)
        if split.offset == self._file.num_record_batches:
            self._file = None
            self._read.append(split.name)
            return END_OF_INPUT
        batch = self._convert(self._file.get_batch(split.offset))
        self._split = split._replace(offset=split.offset + 1)
        return Columns(batch, origin=Origin(f"micro-batch {split.batch_id}", split.offset))

    def remaining(self) -> MicroBatchSplit:
        return self._split

    def snapshot_state(self, checkpoint_id: int) -> list[MicroBatchSplit]:
        self._read_before[checkpoint_id] = self._read
        self._read = []
        self._unread = super().snapshot_state(checkpoint_id)
        return self._unread

    def files(self) -> Iterator[StateFile]:
        for split in self._unread:
            yield StateFile(split.name, partial(self._batches.read_pieces, split.name))

    def delete_read(self, checkpoint_id: int) -> None:
        for earlier in [it for it in self._read_before if it <= checkpoint_id]:
            for name in self._read_before.pop(earlier):
                self._batches.delete(name)


class _QueryReader(_MicroBatchReader):
    """A reader of micro-batches that also saves and restores Spark's checkpoint of the query.
    Only the reader of the first subtask does so."""

    def restore_files(self, files: Mapping[str, StateFile], is_complete: bool) -> None:
        super().restore_files(files, is_complete)
        if self.context.subtask_index == 0 and self._batches.goes_on_after() is None:
            self._restore_query(files)

    def _restore_query(self, files: Mapping[str, StateFile]) -> None:
        copy = files.get(_QUERY)
        batches = 0 if copy is None else self._batches.query.restore(copy.pieces())
        self._batches.go_on_after(batches)

    def snapshot_state(self, checkpoint_id: int) -> list[MicroBatchSplit]:
        self._checkpoint_id = checkpoint_id
        return super().snapshot_state(checkpoint_id)

    def files(self) -> Iterator[StateFile]:
        yield from super().files()
        if self.context.subtask_index == 0:
            checkpoint_id = self._checkpoint_id
            try:
                cut = self._batches.cut(checkpoint_id)  # later, the cut may be forgotten
            except OSError:
                cut = None
            yield StateFile(_QUERY, partial(self._copy_query, checkpoint_id, cut))

    def _copy_query(self, checkpoint_id: int, cut: int | None) -> Iterator[bytes]:
        """Yield pieces of Spark's checkpoint of the query, as it was after *cut* micro-batches.
        *cut* None: wait until the enumerator has published the cut of the checkpoint. Runs in
        another thread and may block."""
        woken = threading.Event()
        for _ in range(_CUT_LOOKS):
            if cut is None:  # an enumerator that is not created yet writes the cut when it is
                cut = self._batches.cut(checkpoint_id)
            if cut is not None:
                yield from self._batches.query.pieces(cut)
                return
            woken.wait(_CUT_INTERVAL)
        raise QueryCheckpointError(
            f"the enumerator of {self._name!r} did not report in time how many micro-batches come "
            f"before checkpoint {checkpoint_id}: take the savepoint again"
        )

    def _without_copies(self, what: str) -> MicroBatchesOfAnotherJobError:
        return MicroBatchesOfAnotherJobError(
            f"{what} that {self._name!r} has read are in files of another job, and this job "
            "begins with a checkpoint, which has no copies of these files.  Take a savepoint of "
            "that job.  To begin the query anew, give the source another uid, and allow state that "
            "is not restored"
        )
