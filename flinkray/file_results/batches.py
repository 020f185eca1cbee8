"""Micro-batches of a stream that another one reads one by one, while their producer runs on.

A *micro-batch* consists of whole partitions, each an Arrow file.  It is there when it is published,
as one; so nobody reads some partitions of one attempt and some of another.  Batches are numbered
from 0, without a gap.  Whoever reads them says how far it has taken them, and deletes what nobody
goes back to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.fs

from flinkray.core.errors import FlinkRayError
from flinkray.file_results.directory import ResultDirectory
from flinkray.file_results.published import PublishedPartition, PublishedPartitions
from flinkray.file_results.query_checkpoint import QueryCheckpoint

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
    """Micro-batches of a stream have other columns than those before them."""


class BatchProgress(NamedTuple):
    """How many were published."""

    batches: int = 0
    rows: int = 0
    origin: int = -1
    """Of the last one."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One that is published."""

    batch_id: int
    partitions: tuple[PublishedPartition, ...]
    """Those that have rows."""
    origin: int = -1
    """What it was computed of, if that has a number; higher than that of the batch before."""

    @property
    def rows(self) -> int:
        """Their number."""
        return sum(partition.rows for partition in self.partitions)


class PublishedBatches:
    """At a path of this machine or a URI.  All methods block, and raise OSError while the storage
    fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self._partitions = PublishedPartitions(location)
        self._rows = ResultDirectory(f"{self._directory.location}/{_ROWS}")
        self.location = self._directory.location
        self.query = QueryCheckpoint(f"{self.location}/{_OF_SPARK}")
        """Of the query that they are of, if one writes them."""

    # --- for who writes ---------------------------------------------------------------------------

    def begin(self, columns: str) -> None:
        """
        Args:
            columns: their names and types.

        Raises:
            MicroBatchColumnsError: those that were published have others.
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
        """A partition of a batch that is to be published.  May be done again, and by several at the
        same time."""
        return self._partitions.write(_ROWS, number, schema, batches, durable=True)

    def publish(self, batch: MicroBatch) -> None:
        """May be done again, with the same rows."""
        partitions = [(one.number, one.rows, one.name) for one in batch.partitions]
        content = {"version": _VERSION, "partitions": partitions, "origin": batch.origin}
        self._directory.write_json(_name(batch.batch_id), content)
        self._count(batch)

    def _count(self, batch: MicroBatch) -> None:
        so_far = self.progress()
        if batch.batch_id < so_far.batches:
            return
        # Each in a file of its own: one who does not know yet that another has taken over cannot
        # set back how far that has come.
        counted = BatchProgress(batch.batch_id + 1, so_far.rows + batch.rows, batch.origin)
        content = {"version": _VERSION, "rows": counted.rows, "origin": counted.origin}
        self._directory.write_json(_counted(counted.batches), content)
        for number in self._numbers(_PUBLISHED):
            if number < so_far.batches:
                self._delete(_counted(number))

    def is_published(self, batch_id: int) -> bool:
        """Whether it need not be published (again)."""
        if batch_id < self.progress().batches:
            return True
        batch = self.batch(batch_id)
        if batch is not None:  # its writer died before it had counted it
            self._count(batch)
        return batch is not None

    def next_batch(self) -> tuple[int, int]:
        """The number of the batch that is to be published next, and the origin of the last one."""
        while self.is_published(self.progress().batches):
            pass
        so_far = self.progress()
        return so_far.batches, so_far.origin

    def progress(self) -> BatchProgress:
        """How many were published so far."""
        last = max(self._numbers(_PUBLISHED), default=0)
        if not last:
            return BatchProgress()
        content = self._directory.read_json(_counted(last))
        if content is None:  # another one has counted on, and deleted it
            return self.progress()
        return BatchProgress(last, content["rows"], content["origin"])

    def waiting(self) -> int:
        """How many are published and not taken."""
        content = self._directory.read_json(_TAKEN)
        taken = 0 if content is None else content["batches"]
        return max(0, self.progress().batches - taken)

    def consumed(self) -> int:
        """The highest origin of a batch that nobody goes back to; -1: there is none."""
        content = self._directory.read_json(_CONSUMED)
        return -1 if content is None else int(content["origin"])

    def goes_on_after(self) -> int | None:
        """So many there were in the job from whose savepoint this one begins, which is where the
        query is to go on; None: that is not known yet."""
        content = self._directory.read_json(_GOES_ON)
        return None if content is None else int(content["batches"])

    def end(self, execution: str = "") -> None:
        """No batch follows those that are published, whichever execution of the stream reads them;
        or only if that one does: those that go on from an earlier checkpoint have more to come."""
        self._directory.write_json(_ended(execution), {"version": _VERSION})

    # --- for who reads ----------------------------------------------------------------------------

    def ended(self, execution: str = "") -> BatchProgress | None:
        """All there are for that execution of the stream; None: there may be more."""
        names = dict.fromkeys((_ended(""), _ended(execution)))
        is_ended = any(self._directory.read_json(name) is not None for name in names)
        return self.progress() if is_ended else None

    def batch(self, batch_id: int) -> MicroBatch | None:
        """None: it is not published, or was forgotten."""
        content = self._directory.read_json(_name(batch_id))
        if content is None:
            return None
        partitions = tuple(PublishedPartition(*partition) for partition in content["partitions"])
        return MicroBatch(batch_id, partitions, content["origin"])

    def open(self, name: str) -> pa.RecordBatchFileReader:
        """A partition.  Raises FileResultLostError: the file is not there, or is damaged."""
        return self._partitions.open(_ROWS, name)

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a partition, a piece at a time."""
        return self._rows.read_pieces(name)

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """A partition that another stream's batches have had; it is whole or not there."""
        self._rows.write_pieces(name, pieces)

    def note_taken(self, batches: int) -> None:
        """So many are taken."""
        self._directory.write_json(_TAKEN, {"version": _VERSION, "batches": batches})

    def note_consumed(self, origin: int) -> None:
        """Nobody goes back to batches of that origin, or an earlier one."""
        self._directory.write_json(_CONSUMED, {"version": _VERSION, "origin": origin})

    def note_cut(self, checkpoint_id: int, batches: int) -> None:
        """That checkpoint is after so many batches."""
        self._directory.write_json(_cut(checkpoint_id), {"version": _VERSION, "batches": batches})

    def cut(self, checkpoint_id: int) -> int | None:
        """After how many batches that checkpoint is; None: nobody has said."""
        content = self._directory.read_json(_cut(checkpoint_id))
        return None if content is None else int(content["batches"])

    def forget_cuts(self, last: int) -> None:
        """Nobody asks for cuts up to that checkpoint any more."""
        for checkpoint_id in self._numbers(_CUT):
            if checkpoint_id <= last:
                self._delete(_cut(checkpoint_id))

    def go_on_after(self, batches: int) -> None:
        """The next batch has that number, and the query is where it goes on."""
        if batches:
            content = {"version": _VERSION, "rows": 0, "origin": -1}
            self._directory.write_json(_counted(batches), content)
        self._directory.write_json(_GOES_ON, {"version": _VERSION, "batches": batches})

    def forget(self, below: int) -> None:
        """Nobody asks for batches below that any more; their rows stay."""
        for batch_id in self._numbers(_BATCH):
            if batch_id < below:
                self._delete(_name(batch_id))

    def _numbers(self, kind: re.Pattern[str]) -> list[int]:
        selector = pyarrow.fs.FileSelector(self._directory.path, allow_not_found=True)
        names = [str(info.base_name) for info in self._directory.files.get_file_info(selector)]
        return [int(match[1]) for name in names if (match := kind.fullmatch(name))]

    def delete(self, name: str) -> None:
        """A partition whose rows nobody reads any more; fine when it is not there."""
        self._delete(f"{_ROWS}/{name}")

    def _delete(self, path: str) -> None:
        try:
            self._directory.files.delete_file(f"{self._directory.path}/{path}")
        except FileNotFoundError:
            return

    # --- the end of reading -----------------------------------------------------------------------

    def note_reader_ended(self, execution: str, subtask: int, parallelism: int) -> None:
        """In this execution of the stream, this one of so many readers reads no more."""
        name = _reader(execution, subtask)
        self._directory.write_json(name, {"version": _VERSION, "parallelism": parallelism})

    def is_read_no_more(self, execution: str) -> bool:
        """Whether all readers of the execution have ended."""
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
