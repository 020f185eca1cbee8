"""Envelopes: what is around a call or an answer on the wire.

One envelope is one msgpack array that begins with the protocol version and the kind.  The payload
inside is packed on its own, so that what cannot be decoded there fails that one call only, and
nothing of it is decoded before the fencing token was found right.  It comes last, so that a large
one need not be copied on its way into the envelope and out of it.

=========  ==========================================================================
requests   version, kind, sequence, target, method, token, timeout, trace, payload
answers    version, kind, sequence, payload
=========  ==========================================================================

Who sends is not in the envelope: the handshake of the connection knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from flinkray.core.error_text import sendable, summary_of
from flinkray.core.errors import FrameTooLargeError, RpcSerializationError
from flinkray.rpc.wire.packing import LARGE, LONGEST, Packed, bytes_head, pack, unpack_but_last

PROTOCOL_VERSION = 2
MAX_FRAME_SIZE = 10_485_760
"""Bytes; Flink's akka.framesize default."""


class Kind(IntEnum):
    """What an envelope is."""

    RESOLVE = 1
    """Ask for the number of endpoint ``method`` (or whether number ``target`` lives), and for the
    notice of its end; the payload is a gateway's type name or None."""
    ASK = 2
    TELL = 3
    STOP = 4
    """Ask the process to stop; answered when it is about to end."""
    PING = 5
    """Answered at once: whether an endpoint lives in the process."""
    RESULT = 6
    ERROR = 7
    TERMINATED = 8
    """Endpoint number ``sequence`` has terminated; the payload is the reason if it has failed, else
    None."""


# plain ints: an IntEnum member costs a conversion each time it is packed
RESOLVE, ASK, TELL, STOP, PING, RESULT, ERROR, TERMINATED = map(int, Kind)

CONTROL_LANE = 0
"""The target of requests that are not for an endpoint; endpoint numbers begin at 1."""

ENDED = "the endpoint has terminated"
"""Why an endpoint does not answer; the caller's side adds which call it was.  After a colon, what
the endpoint has failed with."""

MAX_CAUSE_BYTES = 4096
"""Of the text that says what an endpoint has failed with."""

MAX_CAUSES = 64
"""Each side of a connection, and each process, remembers what so many endpoints have failed with:
the newest ones."""


def ended_with(error: BaseException | None) -> str:
    """That an endpoint has terminated, and what it has failed with, if it has."""
    return ENDED if error is None else f"{ENDED}: {sendable(summary_of(error), MAX_CAUSE_BYTES)}"


def remember(causes: dict[int, str], number: int, reason: str) -> None:
    """Keep why endpoint *number* has ended, if it has failed."""
    if reason != ENDED:
        causes[number] = reason
        if len(causes) > MAX_CAUSES:
            del causes[next(iter(causes))]


Payload = bytes | memoryview
"""Of a message that came; a view where it is large."""

Request = tuple[
    int, int, int, int, str, "bytes | None", "float | None", "dict[str, str] | None", Payload
]
Answer = tuple[int, int, int, Payload]

NOT_MSGPACK = (ValueError, TypeError, msgpack.UnpackException, RecursionError, MemoryError)
"""What msgpack raises for bytes that are none of its."""


def _unpack_large(frame: bytes | memoryview, count: int) -> Any:
    """An envelope of *count* parts, or something else."""
    parts = unpack_but_last(frame, count)
    return msgpack.unpackb(frame, use_list=False) if parts is None else parts


def unpack_request(frame: bytes | memoryview) -> Request:
    """The parts of a request.

    Raises:
        RpcSerializationError: it is none, or one of another protocol version.
    """
    try:
        if len(frame) > LARGE:
            parts = _unpack_large(frame, 9)
        else:
            parts = msgpack.unpackb(frame, use_list=False)
    except NOT_MSGPACK as error:
        raise RpcSerializationError(f"not an envelope: {error!r}") from error
    if type(parts) is tuple and len(parts) == 9:
        version, kind, sequence, target, method, token, timeout, trace, payload = parts
        if (
            version == PROTOCOL_VERSION
            and type(kind) is int
            and RESOLVE <= kind <= PING
            and type(sequence) is int
            and type(target) is int
            and type(method) is str
            and (token is None or type(token) is bytes)
            and (timeout is None or (type(timeout) in _NUMBERS and timeout >= 0))
            and (trace is None or _is_trace(trace))
            and type(payload) in _PAYLOADS
        ):
            return parts
    raise _not_an_envelope(parts)


