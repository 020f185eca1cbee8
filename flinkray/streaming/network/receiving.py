"""Frames are received in place: what Arrow reads is the memory that the socket has filled.

Small frames share a slab, a large body has memory of its own.  Memory comes from Arrow's pool and
is freed with the last batch that lies in it.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import pyarrow as pa

from flinkray.streaming.network.frames import PREFIX, parse_prefix, unpack_header

SLAB: Final = 65_536
"""Bytes that are read at once, if so many have come."""

ALONE_FROM: Final = 16_384
"""Bytes; a larger body is not read into what is left of a slab, it gets memory of its own."""

COPIED_BELOW: Final = 2_048
"""Bytes; a smaller body is copied out, so that it does not keep a whole slab alive."""

_PEEK: Final = 512
"""Bytes that are read first when large bodies follow one another: a head, and little of a body,
which has to be copied to its own memory."""


class ByteSource(Protocol):
    """Where bytes come from."""

    def recv_into(self, view: memoryview) -> int:
        """Wait for some bytes; 0: there will be no more."""

    def recv_exactly(self, view: memoryview) -> bool:
        """Fill *view*; False: that many did not come."""


class FrameReader:
    """Reads one frame after the other.  For one thread."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._new_slab()
        self._begin = self._end = 0
        self._read_limit = SLAB

    def _new_slab(self) -> None:
        self._slab = pa.allocate_buffer(SLAB)
        self._view = memoryview(self._slab).cast("B")

    def _has(self, count: int) -> bool:
        """Wait until so many bytes are there; False: they do not come."""
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
        """Kind, header, body and size of the next frame; None: there are no more.

        Raises:
            WireFormatError: something else came.
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
