"""Blobs as entries of a directory.

A blob is stored in the parts in which it came, so that nothing has to hold it whole, and counts
from the moment that its *marker* is written, which says where its parts begin.  Entries are named
``<owner>.<key>.<offset of the part>`` and ``<owner>.<key>.complete``; others are left alone.  A
marker that cannot be read is left alone as well, with its parts.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from flinkray.blob.errors import BlobStoreError
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
"""Where the parts of a blob begin, in order; empty for a blob of no bytes."""

_FIRST_MARKER = b"1"
"""What markers were before they said anything: the parts are those that are there."""


@stored("StoredBlob")
@message
class StoredBlob:
    """A marker."""

    offsets: Offsets


@dataclass(frozen=True)
class RecoveredBlobs:
    """What is in a directory."""

    complete: dict[BlobOwner, dict[BlobKey, Offsets]]
    strays: dict[tuple[BlobOwner, BlobKey], Offsets]
    """Parts that are none of a blob: of uploads that were not finished, or were thrown away."""


class BlobStore:
    """The blobs in one directory, which nobody else writes to.  Blocking.

    Keeps no state: what is there, the server that owns it knows from :meth:`recover`.  All methods
    raise BlobStoreError when the storage fails.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    @property
    def location(self) -> str:
        """For people."""
        return self._directory.location()

    def recover(self) -> RecoveredBlobs:
        """What there is; nothing is changed."""
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
        """Durable on return."""
        self._write(_part(owner, key, offset), data)

    def complete(self, owner: BlobOwner, key: BlobKey, offsets: Offsets) -> None:
        """All parts are there and right: from now on the blob is."""
        self._write(_marker(owner, key), encode_entry(StoredBlob(offsets)))

    def read_part(self, owner: BlobOwner, key: BlobKey, offset: int) -> bytes | None:
        """None: there is none (any more)."""
        return self._read(_part(owner, key, offset))

    def delete(self, owner: BlobOwner, blobs: dict[BlobKey, Offsets]) -> None:
        """Markers go first: what a crash leaves behind is no blob."""
        for key in blobs:
            self._delete(_marker(owner, key))
        for key, offsets in blobs.items():
            self.delete_parts(owner, key, offsets)

    def delete_parts(self, owner: BlobOwner, key: BlobKey, offsets: Offsets) -> None:
        for offset in offsets:
            self._delete(_part(owner, key, offset))

    def _offsets(self, owner: BlobOwner, key: BlobKey, there: Offsets) -> Offsets:
        """Of a complete blob; *there* are the parts that were found.  Raises StoredFormatError."""
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
    """Owner, key and offset (None: a marker) of an entry; None: it is none of ours."""
    pieces = name.split(".")
    if len(pieces) != 3:
        return None
    owner, key, what = pieces
    try:
        offset = None if what == _COMPLETE else int(what)
        return BlobOwner(owner), BlobKey.parse(key), offset
    except ValueError:
        return None
