"""Frames are received in place: Arrow reads the memory that the socket has filled.

Small frames share a slab. A large body has its own memory, freed with the last batch in it.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import pyarrow as pa

from flinkray.streaming.network.frames import PREFIX, parse_prefix, unpack_header

SLAB: Final = 65_536
"""Bytes that are read at once, if so many have arrived."""

ALONE_FROM: Final = 16_384
"""Bytes. A larger body is read into its own memory, not into the rest of a slab."""

COPIED_BELOW: Final = 2_048
"""Bytes. A smaller body is copied, so that it does not keep a whole slab alive."""

_PEEK: Final = 512
"""Bytes that are read first when large bodies follow one another.
Enough for a head and little of the body, because that part has to be copied into the body's own
memory."""


class ByteSource(Protocol):
    """Interface from which a :class:`FrameReader` receives bytes, such as a socket."""

    def recv_into(self, view: memoryview) -> int:
        """Wait for data, write it to *view*, return its bytes. 0: the source has ended."""

    def recv_exactly(self, view: memoryview) -> bool:
        """Fill *view*. Return False if the source ends before *view* is full."""


class FrameReader:
    """Reads one frame after the other. For use by one thread."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._new_slab()
        self._begin = self._end = 0
        self._read_limit = SLAB

    def _new_slab(self) -> None:
        self._slab = pa.allocate_buffer(SLAB)
        self._view = memoryview(self._slab).cast("B")

    def _has(self, count: int) -> bool:
        """Receive until the slab has *count* unread bytes.
        Return False if the source ends before."""
        while self._end - self._begin < count:
            if self._begin + count > SLAB:
                kept = self._view[self._begin : self._end]
                self._new_slab()
                self._view[: len(kept)] = kept
                self._begin, self._end = 0, len(kept)
            until = SLAB if self._read_limit >= SLAB else min(SLAB, self._end + self._read_limit)
            received = self._source.recv_into(self._view[self._end : until])
            if received == 0:
                return False
            self._end += received
        return True

    def next(self) -> tuple[int, tuple[Any, ...], pa.Buffer | None, int] | None:
        """Return (kind, header, body, size) of the next frame. None: the source has ended.

        Raises:
            WireFormatError: the data is not a frame.
            OSError: the connection broke.
        """
        if not self._has(PREFIX.size):
            return None
        body_size, header_size, pad, kind = parse_prefix(self._view, self._begin)
        size = PREFIX.size + header_size + body_size
        if not self._has(PREFIX.size + header_size):
            return None
        at = self._begin + PREFIX.size
        header = unpack_header(self._view[at : at + header_size - pad])
        self._begin = at + header_size
        if body_size == 0:
            return kind, header, None, size
        self._read_limit = SLAB
        if body_size > ALONE_FROM:
            body = self._large_body(body_size)
        else:
            body = self._small_body(body_size)
        return None if body is None else (kind, header, body, size)

    def _small_body(self, size: int) -> pa.Buffer | None:
        if not self._has(size):
            return None
        begin = self._begin
        self._begin += size
        if size < COPIED_BELOW:
            return pa.py_buffer(self._view[begin : self._begin].tobytes())
        return self._slab.slice(begin, size)

    def _large_body(self, size: int) -> pa.Buffer | None:
        there = min(size, self._end - self._begin)
        if there == size:  # all of it is in the slab already
            return self._small_body(size)
        body = pa.allocate_buffer(size)
        view = memoryview(body).cast("B")
        view[:there] = self._view[self._begin : self._begin + there]
        # nothing is left in the slab; batches may lie in its first part
        self._begin = self._end = (self._end + 7) & ~7
        if not self._source.recv_exactly(view[there:]):
            return None
        self._read_limit = _PEEK
        return body
