"""Frames: a fixed prefix, a small msgpack header, and a raw body.

The prefix has the lengths of both, the kind of frame and a magic number.  Header and body are
padded, so that a body begins, within its frame, and the next frame begins at multiples of 8 bytes:
Arrow reads its buffers in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import msgpack

from flinkray.streaming.network.errors import WireFormatError

PREFIX: Final = Struct("<QIHBB")
"""Bytes of the body, bytes of the header with its padding, magic, kind, padding of the header."""
MAGIC: Final = 0xF1A7

MAX_HEADER: Final = 32_768
"""Bytes; larger ones are no headers."""
MAX_BODY: Final = 256 * 2**20
"""Bytes; larger ones are refused at both ends."""

# Consumer to producer.
REQUEST: Final = 1
"""(channel, partition, subpartition, credit, consumer)."""
CREDIT: Final = 2
"""((channel, bytes), …)."""
RELEASE: Final = 3
"""(channel, reason or None): no more is wanted; None: because all was read."""
# Producer to consumer.
ACCEPTED: Final = 4
"""(channel, producer)."""
NOT_FOUND: Final = 5
"""(channel,)."""
DATA: Final = 6
"""(channel, sequence number, backlog in bytes, urgent, element descriptions), body."""
FAILED: Final = 7
"""(channel, reason)."""
SHARED_DATA: Final = 8
"""As DATA, then region and size: the body is in shared memory."""
OFFERED: Final = 9
"""(segment, process id, file number, bytes of a region, number of regions, token): there is this
memory, too."""
DROPPED: Final = 10
"""(segment, …): it will not be used any more."""
# Consumer to producer.
MAPPED: Final = 11
"""(segment, whether it could be mapped)."""
RETURNED: Final = 12
"""(region, …): nobody reads it any more."""

# Either way.
LEAVE: Final = 13
"""(channels that have used it,): nobody uses the connection here, and nobody will until LEFT comes:
may it end?"""
LEFT: Final = 14
"""(whether it may): if so, nobody will use it any more there either."""

KINDS: Final = range(REQUEST, LEFT + 1)

Part = bytes | bytearray | memoryview
"""Something that a socket takes."""

_PADDING: Final = tuple(bytes(count) for count in range(8))


def padding(size: int) -> bytes:
    """What brings *size* to a multiple of 8."""
    return _PADDING[-size & 7]


def head(kind: int, header: Sequence[Any], body_size: int = 0) -> bytes:
    """Prefix and header.  *body_size* is a multiple of 8."""
    packed: bytes = msgpack.packb(header)
    pad = -len(packed) & 7
    return PREFIX.pack(body_size, len(packed) + pad, MAGIC, kind, pad) + packed + _PADDING[pad]


def parse_prefix(data: memoryview, position: int) -> tuple[int, int, int, int]:
    """Size of the body, of the header with padding, of the padding, and the kind.

    Raises:
        WireFormatError: that is not the beginning of a frame.
    """
    body_size, header_size, magic, kind, pad = PREFIX.unpack_from(data, position)
    if magic != MAGIC or kind not in KINDS or pad > 7:
        raise WireFormatError("what came is not the beginning of a frame")
    if header_size > MAX_HEADER or header_size & 7 or header_size < 8:
        raise WireFormatError(f"a header of {header_size} bytes came, the limit is {MAX_HEADER}")
    if body_size > MAX_BODY or body_size & 7:
        raise WireFormatError(f"a body of {body_size} bytes came, the limit is {MAX_BODY}")
    return body_size, header_size, pad, kind


def unpack_header(data: memoryview) -> tuple[Any, ...]:
    """
    Raises:
        WireFormatError: that is not a header.
    """
    try:
        header = msgpack.unpackb(data, use_list=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise WireFormatError(f"a frame with a damaged header came: {error!r}") from error
    if not isinstance(header, tuple) or not header:
        raise WireFormatError("a frame with a damaged header came")
    return header
