"""Blobs as entries of a directory.

A blob is stored in the parts in which it was received, so no process holds it as a whole. It exists
once its *marker* is written, which lists where the parts begin. Entries are named
``<owner>.<key>.<offset of the part>`` and ``<owner>.<key>.complete``; other entries are left alone.
A marker that cannot be read is left alone with its parts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flinkray.blob.gateway import BlobStoreError
from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.core.errors import StoredFormatError
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha import Directory
from flinkray.ha.entries import decode_entry, encode_entry

log = logging.getLogger(__name__)

_COMPLETE = "complete"
_OFFSET_DIGITS = 20

Offsets = tuple[int, ...]
"""Offsets at which the parts of a blob begin, in order; empty for a blob of no bytes."""

_FIRST_MARKER = b"1"
"""Content of markers in an old format. Such a blob consists of all parts that exist."""


@stored("StoredBlob")
@message
class StoredBlob:
    """The content of a marker: lists the parts of a complete blob."""

    offsets: Offsets


@dataclass(frozen=True)
class RecoveredBlobs:
    """The complete blobs and the other parts that a blob directory contains."""

    complete: dict[BlobOwner, dict[BlobKey, Offsets]]
    strays: dict[tuple[BlobOwner, BlobKey], Offsets]
    """Parts that belong to no complete blob: their uploads were not finished or were discarded."""


class BlobStore:
    """The blobs in one directory, to which no other process writes. Blocking.

    Keeps no state in memory. All methods raise BlobStoreError when the storage fails.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    @property
    def location(self) -> str:
        """The directory's location, for messages."""
        return self._directory.location()

    def recover(self) -> RecoveredBlobs:
        """Return which blobs and parts the directory contains, without changing anything."""
        try:
            names = self._directory.names()
        except OSError as error:
            raise BlobStoreError(f"cannot list {self.location}: {error}") from error
        parts: dict[tuple[BlobOwner, BlobKey], list[int]] = {}
        complete: dict[tuple[BlobOwner, BlobKey], None] = {}
        for name in names:
            entry = _parse(name)
            if entry is None:
                continue
            owner, key, offset = entry
            if offset is None:
                complete[owner, key] = None
            else:
                parts.setdefault((owner, key), []).append(offset)
        blobs: dict[BlobOwner, dict[BlobKey, Offsets]] = {}
        for owner, key in complete:
            there = tuple(sorted(parts.pop((owner, key), [])))
            try:
                offsets = self._offsets(owner, key, there)
            except StoredFormatError as error:
                location = self._directory.location(_marker(owner, key))
                log.error(
                    "%s: blob %s cannot be used, as its marker %s cannot be read: %s; it is kept",
                    owner, key, location, error,
                )  # fmt: skip
                continue
            missing = set(offsets).difference(there)
            if missing:
                log.error("%s: blob %s lacks the parts at %s", owner, key, sorted(missing))
                continue
            stray = set(there).difference(offsets)
            if stray:
                parts[owner, key] = list(stray)
            blobs.setdefault(owner, {})[key] = offsets
        strays = {at: tuple(sorted(offsets)) for at, offsets in parts.items()}
        return RecoveredBlobs(blobs, strays)

    def write_part(self, owner: BlobOwner, key: BlobKey, offset: int, data: bytes) -> None:
        """Write a part of a blob; it is durable on return."""
        self._write(_part(owner, key, offset), data)

    def complete(self, owner: BlobOwner, key: BlobKey, offsets: Offsets) -> None:
        """Write the marker that makes the blob complete; all parts must be stored and checked."""
        self._write(_marker(owner, key), encode_entry(StoredBlob(offsets)))

    def read_part(self, owner: BlobOwner, key: BlobKey, offset: int) -> bytes | None:
        """Return the part that begins at *offset*; None if it does not exist (any more)."""
        return self._read(_part(owner, key, offset))

    def delete(self, owner: BlobOwner, blobs: dict[BlobKey, Offsets]) -> None:
        """Delete blobs, markers first, so that a crash leaves no blob with missing parts."""
        for key in blobs:
            self._delete(_marker(owner, key))
        for key, offsets in blobs.items():
            self.delete_parts(owner, key, offsets)

    def delete_parts(self, owner: BlobOwner, key: BlobKey, offsets: Offsets) -> None:
        for offset in offsets:
            self._delete(_part(owner, key, offset))

    def _offsets(self, owner: BlobOwner, key: BlobKey, there: Offsets) -> Offsets:
        """Return the offsets of a complete blob's parts, as listed in the blob's marker. *there*:
        offsets of the parts found in the directory; returned if the marker lists none. Raises
        StoredFormatError if the marker cannot be read."""
        marker = self._read(_marker(owner, key))
        if marker is None or marker == _FIRST_MARKER:
            return there
        return decode_entry(marker, StoredBlob).offsets

    def _read(self, name: str) -> bytes | None:
        try:
            return self._directory.read(name)
        except OSError as error:
            raise self._failed("read", name, error) from error

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._directory.write(name, data)
        except OSError as error:
            raise self._failed("write", name, error) from error

    def _delete(self, name: str) -> None:
        try:
            self._directory.delete(name)
        except OSError as error:
            raise self._failed("delete", name, error) from error

    def _failed(self, verb: str, name: str, error: OSError) -> BlobStoreError:
        return BlobStoreError(f"cannot {verb} {self._directory.location(name)}: {error}")


def _part(owner: BlobOwner, key: BlobKey, offset: int) -> str:
    return f"{owner}.{key}.{offset:0{_OFFSET_DIGITS}d}"


def _marker(owner: BlobOwner, key: BlobKey) -> str:
    return f"{owner}.{key}.{_COMPLETE}"


def _parse(name: str) -> tuple[BlobOwner, BlobKey, int | None] | None:
    """Parse the name of an entry into (owner, key, offset).
    The offset is None for a marker. Returns None if the entry does not belong to a blob."""
    pieces = name.split(".")
    if len(pieces) != 3:
        return None
    owner, key, what = pieces
    try:
        offset = None if what == _COMPLETE else int(what)
        return BlobOwner(owner), BlobKey.parse(key), offset
    except ValueError:
        return None
