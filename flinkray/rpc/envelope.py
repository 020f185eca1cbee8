"""Envelopes: what is around a call or an answer on the wire.

One envelope is one msgpack array; its first element is the protocol version.  The payload inside is
packed on its own, so that what cannot be decoded there fails that one call only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgpack

from flinkray.core.errors import FrameTooLargeError, RpcSerializationError

PROTOCOL_VERSION = 1
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
    """Endpoint number ``target`` has terminated; the payload is the reason."""


ENDED = "the endpoint has terminated"
"""Why an endpoint does not answer; the caller's side adds which call it was."""

REQUESTS = frozenset({Kind.RESOLVE, Kind.ASK, Kind.TELL, Kind.STOP, Kind.PING})


@dataclass(slots=True)
class Envelope:
    """A request, an answer or a notice."""

    kind: Kind
    sender: str
    """Process name and incarnation of whoever sends this."""
    sequence: int
    """Of a request: counts up within one connection.  Of an answer: that of its request."""
    payload: bytes
    """Encoded arguments (a tuple), result, exception."""
    target: int = 0
    """Number of an endpoint within its process; never used twice."""
    method: str = ""
    token: bytes | None = None
    """Encoded fencing token."""
    timeout: float | None = None
    """Seconds that the sender waits, counted from when it sent (clocks of nodes differ)."""
    trace: dict[str, str] | None = None
    """Trace context, passed on as it is."""


def pack(envelope: Envelope, limit: int = MAX_FRAME_SIZE) -> bytes:
    """The frame of an envelope.

    Raises:
        FrameTooLargeError: it is larger than *limit* bytes.
    """
    frame: bytes = msgpack.packb(
        (
            PROTOCOL_VERSION,
            int(envelope.kind),
            envelope.sender,
            envelope.sequence,
            envelope.target,
            envelope.method,
            envelope.token,
            envelope.timeout,
            envelope.trace,
            envelope.payload,
        )
    )
    if len(frame) > limit:
        raise FrameTooLargeError(
            f"a message of {len(frame)} bytes is above the frame limit of {limit} bytes "
            "(rpc.frame-size); what is larger travels as a blob (flinkray.blob)"
        )
    return frame


def unpack(frame: bytes | memoryview) -> Envelope:
    """The envelope of a frame.

    Raises:
        RpcSerializationError: it is none, or one of another protocol version.
    """
    try:
        parts = msgpack.unpackb(frame, use_list=False)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RpcSerializationError(f"not an envelope: {error!r}") from error
    if type(parts) is not tuple or not parts or parts[0] != PROTOCOL_VERSION:
        raise RpcSerializationError(f"not an envelope of protocol version {PROTOCOL_VERSION}")
    try:
        _, kind, sender, sequence, target, method, token, timeout, trace, payload = parts
        envelope = Envelope(
            Kind(kind), sender, sequence, payload, target, method, token, timeout, trace
        )
    except ValueError as error:
        raise RpcSerializationError(f"not an envelope: {error}") from error
    if not (
        type(sender) is str
        and type(sequence) is int
        and type(target) is int
        and type(method) is str
        and type(payload) is bytes
        and (token is None or type(token) is bytes)
        and (timeout is None or type(timeout) in (int, float))
        and (trace is None or type(trace) is dict)
    ):
        raise RpcSerializationError("not an envelope: a field is of the wrong type")
    return envelope
