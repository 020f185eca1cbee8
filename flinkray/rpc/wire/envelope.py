"""Envelopes: the parts of a call or an answer on the wire.

An envelope is a msgpack array. The payload is packed separately, so that a bad payload fails only
one call, and no payload is decoded before its fencing token was checked. The payload comes last, so
that a large payload need not be copied into the envelope and out of it.

- requests: version, kind, sequence, target, method, token, timeout, trace, payload
- answers: version, kind, sequence, payload

The sender is not in the envelope: the handshake of the connection identifies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from flinkray.core.error_text import sendable, summary_of
from flinkray.core.errors import FrameTooLargeError, RpcSerializationError
from flinkray.rpc.wire.codec import LARGE, LONGEST, Packed, bytes_head, pack, unpack_but_last

PROTOCOL_VERSION = 2
MAX_FRAME_SIZE = 10_485_760
"""The default frame limit in bytes; the default of Flink's akka.framesize."""


class Kind(IntEnum):
    """The kind of an envelope: it says what the receiver is asked or told."""

    RESOLVE = 1
    """Asks for the number of endpoint ``method``, or whether number ``target`` lives.

    Also asks for the notice of its end. The payload is a gateway's type name or None.
    """
    ASK = 2
    TELL = 3
    STOP = 4
    """Asks the process to stop; answered when the process is about to end."""
    PING = 5
    """Asks whether any endpoint lives in the process; answered at once."""
    RESULT = 6
    ERROR = 7
    TERMINATED = 8
    """Reports that endpoint number ``sequence`` has terminated.

    The payload is the reason if the endpoint has failed, else None.
    """


# plain ints: an IntEnum member costs a conversion each time it is packed
RESOLVE, ASK, TELL, STOP, PING, RESULT, ERROR, TERMINATED = map(int, Kind)

CONTROL_LANE = 0
"""The target of requests to the process, not to an endpoint; endpoint numbers begin at 1."""

ENDED = "the endpoint has terminated"
"""Why an endpoint does not answer; a colon and its error may follow. The caller adds the call."""

MAX_CAUSE_BYTES = 4096
"""The longest text of the error with which an endpoint has failed, in bytes."""

MAX_CAUSES = 64
"""How many failed endpoints each connection and each process remembers; the oldest are dropped."""


def ended_with(error: BaseException | None) -> str:
    """Return a text that says that an endpoint has ended, with its *error* if it has failed."""
    return ENDED if error is None else f"{ENDED}: {sendable(summary_of(error), MAX_CAUSE_BYTES)}"


def remember(causes: dict[int, str], number: int, reason: str) -> None:
    """Store in *causes* why endpoint *number* has failed, unless *reason* says that it has ended
    normally. Only the newest :data:`MAX_CAUSES` failures are kept."""
    if reason != ENDED:
        causes[number] = reason
        if len(causes) > MAX_CAUSES:
            del causes[next(iter(causes))]


Payload = bytes | memoryview
"""The payload of a received message; a view if it is large."""

Request = tuple[
    int, int, int, int, str, "bytes | None", "float | None", "dict[str, str] | None", Payload
]
Answer = tuple[int, int, int, Payload]

NOT_MSGPACK = (ValueError, TypeError, msgpack.UnpackException, RecursionError, MemoryError)
"""The exceptions that msgpack raises for invalid bytes."""


def _unpack_large(frame: bytes | memoryview, count: int) -> Any:
    parts = unpack_but_last(frame, count)
    return msgpack.unpackb(frame, use_list=False) if parts is None else parts


def unpack_request(frame: bytes | memoryview) -> Request:
    """Return the parts of a request.

    Raises:
        RpcSerializationError: the frame is not a request, or has another protocol version.
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
    """Return the parts of an answer or a notice.

    Raises:
        RpcSerializationError: the frame is neither, or has another protocol version.
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
    """Return the frame with the *parts* of a request or an answer, of which the last is the
    payload: bytes or, if the payload is large or a list itself, a list of bytes to be joined.

    Raises:
        FrameTooLargeError: the frame is larger than *limit* bytes.
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
    """A request, an answer or a notice, for code that inspects frames without handling them."""

    kind: Kind
    sequence: int
    """A request's number counts up within a connection; an answer has its request's number."""
    payload: Payload
    """The encoded arguments (a tuple), result or exception."""
    target: int = CONTROL_LANE
    """The number of an endpoint within its process; never used twice."""
    method: str = ""
    token: bytes | None = None
    """The encoded fencing token; None: the call has none."""
    timeout: float | None = None
    """Seconds that the sender waits, counted from when it sent (clocks of nodes differ)."""
    trace: dict[str, str] | None = None
    """The caller's trace context, passed on unchanged."""


def unpack(frame: bytes | memoryview) -> Envelope:
    """Return the envelope of a frame of either direction.

    Raises:
        RpcSerializationError: the frame is no envelope, or has another protocol version.
    """
    try:
        _, kind, sequence, target, method, token, timeout, trace, payload = unpack_request(frame)
    except RpcSerializationError:
        _, kind, sequence, payload = unpack_answer(frame)
        if kind == TERMINATED:
            return Envelope(Kind(kind), 0, payload, sequence)
        return Envelope(Kind(kind), sequence, payload)
    return Envelope(Kind(kind), sequence, payload, target, method, token, timeout, trace)
