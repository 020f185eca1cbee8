"""Partitions of a result that are read one by one, while their producer still runs.

A *publication* is one computation of the result, in a folder of its own; its id says what was
computed.  Each attempt at a partition writes an Arrow file of its own.  Nobody sees it before it is
accepted: an attempt does not always know whether it was given all rows, nor whether its outcome
counts, and who runs the attempts does.  Of several accepted ones a reader decides for one itself.
A publication is begun before its first partition, if the same id stands for the same partitions
whenever they are computed; otherwise it is known when it is sealed, and so complete.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from zlib import crc32

import pyarrow as pa
import pyarrow.fs

from flinkray.core import disk
from flinkray.core.errors import FlinkRayError
from flinkray.file_results.directory import FileResultLostError, ResultDirectory

_VERSION = 1
_BEGUN = "_begun.json"
_SEALED = "_sealed.json"
_UNFINISHED = "_unfinished"
_ARROW = ".arrow"
_MARK = ".accepted"
"""Ends the name of a file, in the place of .arrow, that is there when that one is accepted."""
_ACCEPTED = re.compile(r"(\d+)-(\d+)-\w+\.accepted")


class NonDeterministicSourceError(FlinkRayError):
    """What was read in part is not there any more, and was computed anew with another outcome."""


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """One file of a publication."""

    number: int
    rows: int
    name: str


@dataclass(frozen=True, slots=True)
class Publication:
    """As far as it is known."""

    publication_id: str
    rows: dict[int, int] | None
    """Of each of its partitions; None: it is not complete yet."""


class PublishedPartitions:
    """At a path of this machine or a URI.  All methods block, and raise OSError while the storage
    fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self.location = self._directory.location

    # --- for who writes ---------------------------------------------------------------------------

    def begin(self, publication_id: str) -> None:
        """Whoever computes this later computes the same: its partitions may be read at once.

        Raises:
            NonDeterministicSourceError: partitions of another one were published.
        """
        begun = self.publication()
        if begun is not None and begun.publication_id != publication_id and self.list(begun):
            raise NonDeterministicSourceError(
                f"partitions of {begun.publication_id} were published at {self.location}, and what "
                f"is computed now is {publication_id}"
            )
        self._directory.write_json(_BEGUN, {"version": _VERSION, "id": publication_id})

    def write(
        self,
        publication_id: str,
        number: int,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        durable: bool = False,
    ) -> PublishedPartition:
        """Write a file of a partition, which may be accepted.  May be done again, and by several at
        the same time.

        Args:
            durable: nobody can compute it again: it is on the disk before it is there.
        """
        files, folder = self._directory.files, f"{self._directory.path}/{publication_id}"
        attempt = uuid.uuid4().hex
        unfinished = f"{self._directory.path}/{_UNFINISHED}/{attempt}"
        files.create_dir(folder, recursive=True)
        files.create_dir(f"{self._directory.path}/{_UNFINISHED}", recursive=True)
        rows, remaining = 0, iter(batches)
        first = next(remaining, None)
        with (
            files.open_output_stream(unfinished) as stream,
            pa.ipc.new_file(stream, schema if first is None else first.schema) as writer,
        ):
            batch = first
            while batch is not None:
                writer.write_batch(batch)
                rows += batch.num_rows
                batch = next(remaining, None)
        name = f"{number:06d}-{rows}-{attempt}{_ARROW}"
        if durable and self._directory.is_local:
            disk.sync(unfinished)
        files.move(unfinished, f"{folder}/{name}")
        if durable:
            ResultDirectory(f"{self.location}/{publication_id}").sync_names(self._directory)
        return PublishedPartition(number, rows, name)

    def accept(self, publication_id: str, partition: PublishedPartition) -> None:
        """What was written is all of the partition: from now on it is there.  May be done again."""
        path = f"{self._directory.path}/{publication_id}/{_marker(partition.name)}"
        with self._directory.files.open_output_stream(path):
            """The name says it all."""

    def seal(self, publication_id: str, rows: dict[int, int]) -> None:
        """All of it is accepted: *rows* of each partition.  One that is sealed already stays."""
        if self._directory.read_json(_SEALED) is not None:
            return
        content = {"version": _VERSION, "id": publication_id, "rows": sorted(rows.items())}
        self._directory.write_json(_SEALED, content)

    # --- for who reads ----------------------------------------------------------------------------

    def publication(self) -> Publication | None:
        """The one that is there; None: none, so far."""
        sealed = self._directory.read_json(_SEALED)
        if sealed is not None:
            return Publication(sealed["id"], dict(sealed["rows"]))
        begun = self._directory.read_json(_BEGUN)
        return None if begun is None else Publication(begun["id"], None)

    def list(self, publication: Publication) -> dict[int, PublishedPartition]:
        """What is published of it so far, by number."""
        folder = f"{self._directory.path}/{publication.publication_id}"
        selector = pyarrow.fs.FileSelector(folder, allow_not_found=True)
        found: dict[int, PublishedPartition] = {}
        names = {str(info.base_name) for info in self._directory.files.get_file_info(selector)}
        for marker in sorted(names):
            match = _ACCEPTED.fullmatch(marker)
            if match is None:
                continue
            partition = PublishedPartition(int(match[1]), int(match[2]), _marked(marker))
            if partition.name in names:
                found.setdefault(partition.number, partition)
        return found

    def open(self, publication_id: str, name: str) -> pa.RecordBatchFileReader:
        """Raises FileResultLostError: the file is not there, or is damaged."""
        files, path = self._directory.files, f"{self._directory.path}/{publication_id}/{name}"
        try:
            if self._directory.is_local:
                return pa.ipc.open_file(pa.memory_map(path))
            return pa.ipc.open_file(files.open_input_file(path))
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            text = f"{name} of the partitions at {self.location} cannot be read: {error}"
            raise FileResultLostError(text, self.location) from error


def _marker(name: str) -> str:
    return f"{name.removesuffix(_ARROW)}{_MARK}"


def _marked(marker: str) -> str:
    return f"{marker.removesuffix(_MARK)}{_ARROW}"


def digest_of(batch: pa.RecordBatch, before: int = 0) -> int:
    """Of the values of a batch that was read from a file, and of those before it."""
    digest = crc32(batch.num_rows.to_bytes(8, "big"), before)
    for column in batch.columns:
        for buffer in column.buffers():
            # whether there is one tells as well
            digest = crc32(b"-" if buffer is None else memoryview(buffer), digest)
    return digest