def unpack_answer(frame: bytes | memoryview) -> Answer:
    """The parts of an answer or notice.

    Raises:
        RpcSerializationError: as :func:`unpack_request`.
    """
    try:
        if len(frame) > LARGE:
            parts = _unpack_large(frame, 4)
        else:
            parts = msgpack.unpackb(frame, use_list=False)
    except NOT_MSGPACK as error:
        raise RpcSerializationError(f"not an envelope: {error!r}") from error
    if type(parts) is tuple and len(parts) == 4:
        version, kind, sequence, payload = parts
        if (
            version == PROTOCOL_VERSION
            and type(kind) is int
            and RESULT <= kind <= TERMINATED
            and type(sequence) is int
            and type(payload) in _PAYLOADS
        ):
            return parts
    raise _not_an_envelope(parts)


_NUMBERS = frozenset({int, float})
_PAYLOADS = frozenset({bytes, memoryview})


def _is_trace(value: object) -> bool:
    return type(value) is dict and all(
        type(key) is str and type(item) is str for key, item in value.items()
    )


def _not_an_envelope(parts: Any) -> RpcSerializationError:
    if type(parts) is not tuple or not parts or parts[0] != PROTOCOL_VERSION:
        return RpcSerializationError(f"not an envelope of protocol version {PROTOCOL_VERSION}")
    return RpcSerializationError("not an envelope: a field is missing or of the wrong type")


def frame_of(parts: tuple[Any, ...], limit: int) -> Packed:
    """The frame of a request or an answer, of which the payload may be in parts.

    Raises:
        FrameTooLargeError: it is larger than *limit* bytes.
    """
    payload: Packed = parts[-1]
    if type(payload) is bytes and len(payload) <= LARGE:
        frame = pack(parts)
        if len(frame) > limit:
            raise _too_large(len(frame), limit)
        return frame
    chunks = [payload] if isinstance(payload, bytes) else payload
    size = sum(map(len, chunks))
    if size > min(limit, LONGEST):
        raise _too_large(size, limit)
    head = pack((*parts[:-1], b"")).removesuffix(_NO_BYTES) + bytes_head(size)
    if len(head) + size > limit:
        raise _too_large(len(head) + size, limit)
    return [head, *chunks]


_NO_BYTES = pack(b"")


def _too_large(size: int, limit: int) -> FrameTooLargeError:
    return FrameTooLargeError(
        f"a message of {size} bytes is above the frame limit of {limit} bytes "
        "(rpc.frame-size); what is larger travels as a blob (flinkray.blob)"
    )


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request, an answer or a notice, for those who look at frames and do not act on them."""

    kind: Kind
    sequence: int
    """Of a request: counts up within one connection.  Of an answer: that of its request."""
    payload: Payload
    """Encoded arguments (a tuple), result, exception."""
    target: int = CONTROL_LANE
    """Number of an endpoint within its process; never used twice."""
    method: str = ""
    token: bytes | None = None
    """Encoded fencing token."""
    timeout: float | None = None
    """Seconds that the sender waits, counted from when it sent (clocks of nodes differ)."""
    trace: dict[str, str] | None = None
    """Trace context, passed on as it is."""


def unpack(frame: bytes | memoryview) -> Envelope:
    """The envelope of a frame of either direction.

    Raises:
        RpcSerializationError: as :func:`unpack_request`.
    """
    try:
        _, kind, sequence, target, method, token, timeout, trace, payload = unpack_request(frame)
    except RpcSerializationError:
        _, kind, sequence, payload = unpack_answer(frame)
        if kind == TERMINATED:
            return Envelope(Kind(kind), 0, payload, sequence)
        return Envelope(Kind(kind), sequence, payload)
    return Envelope(Kind(kind), sequence, payload, target, method, token, timeout, trace)
