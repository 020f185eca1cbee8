"""The rows of a streaming DataFrame that a Spark stage of the same job publishes, micro-batch by
micro-batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from flinkray.core.clock import Clock
from flinkray.core.errors import SuppressRestartsError
from flinkray.file_results import PublishedBatches
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns, Origin
from flinkray.streaming.sources.published_splits import PublishedSplitsEnumerator
from flinkray.streaming.sources.reader import SequentialReader
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    Polled,
    ReaderContext,
    SourceReader,
    SplitEnumerator,
)
from flinkray.streaming.sources.spark import SparkSource

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class MicroBatchLostError(StreamError, SuppressRestartsError):
    """A micro-batch that a checkpoint needs is not there any more."""


class MicroBatchesOfAnotherJobError(StreamError, SuppressRestartsError):
    """Where a savepoint was in the micro-batches of a job says nothing of those of another one."""


class MicroBatchSplit(NamedTuple):
    """A partition of a micro-batch, of which the first *offset* record batches have been read."""

    batch_id: int
    number: int
    name: str
    """Of the file."""
    offset: int = 0


class SparkStreamSource(SparkSource):
    """Batches of columns.  Micro-batches are handed out in their order, each when it is published.

    Arguments as of :class:`SparkSource`.
    """

    def get_boundedness(self) -> Boundedness:
        return Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Any], clock: Clock
    ) -> SplitEnumerator[Any]:
        batches = PublishedBatches(self.location)
        return MicroBatchEnumerator(context, batches, self._name, clock, self._execution)

    def create_reader(self, context: ReaderContext) -> SourceReader[Any]:
        return _MicroBatchReader(context, PublishedBatches(self.location), self._convert)


class MicroBatchEnumerator(PublishedSplitsEnumerator[MicroBatchSplit]):
    """Its state: where the micro-batches are, the number of the next one, partitions of earlier
    ones that were not handed out, and the cuts of checkpoints that may still be completed."""

    keeps_cuts = True

    def __init__(
        self,
        context: EnumeratorContext[MicroBatchSplit],
        batches: PublishedBatches,
        name: str,
        clock: Clock,
        execution: str = "",
    ) -> None:
        super().__init__(context, clock)
        self._batches = batches
        self._name = name
        self._execution = execution
        self._next = 0
        self._taken = 0
        """So many are said to be taken."""
        self._cuts: dict[int, int] = {}
        """By checkpoint: the number of the next batch."""

    def find_splits(self) -> list[MicroBatchSplit] | None:
        following = self._next
        splits: list[MicroBatchSplit] = []
        is_at_end = False
        while not splits:
            ended = self._batches.ended(self._execution)  # asked before
            batch = self._batches.batch(following)
            if batch is None:
                is_at_end = ended is not None and following >= ended.batches
                break
            splits = [
                MicroBatchSplit(batch.batch_id, one.number, one.name) for one in batch.partitions
            ]
            following += 1
        if self._taken != following:
            self._batches.note_taken(following)
            self._taken = following
        self._next = following
        return None if is_at_end else splits

    def snapshot_state(self, checkpoint_id: int) -> Any:
        # asked for again, it may not be the checkpoint's any more
        self._cuts.setdefault(checkpoint_id, self._next)
        return self._batches.location, self._next, list(self._remaining), dict(self._cuts)

    def restore(self, checkpoint: Any) -> None:
        location, self._next, remaining, cuts = checkpoint
        if location != self._batches.location:
            raise MicroBatchesOfAnotherJobError(
                f"the micro-batches of {self._name!r} were read up to number {self._next} in "
                "another job, and the query of this one begins anew: Spark's own checkpoint stays "
                "with its job.  Give the source another uid, and allow state that is not restored"
            )
        self._remaining = [MicroBatchSplit(*split) for split in remaining]
        self._cuts = dict(cuts)
        if self._next < self._batches.progress().batches and not self._batches.batch(self._next):
            raise MicroBatchLostError(
                f"micro-batch {self._next} of {self._name!r} was published and is not read to its "
                f"end, but is gone from {location}: files of running jobs must not be deleted "
                "there.  The job cannot go on from its checkpoint; start it anew, without one"
            )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        known = [cut for cut in self._cuts if cut <= checkpoint_id]
        if known:
            self._batches.forget(below=self._cuts[max(known)])
        for cut in known:
            del self._cuts[cut]


class _MicroBatchReader(SequentialReader[MicroBatchSplit]):
    """Deletes what it has read, when a checkpoint after that is complete."""

    def __init__(self, context: ReaderContext, batches: PublishedBatches, convert: Convert) -> None:
        super().__init__(context)
        self._batches = batches
        self._convert = convert
        self._file: pa.RecordBatchFileReader | None = None
        self._read: list[str] = []
        """Names of files, since the last snapshot."""
        self._read_before: dict[int, list[str]] = {}
        """Likewise, by the checkpoint that followed."""

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
        return super().snapshot_state(checkpoint_id)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for earlier in [it for it in self._read_before if it <= checkpoint_id]:
            for name in self._read_before.pop(earlier):
                self._batches.delete(name)
