"""Copies Spark's checkpoint of a query as of a micro-batch, for a query that continues there.

The copy holds what Spark's folder would hold if the driver had died just after that batch. Spark
notes offsets before it computes a batch and the commit after it. A version of the state is whole
before the commit of its batch. So if the commits are listed first, all that belongs to them exists,
even while the query runs. Files get their names when they are whole, and are not changed.

- Offsets and commits are named by their batch. Later batches are left out; their data is taken from
the sources again. Spark looks at the last two of the earlier batches.
- The logs of the sources (for example of files that they have seen) may contain more entries. The
sources begin where the offsets say.
- State of aggregations and joins has versions. The copy has the last snapshot at or before the
needed version, and the changes since. A snapshot of RocksDB names files that it shares with other
snapshots; files that no snapshot names any more may be deleted at any time.

See docs/design/0065-micro-batches-into-streams.md.
"""

from __future__ import annotations

import re
import tarfile
import uuid
import zipfile
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, BytesIO, RawIOBase
from typing import Any

import pyarrow.fs

from flinkray.core.errors import FlinkRayError
from flinkray.file_results.result_files import ResultDirectory

_METADATA = "metadata"
_OFFSETS = "offsets"
_COMMITS = "commits"
_SOURCES = "sources"
_STATE = "state"
_MOST_LOOKS = 5
_PIECE = 1 << 20
_WRITERS = 8
"""Number of threads: state has many small files, and making each one durable takes a while."""
_MOST_WAITING = 32
"""Largest number of files that are in memory and not written yet."""

_VERSION = re.compile(
    r"(?P<version>\d+)(?:_(?P<id>[^.]*))?\.(?P<kind>delta|snapshot|zip|changelog)"
)
_WHOLE = ("snapshot", "zip")
"""Kinds of state files that contain a whole version, so that no earlier files are needed."""
_SHARED = ("SSTs", "logs")
"""Folders of RocksDB's files, next to its snapshots."""
_END = bytes(2 * tarfile.BLOCKSIZE)


class QueryCheckpointError(FlinkRayError):
    """Raised when Spark's checkpoint of a query cannot be copied, or a copy is damaged."""


@dataclass(frozen=True, slots=True)
class _Cut:
    contents: dict[str, bytes]
    """Contents of files that had to be read to find the other files, by path below the folder."""
    paths: list[str]
    """Paths of all files of the checkpoint that are not in *contents*."""


class QueryCheckpoint:
    """Spark's checkpoint of a query, at a path of this machine or a URI.
    All methods block, and raise OSError while the storage fails."""

    def __init__(self, location: str) -> None:
        self._directory = ResultDirectory(location)
        self.location = self._directory.location

    # --- copies -----------------------------------------------------------------------------------

    def pieces(self, batches: int) -> Iterator[bytes]:
        """Yield a tar archive, piece by piece, of the checkpoint after the first *batches* batches.

        The archive includes the sources' notes from before the first batch. The query may run
        during the copy. Raises QueryCheckpointError if a needed file was deleted or replaced.
        """
        cut = self._cut(batches)
        for path, content in cut.contents.items():
            yield from _archived(path, len(content), [content])
        for path in cut.paths:
            try:
                yield from self._copied(path)
            except FileNotFoundError as error:
                raise self._deleted(batches) from error
        yield _END

    def _copied(self, path: str) -> Iterator[bytes]:
        # Read the file to its end through one handle: a speculative attempt at a Spark task may
        # replace the file meanwhile.
        with self._directory.files.open_input_file(f"{self._directory.path}/{path}") as file:
            size = int(file.size())
            pieces = iter(partial(file.read, _PIECE), b"")
            yield from _archived(path, size, pieces)
            if file.tell() != size:
                raise QueryCheckpointError(
                    f"{path} of Spark's checkpoint at {self.location} was replaced while it was "
                    "copied: take the savepoint again"
                )

    def _cut(self, batches: int) -> _Cut:
        last_two = range(max(0, batches - 2), batches)
        contents: dict[str, bytes] = {}
        for _ in range(_MOST_LOOKS):
            commits = _of(last_two, self._list(_COMMITS))
            logs = [*_of(last_two, self._list(_OFFSETS)), *commits, *self._list(_SOURCES)]
            try:
                for path in logs:
                    if path not in contents:
                        contents[path] = self._read(path)
            except FileNotFoundError:
                continue  # a source has merged several files of its log: list again
            committed = max(map(_number, commits), default=-1)
            state = _state_of(self._list(_STATE) if batches else [], committed + 1)
            offsets = self._list(_OFFSETS)  # after the state: Spark keeps state as long as offsets
            is_there = all(f"{_OFFSETS}/{number}" in offsets for number in last_two)
            if state is None or not is_there or committed < batches - 2:
                raise self._deleted(batches)
            try:
                snapshots = {one: self._read(one) for one in state if one.endswith(".zip")}
            except FileNotFoundError as error:
                raise self._deleted(batches) from error
            others = [one for one in state if one not in snapshots]
            contents = {path: contents[path] for path in logs} | snapshots
            return _Cut(contents, _named(others, snapshots))
        raise QueryCheckpointError(
            f"files of Spark's checkpoint at {self.location} vanish faster than they can be copied"
        )

    def _deleted(self, batches: int) -> QueryCheckpointError:
        return QueryCheckpointError(
            f"Spark has deleted what it has noted of micro-batch {batches - 1}, after which its "
            f"checkpoint at {self.location} was to be copied: let Spark keep more batches "
            "(spark.sql.streaming.minBatchesToRetain)"
        )

    def _list(self, folder: str) -> list[str]:
        directory = self._directory
        selector = pyarrow.fs.FileSelector(
            f"{directory.path}/{folder}", allow_not_found=True, recursive=True
        )
        found = [
            str(info.path).removeprefix(f"{directory.path}/")
            for info in directory.files.get_file_info(selector)
            if info.is_file
        ]
        # Unfinished files of Spark begin with a dot. Checksum files are optional for Spark, and may
        # not match the files any more when they are read.
        return sorted(
            path
            for path in found
            if not path.rpartition("/")[2].startswith(".") and not path.endswith(".crc")
        )

    def _read(self, path: str) -> bytes:
        return b"".join(self._directory.read_pieces(path))

    # --- from copies ------------------------------------------------------------------------------

    def restore(self, pieces: Iterable[bytes]) -> int:
        """Write a copied checkpoint to the folder of a query that has not begun.

        Returns the number of batches that the checkpoint contains. May be called again.
        Raises QueryCheckpointError if the pieces are not what :meth:`pieces` yields.
        """
        batches = 0
        stream = _Stream(pieces)
        writing: deque[Future[None]] = deque()
        try:
            with (
                ThreadPoolExecutor(_WRITERS, "write a checkpoint of Spark") as writers,
                tarfile.open(fileobj=BufferedReader(stream), mode="r|") as archive,
            ):
                for member in archive:
                    folder, name = self._place(member.name)
                    content = archive.extractfile(member)
                    if content is None:
                        raise QueryCheckpointError(f"{member.name} is no file")
                    if member.size > _PIECE:
                        folder.write_pieces(name, iter(partial(content.read, _PIECE), b""))
                    else:
                        writing.append(writers.submit(folder.write_pieces, name, [content.read()]))
                    while len(writing) > _MOST_WAITING or (writing and writing[0].done()):
                        writing.popleft().result()
                    if member.name.startswith(f"{_OFFSETS}/"):
                        batches = max(batches, _number(member.name) + 1)
            for one in writing:
                one.result()
            if stream.end() != _END:
                raise tarfile.ReadError("it is cut short")
        except tarfile.TarError as error:
            raise QueryCheckpointError(
                f"the copy of a checkpoint of Spark cannot be read: {error}"
            ) from error
        # A new id: one Spark application cannot run two queries of the same id.
        self._directory.write_json(_METADATA, {"id": str(uuid.uuid4())})
        return batches

    def _place(self, path: str) -> tuple[ResultDirectory, str]:
        parts = path.split("/")
        is_known = parts[0] in (_OFFSETS, _COMMITS, _SOURCES, _STATE) and len(parts) > 1
        if not is_known or not {"", ".", ".."}.isdisjoint(parts):
            raise QueryCheckpointError(f"a checkpoint of Spark has no file {path!r}")
        return ResultDirectory("/".join([self.location, *parts[:-1]])), parts[-1]


