"""Frames: a fixed prefix, a small msgpack header, and a raw body.

The prefix has the lengths of header and body, the kind of frame and a magic number. Header and body
are padded: a body begins at a multiple of 8 bytes within its frame, and so does the next frame.
Arrow can therefore read its buffers in place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

import msgpack

from flinkray.streaming.network.errors import WireFormatError

PREFIX: Final = Struct("<QIHBB")
"""(bytes of body, bytes of padded header, magic, kind, bytes of the header's padding)."""
MAGIC: Final = 0xF1A7

MAX_HEADER: Final = 32_768
"""Bytes. A frame with a larger header is malformed."""
MAX_BODY: Final = 256 * 2**20
"""Bytes. Larger bodies are refused at both ends."""

# Consumer to producer.
REQUEST: Final = 1
"""(channel, partition, subpartition, credit, consumer): asks for a subpartition."""
CREDIT: Final = 2
"""((channel, bytes granted, number of overtaking barriers that have reached the task), …)."""
RELEASE: Final = 3
"""(channel, reason): the consumer wants no more data. Reason None: it has read all."""
# Producer to consumer.
ACCEPTED: Final = 4
"""(channel, producer): the request is served."""
NOT_FOUND: Final = 5
"""(channel,): the process does not have the partition."""
DATA: Final = 6
"""(channel, sequence number, backlog in bytes, is urgent, element descriptions), body."""
FAILED: Final = 7
"""(channel, reason): the channel has failed."""
SHARED_DATA: Final = 8
"""Frame like DATA, followed by region and size: the body is in shared memory."""
OFFERED: Final = 9
"""Offers new shared memory.
(segment, process id, file number, bytes of a region, number of regions, token)."""
DROPPED: Final = 10
"""(segment, …): the producer does not use these segments any more."""
# Consumer to producer.
MAPPED: Final = 11
"""(segment, whether the consumer could map it)."""
RETURNED: Final = 12
"""(region, …): the consumer does not read these regions any more."""

# Either way.
LEAVE: Final = 13
"""(number of uses of the connection,): asks whether the connection may end.
The sender does not use it, and will not until LEFT arrives."""
LEFT: Final = 14
"""(whether the connection may end,): if true, the answering side stops using it, too."""

# Consumer to producer.
PROCESSED: Final = 15
"""(channel,): the task has processed all data. It waits for barriers and the end of the input."""

KINDS: Final = range(REQUEST, PROCESSED + 1)

Part = bytes | bytearray | memoryview
"""Data that a socket can send."""


class _Packers(threading.local):
    """A packer for each thread: :func:`msgpack.packb` makes a new one each time."""

    def __init__(self) -> None:
        self.pack: Callable[[Sequence[Any]], bytes] = msgpack.Packer().pack


_packers: Final = _Packers()

_PADDING: Final = tuple(bytes(count) for count in range(8))


def padding(size: int) -> bytes:
    """Return the zero bytes that pad *size* bytes to a multiple of 8."""
    return _PADDING[-size & 7]


def head(kind: int, header: Sequence[Any], body_size: int = 0) -> bytes:
    """Return the bytes of a frame before its body: the prefix and the header.
    *body_size* must be a multiple of 8."""
    packed = _packers.pack(header)
    pad = -len(packed) & 7
    return PREFIX.pack(body_size, len(packed) + pad, MAGIC, kind, pad) + packed + _PADDING[pad]


def parse_head(
    data: memoryview, begin: int, end: int
) -> tuple[int, tuple[Any, ...], int, int] | int:
    """Return (kind, header, size of the body, position of the body) of the frame at *begin*. If
    its head does not end before *end*, return the bytes from *begin* that are needed to go on.
    Raises WireFormatError: the data is not the beginning of a frame."""
    if end - begin < PREFIX.size:
        return PREFIX.size
    body_size, header_size, magic, kind, pad = PREFIX.unpack_from(data, begin)
    if magic != MAGIC or kind not in KINDS or pad > 7:
        raise WireFormatError("what came is not the beginning of a frame")
    if header_size > MAX_HEADER or header_size & 7 or header_size < 8:
        raise WireFormatError(f"a header of {header_size} bytes came, the limit is {MAX_HEADER}")
    if body_size > MAX_BODY or body_size & 7:
        raise WireFormatError(f"a body of {body_size} bytes came, the limit is {MAX_BODY}")
    needed: int = PREFIX.size + header_size
    if end - begin < needed:
        return needed
    begin += PREFIX.size
    try:
        header = msgpack.unpackb(data[begin : begin + header_size - pad], use_list=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireFormatError(f"a frame with a damaged header came: {error!r}") from error
    if not isinstance(header, tuple) or not header:
        raise WireFormatError("a frame with a damaged header came")
    return kind, header, body_size, begin + header_size
