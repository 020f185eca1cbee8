"""Micro-batches that one stream produces and another stream reads while the producer runs.

A *micro-batch* consists of whole partitions, each an Arrow file. A batch becomes visible as a whole
when it is published, so readers never see partitions of different attempts. Batches are numbered
from 0 without gaps. The reader notes how far it has read, and deletes batches that are not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs

from flinkray.core.errors import FlinkRayError
from flinkray.file_results.published import PublishedPartition, PublishedPartitions
from flinkray.file_results.query_checkpoint import QueryCheckpoint
from flinkray.file_results.result_files import ResultDirectory

_VERSION = 1
_BEGUN = "_columns.json"
_TAKEN = "_taken.json"
_CONSUMED = "_consumed.json"
_GOES_ON = "_goes-on.json"
_ROWS = "rows"
_OF_SPARK = "_spark"
_CUT = re.compile(r"_cut-(\d+)\.json")
_PUBLISHED = re.compile(r"_published-(\d+)\.json")
_BATCH = re.compile(r"batch-(\d+)\.json")


class MicroBatchColumnsError(FlinkRayError):
    """Raised when the micro-batches of a stream have other columns than the batches before them."""


class BatchProgress(NamedTuple):
    """How many micro-batches of a stream were published, and how many rows they have."""

    batches: int = 0
    rows: int = 0
    origin: int = -1
    """Origin of the last batch; see :class:`MicroBatch`."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A published micro-batch.

    Its *origin* is the number of the input (a checkpoint id) from which the batch was computed; -1
    if the batch was not computed from numbered inputs. Origins grow from batch to batch.
    """

    batch_id: int
    partitions: tuple[PublishedPartition, ...]
    """The partitions that have rows."""
    origin: int = -1
    """Number of the input from which the batch was computed. It grows from batch to batch.
    -1 if the input has no number.
    """

    @property
    def rows(self) -> int:
        """Number of rows in all partitions."""
        return sum(partition.rows for partition in self.partitions)


class PublishedBatches:
    """The micro-batches of one stream, in a directory: a path of this machine or a URI. All methods
    block, and raise OSError while the storage fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self._partitions = PublishedPartitions(location)
        self._rows = ResultDirectory(f"{self._directory.location}/{_ROWS}")
        self.location = self._directory.location
        self.query = QueryCheckpoint(f"{self.location}/{_OF_SPARK}")
        """The checkpoint of the Spark query that writes these batches, if a query does."""

    # --- methods of the writer --------------------------------------------------------------------

    def begin(self, columns: str) -> None:
        """Note the columns of the batches that follow, and check them against published batches.

        Args:
            columns: names and types of the columns.

        Raises:
            MicroBatchColumnsError: batches with other columns were published before.
        """
        begun = self._directory.read_json(_BEGUN)
        if begun is None or not self.progress().batches:
            self._directory.write_json(_BEGUN, {"version": _VERSION, "columns": columns})
        elif begun["columns"] != columns:
            raise MicroBatchColumnsError(
                f"micro-batches that were published have the columns {begun['columns']}, and those "
                f"that are to follow have {columns}"
            )

    def write(
        self, number: int, schema: pa.Schema, batches: Iterable[pa.RecordBatch]
    ) -> PublishedPartition:
        """Write one partition of a batch, and return its description for :meth:`publish`. Readers
        see the partition when the batch is published. Several attempts may write the same
        partition, also at the same time."""
        return self._partitions.write(_ROWS, number, schema, batches, durable=True)

    def publish(self, batch: MicroBatch) -> None:
        """Publish the batch, so that readers see it, and add it to the progress.

        If a batch of this number is published already, that one stays: readers may be reading it.
        """
        partitions = [(one.number, one.rows, one.name) for one in batch.partitions]
        content = {"version": _VERSION, "partitions": partitions, "origin": batch.origin}
        self._directory.write_json(_name(batch.batch_id), content, once=True)
        self._count(batch)

    def _count(self, batch: MicroBatch) -> None:
        so_far = self.progress()
        if batch.batch_id < so_far.batches:
            return
        # Each count has a file of its own, so a writer that was replaced without knowing it cannot
        # set back the count of its successor.
        counted = BatchProgress(batch.batch_id + 1, so_far.rows + batch.rows, batch.origin)
        content = {"version": _VERSION, "rows": counted.rows, "origin": counted.origin}
        self._directory.write_json(_counted(counted.batches), content)
        for number in self._numbers(_PUBLISHED):
            if number < so_far.batches:
                self._delete(_counted(number))

    def is_published(self, batch_id: int) -> bool:
        """Return whether the batch is published.

        If the writer died after publishing the batch and before adding it to the progress, add it
        now.
        """
        if batch_id < self.progress().batches:
            return True
        batch = self.batch(batch_id)
        if batch is not None:  # its writer died before it counted the batch
            self._count(batch)
        return batch is not None

    def next_batch(self) -> tuple[int, int]:
        """Return (number of the next batch to publish, origin of the last published batch).

        The origin is the number of the input from which the batch was computed; -1 without a batch.
        """
        while self.is_published(self.progress().batches):
            pass
        so_far = self.progress()
        return so_far.batches, so_far.origin

    def progress(self) -> BatchProgress:
        """Return how many batches and rows were published, and the last batch's origin."""
        last = max(self._numbers(_PUBLISHED), default=0)
        if not last:
            return BatchProgress()
        content = self._directory.read_json(_counted(last))
        if content is None:  # another writer has counted on, and deleted the file
            return self.progress()
        return BatchProgress(last, content["rows"], content["origin"])

    def waiting(self) -> int:
        """Return how many published batches the reader has not taken yet."""
        content = self._directory.read_json(_TAKEN)
        taken = 0 if content is None else content["batches"]
        return max(0, self.progress().batches - taken)

    def consumed(self) -> int:
        """Return the origin that was last given to :meth:`note_consumed`; -1 if there is none.
        Batches from inputs up to this number are not needed any more."""
        content = self._directory.read_json(_CONSUMED)
        return -1 if content is None else int(content["origin"])

    def goes_on_after(self) -> int | None:
        """Return how many batches precede the savepoint from which this job starts.

        None: the reader has not noted it yet with :meth:`go_on_after`. The query that writes
        batches waits for this number and continues after that batch.
        """
        content = self._directory.read_json(_GOES_ON)
        return None if content is None else int(content["batches"])

    def end(self, execution: str = "") -> None:
        """Note that no batch follows the published ones.

        *execution*: id of the stream's present execution (see ``stream_execution``). Then the note
        counts only in this execution: if the stream goes back to a checkpoint, batches may follow.
        Empty: the note counts always.
        """
        self._directory.write_json(_ended(execution), {"version": _VERSION})

    # --- methods of the reader --------------------------------------------------------------------

    def ended(self, execution: str = "") -> BatchProgress | None:
        """Return the numbers of published batches and rows if no batch follows, because
        :meth:`end` was called for every execution of the stream or for *execution*; else None."""
        names = dict.fromkeys((_ended(""), _ended(execution)))
        is_ended = any(self._directory.read_json(name) is not None for name in names)
        return self.progress() if is_ended else None

    def batch(self, batch_id: int) -> MicroBatch | None:
        """Return the published batch *batch_id*; None if it is not published, or was forgotten."""
        content = self._directory.read_json(_name(batch_id))
        if content is None:
            return None
        partitions = tuple(PublishedPartition(*partition) for partition in content["partitions"])
        return MicroBatch(batch_id, partitions, content["origin"])

    def open(self, name: str) -> pa.RecordBatchFileReader:
        """Return a reader of the partition in the file *name*. Raises FileResultLostError if the
        file is missing or damaged."""
        return self._partitions.open(_ROWS, name)

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a partition, one piece at a time."""
        return self._rows.read_pieces(name)

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write a partition whose bytes were read from another stream's batches.

        Readers never see an incomplete file.
        """
        self._rows.write_pieces(name, pieces)

    def note_taken(self, batches: int) -> None:
        """Store, for :meth:`waiting`, that the reader has taken the first *batches* batches."""
        self._directory.write_json(_TAKEN, {"version": _VERSION, "batches": batches})

    def note_consumed(self, origin: int) -> None:
        """Store *origin* for :meth:`consumed`: batches of inputs up to this number are not needed
        any more."""
        self._directory.write_json(_CONSUMED, {"version": _VERSION, "origin": origin})

    def note_cut(self, checkpoint_id: int, batches: int) -> None:
        """Store for :meth:`cut` that the reader had taken *batches* batches at this checkpoint."""
        self._directory.write_json(_cut(checkpoint_id), {"version": _VERSION, "batches": batches})

    def cut(self, checkpoint_id: int) -> int | None:
        """Return how many batches the reader had taken at a checkpoint, as :meth:`note_cut` has
        stored. None: nothing was stored for this checkpoint."""
        content = self._directory.read_json(_cut(checkpoint_id))
        return None if content is None else int(content["batches"])

    def forget_cuts(self, last: int) -> None:
        """Delete the notes of :meth:`note_cut` for checkpoints with ids up to *last*."""
        for checkpoint_id in self._numbers(_CUT):
            if checkpoint_id <= last:
                self._delete(_cut(checkpoint_id))

    def go_on_after(self, batches: int) -> None:
        """Store that this stream starts from a savepoint which *batches* batches precede. The next
        published batch then gets the number *batches*."""
        if batches:
            content = {"version": _VERSION, "rows": 0, "origin": -1}
            self._directory.write_json(_counted(batches), content)
        self._directory.write_json(_GOES_ON, {"version": _VERSION, "batches": batches})

    def forget(self, below: int) -> None:
        """Delete the notes of batches with numbers below *below*. The files with their rows
        stay."""
        for batch_id in self._numbers(_BATCH):
            if batch_id < below:
                self._delete(_name(batch_id))

    def _numbers(self, kind: re.Pattern[str]) -> list[int]:
        selector = pyarrow.fs.FileSelector(self._directory.path, allow_not_found=True)
        names = [str(info.base_name) for info in self._directory.files.get_file_info(selector)]
        return [int(match[1]) for name in names if (match := kind.fullmatch(name))]

    def delete(self, name: str) -> None:
        """Delete a partition's file, which nobody reads any more; no error if it is missing."""
        self._delete(f"{_ROWS}/{name}")

    def _delete(self, path: str) -> None:
        try:
            self._directory.files.delete_file(f"{self._directory.path}/{path}")
        except FileNotFoundError:
            return

    # --- the end of reading -----------------------------------------------------------------------

    def note_reader_ended(self, execution: str, subtask: int, parallelism: int) -> None:
        """Note that reader *subtask* of *parallelism* readers has read all it wants.

        *execution*: id of the stream's present execution; the note does not count in another one.
        """
        name = _reader(execution, subtask)
        self._directory.write_json(name, {"version": _VERSION, "parallelism": parallelism})

    def is_read_no_more(self, execution: str) -> bool:
        """Return whether all readers in this execution of the stream have ended
        (:meth:`note_reader_ended`)."""
        first = self._directory.read_json(_reader(execution, 0))
        return first is not None and all(
            self._directory.read_json(_reader(execution, subtask)) is not None
            for subtask in range(1, first["parallelism"])
        )


def _name(batch_id: int) -> str:
    return f"batch-{batch_id:012d}.json"


def _counted(batches: int) -> str:
    return f"_published-{batches:012d}.json"


def _cut(checkpoint_id: int) -> str:
    return f"_cut-{checkpoint_id}.json"


def _ended(execution: str) -> str:
    return f"_end-{execution}.json"


def _reader(execution: str, subtask: int) -> str:
    return f"_ended-{execution}-{subtask}.json"
