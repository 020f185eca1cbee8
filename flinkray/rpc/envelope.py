"""Envelopes: what is around a call or an answer on the wire.

One envelope is one msgpack array that begins with the protocol version and the kind.  The payload
inside is packed on its own, so that what cannot be decoded there fails that one call only, and
nothing of it is decoded before the fencing token was found right.

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

from flinkray.core.errors import FrameTooLargeError, RpcSerializationError
from flinkray.rpc.packing import pack

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
    """Endpoint number ``sequence`` has terminated; the payload is the reason."""


# plain ints: an IntEnum member costs a conversion each time it is packed
RESOLVE, ASK, TELL, STOP, PING, RESULT, ERROR, TERMINATED = map(int, Kind)

CONTROL_LANE = 0
"""The target of requests that are not for an endpoint; endpoint numbers begin at 1."""

ENDED = "the endpoint has terminated"
"""Why an endpoint does not answer; the caller's side adds which call it was."""

Request = tuple[
    int, int, int, int, str, "bytes | None", "float | None", "dict[str, str] | None", bytes
]
Answer = tuple[int, int, int, bytes]

NOT_MSGPACK = (ValueError, TypeError, msgpack.UnpackException, RecursionError, MemoryError)
"""What msgpack raises for bytes that are none of its."""


def unpack_request(frame: bytes) -> Request:
    """The parts of a request.

    Raises:
        RpcSerializationError: it is none, or one of another protocol version.
    """
    try:
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
            and type(payload) is bytes
        ):
            return parts
    raise _not_an_envelope(parts)


def unpack_answer(frame: bytes) -> Answer:
    """The parts of an answer or notice.

    Raises:
        RpcSerializationError: as :func:`unpack_request`.
    """
    try:
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
            and type(payload) is bytes
        ):
            return parts
    raise _not_an_envelope(parts)


_NUMBERS = frozenset({int, float})


def _is_trace(value: object) -> bool:
    return type(value) is dict and all(
        type(key) is str and type(item) is str for key, item in value.items()
    )


def _not_an_envelope(parts: Any) -> RpcSerializationError:
    if type(parts) is not tuple or not parts or parts[0] != PROTOCOL_VERSION:
        return RpcSerializationError(f"not an envelope of protocol version {PROTOCOL_VERSION}")
    return RpcSerializationError("not an envelope: a field is missing or of the wrong type")


def frame_of(parts: Request | Answer, limit: int) -> bytes:
    """The frame of a request or an answer.

    Raises:
        FrameTooLargeError: it is larger than *limit* bytes.
    """
    frame = pack(parts)
    if len(frame) > limit:
        raise FrameTooLargeError(
            f"a message of {len(frame)} bytes is above the frame limit of {limit} bytes "
            "(rpc.frame-size); what is larger travels as a blob (flinkray.blob)"
        )
    return frame


@dataclass(frozen=True, slots=True)
class Envelope:
    """A request, an answer or a notice, for those who look at frames and do not act on them."""

    kind: Kind
    sequence: int
    """Of a request: counts up within one connection.  Of an answer: that of its request."""
    payload: bytes
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


def unpack(frame: bytes) -> Envelope:
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
