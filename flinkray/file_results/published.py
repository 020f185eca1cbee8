"""Partitions of a result that are read one by one while their producer still runs.

A *publication* is one computation of the result, in a folder of its own; its id says what was
computed. Each attempt to compute a partition writes its own Arrow file. The process that runs the
attempts makes files visible to readers: it *accepts* them, since an attempt does not always know
whether it was given all rows, or whether its outcome counts. If several files of a partition are
accepted, each reader chooses one.

If equal ids stand for equal partitions whenever they are computed, the publication is *begun*
first, and readers see each accepted partition. Otherwise readers see the whole publication when it
is *sealed*, that is, complete.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.fs

from flinkray.core import disk
from flinkray.core.errors import FlinkRayError
from flinkray.core.private_files import create_folders
from flinkray.file_results.result_files import FileResultLostError, ResultDirectory
from flinkray.ha.epoch_directory import EpochDirectory

_VERSION = 1
_BEGUN = "_begun.json"
_SEALED = "_sealed.json"
_DIVISION = "_division.json"
_UNFINISHED = "_unfinished"
_ARROW = ".arrow"
_MARK = ".accepted"
"""Suffix of the marker file (instead of .arrow) that says that a file is accepted."""
_ACCEPTED = re.compile(r"(\d+)-(\d+)-\w+\.accepted")


class NonDeterministicSourceError(FlinkRayError):
    """Raised when a job must repeat a computation of which readers have used a part, and the
    repetition gives other data."""


@dataclass(frozen=True, slots=True)
class PublishedPartition:
    """A file with one partition of a publication."""

    number: int
    rows: int
    name: str


@dataclass(frozen=True, slots=True)
class Publication:
    """Describes a publication: its id, and its numbers of rows once it is complete."""

    publication_id: str
    rows: dict[int, int] | None
    """Number of rows of each partition; None while the publication is not complete."""
    division: dict[str, str] = field(default_factory=dict)
    """Settings that decide how rows are divided; see :mod:`flinkray.spark.repeatable_plans`."""


class PublishedPartitions:
    """The published partitions of one vertex, at a path of this machine or a URI. All methods
    block, and raise OSError while the storage fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self._notes = self._directory.epochs("publication", (_BEGUN, _SEALED))
        """Notes of the writer; a replaced attempt cannot begin or seal a publication any more."""
        self._is_writer = False
        self._notes_of_readers = self._directory.epochs("division", (_DIVISION,))
        self.location = self._directory.location

    # --- methods of the writer --------------------------------------------------------------------

    def _be_writer(self) -> None:
        if not self._is_writer:
            self._notes.take_over(b"an attempt that publishes")
            self._is_writer = True

    def begin(self, publication_id: str, division: Mapping[str, str] | None = None) -> None:
        """Begin a publication whose partitions are the same whenever they are computed.

        Readers see each partition as soon as it is accepted.

        Args:
            division: settings that decide how the producer divides rows among partitions; a later
                computation needs the same settings. None: no settings.

        Raises:
            NonDeterministicSourceError: partitions of another publication were published before.
            TakenOverError: a later attempt has begun.
        """
        self._be_writer()
        begun = self.publication()
        if begun is not None and begun.publication_id != publication_id and self.list(begun):
            raise NonDeterministicSourceError(
                f"partitions of {begun.publication_id} were published at {self.location}, and what "
                f"is computed now is {publication_id}"
            )
        content = {"version": _VERSION, "id": publication_id, "division": dict(division or {})}
        _note(self._notes, _BEGUN, content)

    def write(
        self,
        publication_id: str,
        number: int,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        *,
        durable: bool = False,
    ) -> PublishedPartition:
        """Write a file with a partition, and return its description for :meth:`accept`.

        Several attempts may write the same partition, also at the same time. A *durable* file is
        durable before it is visible, since it cannot be computed again."""
        files, folder = self._directory.files, f"{self._directory.path}/{publication_id}"
        attempt = uuid.uuid4().hex
        unfinished = f"{self._directory.path}/{_UNFINISHED}/{attempt}"
        for each in (folder, f"{self._directory.path}/{_UNFINISHED}"):
            if self._directory.is_local:
                create_folders(each)
            else:
                files.create_dir(each, recursive=True)
        rows, remaining = 0, iter(batches)
        first = next(remaining, None)
        with (
            self._directory.output(unfinished) as stream,
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
            ResultDirectory(f"{self.location}/{publication_id}").sync_names()
        return PublishedPartition(number, rows, name)

    def accept(self, publication_id: str, partition: PublishedPartition) -> None:
        """Mark the file of *partition* as complete, so that readers see it from now on.
        May be called again."""
        path = f"{self._directory.path}/{publication_id}/{_marker(partition.name)}"
        with self._directory.output(path):
            """The name says it all."""

    def seal(
        self, publication_id: str, rows: dict[int, int], division: Mapping[str, str] | None = None
    ) -> None:
        """Mark the whole publication as complete; *rows* has the number of rows of each partition.

        *division*: as for :meth:`begin`. A publication that is sealed already stays as it is.
        Raises TakenOverError if a later attempt has begun or sealed.
        """
        self._be_writer()
        if _noted(self._notes, _SEALED) is not None:
            return
        folder = ResultDirectory(f"{self.location}/{publication_id}")
        folder.create()  # a publication may have no partitions
        folder.sync_names()
        content = {
            "version": _VERSION,
            "id": publication_id,
            "rows": sorted(rows.items()),
            "division": dict(division or {}),
        }
        _note(self._notes, _SEALED, content)

    def division(self) -> dict[str, str] | None:
        """Return the settings by which a reader wants rows to be divided among partitions.

        None: no reader has called :meth:`divide_as` yet.
        """
        noted = _noted(self._notes_of_readers, _DIVISION)
        return None if noted is None else dict(noted["division"])

    # --- methods of the reader --------------------------------------------------------------------

    def publication(self) -> Publication | None:
        """Return the publication that was sealed, or else begun last; None if there is none yet."""
        sealed = _noted(self._notes, _SEALED)
        if sealed is not None:
            return Publication(sealed["id"], dict(sealed["rows"]), sealed.get("division", {}))
        begun = _noted(self._notes, _BEGUN)
        if begun is None:
            return None
        return Publication(begun["id"], None, begun.get("division", {}))

    def divide_as(self, division: Mapping[str, str]) -> None:
        """Ask the writer to divide rows among partitions by the settings *division*.

        A reader calls this when it has read some partitions already: a new computation must divide
        the rows in the same way. Empty settings let the writer use its own. Only the first call
        has an effect. Raises TakenOverError if a later reader has taken over.
        """
        if self.division() is None:
            self._notes_of_readers.take_over(b"an attempt that reads")
            if self.division() is None:
                content = {"version": _VERSION, "division": dict(division)}
                _note(self._notes_of_readers, _DIVISION, content)

    def list(self, publication: Publication) -> dict[int, PublishedPartition]:
        """Return the accepted partitions of *publication*, by partition number."""
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
        """Return a reader of the file *name* of a partition. Raises FileResultLostError if the file
        is missing or damaged."""
        files, path = self._directory.files, f"{self._directory.path}/{publication_id}/{name}"
        try:
            if self._directory.is_local:
                return pa.ipc.open_file(pa.memory_map(path))
            return pa.ipc.open_file(files.open_input_file(path))
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            text = f"{name} of the partitions at {self.location} cannot be read: {error}"
            raise FileResultLostError(text, self.location) from error


def _note(notes: EpochDirectory, name: str, content: dict[str, Any]) -> None:
    notes.write(name, json.dumps(content).encode())


def _noted(notes: EpochDirectory, name: str) -> dict[str, Any] | None:
    notes.look()
    data = notes.read(name)
    if data is None:
        return None
    content: dict[str, Any] = json.loads(data)
    return content


def _marker(name: str) -> str:
    return f"{name.removesuffix(_ARROW)}{_MARK}"


def _marked(marker: str) -> str:
    return f"{marker.removesuffix(_MARK)}{_ARROW}"


def digest_of(batch: pa.RecordBatch, before: int = 0) -> int:
    """Return a checksum over the values of a batch that was read from a file.
    *before* is the checksum of the batches before it."""
    digest = crc32(batch.num_rows.to_bytes(8, "big"), before)
    for column in batch.columns:
        for buffer in column.buffers():
            # whether the buffer exists is part of the checksum, too
            digest = crc32(b"-" if buffer is None else memoryview(buffer), digest)
    return digest
