"""What Spark keeps of a streaming query, cut after a micro-batch: another query goes on from there.

The cut is what Spark's folder would have if its driver had died just then.  Spark notes offsets
before it computes a batch, and a commit after that; a version of its state is whole before the
commit of its batch is.  So whoever looks for commits first finds all that belongs to them, while
the query runs on.  Files have their names when they are whole, and are not changed.

- Offsets and commits are named by their batch: those of later batches are left out, and what these
  have taken from the sources is taken again.
- What sources keep (files that they have seen, in logs of their own) may tell of more than that:
  they begin where the offsets say.
- State of aggregations and joins is in versions: of the one that is needed, the last snapshot and
  what has changed since.

See docs/design/0065-micro-batches-into-streams.md.
"""

from __future__ import annotations

import re
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, RawIOBase
from typing import Any

import pyarrow.fs

from flinkray.core.errors import FlinkRayError
from flinkray.file_results.directory import ResultDirectory

_METADATA = "metadata"
_OFFSETS = "offsets"
_COMMITS = "commits"
_SOURCES = "sources"
_STATE = "state"
_MOST_LOOKS = 5
_PIECE = 1 << 20

_VERSION = re.compile(r"(?P<version>\d+)(?:_[^.]*)?\.(?P<kind>delta|snapshot|zip|changelog)")
_WHOLE = ("snapshot", "zip")
"""Kinds of files that need no earlier ones."""


class QueryCheckpointError(FlinkRayError):
    """What Spark keeps of a query cannot be copied, or is not what was copied."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    """Below the checkpoint's folder."""
    size: int


class QueryCheckpoint:
    """At a path of this machine or a URI.  All methods block, and raise OSError while the storage
    fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self.location = self._directory.location

    # --- copies -----------------------------------------------------------------------------------

    def pieces(self, batches: int) -> Iterator[bytes]:
        """A tar archive of all that the batches below that number, at least one, have left; a piece
        at a time.  The query may run meanwhile.

        Raises:
            QueryCheckpointError: something of that is there no more.
        """
        logs, state = self._cut(batches)
        for path, content in logs.items():
            yield from _archived(path, len(content), [content])
        for file in state:
            yield from _archived(file.path, file.size, self._read(file))
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _cut(self, batches: int) -> tuple[dict[str, bytes], list[_File]]:
        """Its logs, and the files of its state."""
        for _ in range(_MOST_LOOKS):
            commits = _below(batches, self._list(_COMMITS))
            offsets = _below(batches, self._list(_OFFSETS))
            try:
                logs = {
                    one.path: b"".join(self._read(one))
                    for one in (*offsets, *commits, *self._list(_SOURCES))
                }
            except FileNotFoundError:
                continue  # sources put several files of their logs together: look again
            committed = max(map(_number, commits), default=-1)
            if f"{_OFFSETS}/{batches - 1}" not in logs or committed < batches - 2:
                raise QueryCheckpointError(
                    f"Spark has deleted what it has noted of micro-batch {batches - 1}, after "
                    f"which its checkpoint at {self.location} was to be copied: let Spark keep "
                    "more batches (spark.sql.streaming.minBatchesToRetain)"
                )
            return logs, _state_of(self._list(_STATE), committed + 1)
        raise QueryCheckpointError(
            f"files of Spark's checkpoint at {self.location} vanish faster than they can be copied"
        )

    def _list(self, folder: str) -> list[_File]:
        directory = self._directory
        selector = pyarrow.fs.FileSelector(
            f"{directory.path}/{folder}", allow_not_found=True, recursive=True
        )
        found = [
            _File(str(info.path).removeprefix(f"{directory.path}/"), int(info.size))
            for info in directory.files.get_file_info(selector)
            if info.is_file
        ]
        # Spark's unfinished files and checksums begin with a dot.
        found = [one for one in found if not one.path.rpartition("/")[2].startswith(".")]
        return sorted(found, key=lambda one: one.path)

    def _read(self, file: _File) -> Iterator[bytes]:
        return self._directory.read_pieces(file.path)

    # --- from copies ------------------------------------------------------------------------------

    def restore(self, pieces: Iterable[bytes]) -> None:
        """Put what was copied where a query has its checkpoint; may be done again, before that
        query has begun.

        Raises:
            QueryCheckpointError: it is not what :meth:`pieces` gave.
        """
        try:
            with tarfile.open(fileobj=BufferedReader(_Stream(pieces)), mode="r|") as archive:
                for member in archive:
                    folder, name = self._place(member.name)
                    content = archive.extractfile(member)
                    if content is None:
                        raise QueryCheckpointError(f"{member.name} is no file")
                    folder.write_pieces(name, iter(partial(content.read, _PIECE), b""))
        except tarfile.TarError as error:
            raise QueryCheckpointError(
                f"the copy of a checkpoint of Spark cannot be read: {error}"
            ) from error
        # Of its own: in one Spark application no two queries of the same id can run.
        self._directory.write_json(_METADATA, {"id": str(uuid.uuid4())})

    def _place(self, path: str) -> tuple[ResultDirectory, str]:
        parts = path.split("/")
        is_known = parts[0] in (_OFFSETS, _COMMITS, _SOURCES, _STATE) and len(parts) > 1
        if not is_known or not {"", ".", ".."}.isdisjoint(parts):
            raise QueryCheckpointError(f"a checkpoint of Spark has no file {path!r}")
        return ResultDirectory("/".join([self.location, *parts[:-1]])), parts[-1]


class _Stream(RawIOBase):
    """Pieces as one file."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        taken = min(len(buffer), len(self._rest))
        buffer[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken


def _archived(path: str, size: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
    member = tarfile.TarInfo(path)
    member.size = size
    yield member.tobuf()
    yield from pieces
    yield bytes(-size % tarfile.BLOCKSIZE)


def _below(batches: int, log: Iterable[_File]) -> list[_File]:
    """What a log has of batches of lower numbers."""
    return [one for one in log if 0 <= _number(one) < batches]


def _number(file: _File) -> int:
    """Of the batch that it is named by; -1: by none."""
    name = file.path.rpartition("/")[2]
    return int(name) if name.isdigit() else -1


def _state_of(files: Iterable[_File], version: int) -> list[_File]:
    """What is needed of it, in that version."""
    kept: list[_File] = []
    versions: dict[str, list[tuple[int, bool, _File]]] = {}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        match = _VERSION.fullmatch(name)
        if match is None:
            kept.append(file)
        elif int(match["version"]) <= version:
            one = int(match["version"]), match["kind"] in _WHOLE, file
            versions.setdefault(folder, []).append(one)
    for found in versions.values():
        base = max((number for number, is_whole, _ in found if is_whole), default=0)
        kept += [file for number, is_whole, file in found if number >= base]
    return kept