class _Stream(RawIOBase):
    """A readable file object over an iterator of pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = self._noted(pieces)
        self._rest = b""
        self._end = b""

    def _noted(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._end = (self._end + piece[-len(_END) :])[-len(_END) :]
            yield piece

    def end(self) -> bytes:
        """Read the remaining pieces to the end of the iterator; return the last bytes.

        This raises an error that the iterator raises only after its last piece.
        """
        for _ in self._pieces:
            pass
        return self._end

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


def _of(batches: Collection[int], log: Iterable[str]) -> list[str]:
    return [path for path in log if _number(path) in batches]


def _number(path: str) -> int:
    """Return the number of the batch in a file's name; -1 if the name is not a number."""
    name = path.rpartition("/")[2]
    return int(name) if name.isdigit() else -1


def _state_of(paths: Iterable[str], version: int) -> list[str] | None:
    """Return those of *paths* (files of Spark's state) that are needed to load the state of
    *version*: the last snapshot up to this version, the changes after it, and files without a
    version. None: a needed file is missing."""
    kept: list[str] = []
    folders: dict[str, list[tuple[int, re.Match[str], str]]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        match = _VERSION.fullmatch(name)
        if match is None:
            kept.append(path)
        else:
            folders.setdefault(folder, []).append((int(match["version"]), match, path))
    for found in folders.values():
        ids: dict[int, set[str | None]] = {}
        for number, match, _ in found:
            ids.setdefault(number, set()).add(match["id"])
        wholes = [
            number for number, match, _ in found if match["kind"] in _WHOLE and number <= version
        ]
        # If two attempts wrote a version, Spark continues from one of them; the snapshot may be
        # from the other.
        certain = [number for number in wholes if len(ids[number]) == 1]
        base = max(certain, default=min(wholes, default=0))
        is_used = max(ids) >= version  # else the folder is of the query that was copied
        if is_used and not all(number in ids for number in range(base + 1, version + 1)):
            return None
        kept += [path for number, _, path in found if base <= number <= version]
    return kept


def _named(paths: Iterable[str], snapshots: Mapping[str, bytes]) -> list[str]:
    """Return *paths* without RocksDB files to which none of the *snapshots* refers.
    *snapshots*: contents of the snapshots, by path."""
    names: dict[str, bytes] = {}
    for path, snapshot in snapshots.items():
        store = path.rpartition("/")[0]
        names[store] = names.get(store, b"") + _metadata_of(snapshot)
    kept: list[str] = []
    for path in paths:
        folder, _, name = path.rpartition("/")
        store, _, kind = folder.rpartition("/")
        if kind not in _SHARED or name.encode() in names.get(store, b""):
            kept.append(path)
    return kept


def _metadata_of(snapshot: bytes) -> bytes:
    with zipfile.ZipFile(BytesIO(snapshot)) as archive:
        return archive.read("metadata")
