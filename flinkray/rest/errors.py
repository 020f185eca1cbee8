"""Converts errors to HTTP answers, and failures to JSON with a serialized Java exception.

The bytes follow the Java Object Serialization Specification, chapter 6, and the JDK's version UIDs.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any

from aiohttp import web

from flinkray.checkpoint.errors import CheckpointNotFoundError, CheckpointStorageError
from flinkray.core.errors import (
    FlinkRayError,
    JobError,
    JobNotFoundError,
    JobStateError,
    RpcError,
    RpcTimeoutError,
    UnreadableRecordError,
)

NO_LEADER = "Service temporarily unavailable due to an ongoing leader election. Please refresh."
"""The error text for a missing leader: Flink's own text, which its clients know."""


class RestError(Exception):
    """An error that is answered to the client with an HTTP status and texts."""

    def __init__(self, status: int, *texts: str) -> None:
        super().__init__(status, *texts)
        self.status = status
        self.texts = texts


def bad_request(text: str) -> RestError:
    return RestError(400, text)


def not_found(text: str) -> RestError:
    return RestError(404, text)


def of_cluster(error: FlinkRayError) -> RestError:
    """Return the HTTP error for *error*, which a request to the cluster raised."""
    match error:
        case JobNotFoundError():
            return not_found(f"Job could not be found: {error}")
        case CheckpointNotFoundError():
            return not_found(str(error))
        case JobStateError():
            return RestError(409, str(error))
        case RpcTimeoutError():
            return RestError(503, NO_LEADER, str(error))
        case RpcError() if error.retryable:
            return RestError(503, NO_LEADER, str(error))
        case UnreadableRecordError():
            return RestError(500, str(error))
        case JobError() | CheckpointStorageError():
            return bad_request(str(error))
        case _:
            return RestError(500, str(error))


def answer_of(error: RestError, to_json: Callable[[object], str]) -> web.Response:
    """Return the HTTP answer for an error, with a JSON body like Flink's."""
    return web.json_response({"errors": list(error.texts)}, status=error.status, dumps=to_json)


_CLASS = "java.lang.Exception"

_OBJECT, _CLASS_DESCRIPTION, _ARRAY, _STRING, _LONG_STRING = (
    b"\x73",
    b"\x72",
    b"\x75",
    b"\x74",
    b"\x7c",
)
_NULL, _END = b"\x70", b"\x78"
_SERIALIZABLE, _WITH_WRITE_OBJECT = 0x02, 0x01
_LONGEST_STRING = 0xFFFF
"""The longest string in bytes whose length is written in two bytes."""


def failure_cause(text: str, traceback: str | None = None) -> dict[str, Any]:
    """Return a failure of a job as the JSON of a SerializedThrowable, which Flink's clients read.
    *text* becomes the exception's message; *traceback* is shown as the stack trace, and *text* if
    it is None."""
    return {
        "class": _CLASS,
        "stack-trace": traceback or text,
        "serialized-throwable": base64.b64encode(java_exception(text)).decode("ascii"),
    }


def java_exception(text: str) -> bytes:
    """Return the bytes that Java's ``ObjectOutputStream`` writes for ``new Exception(text)``
    without a stack trace."""
    fields = [
        (b"L", "cause", "Ljava/lang/Throwable;"),
        (b"L", "detailMessage", "Ljava/lang/String;"),
        (b"[", "stackTrace", "[Ljava/lang/StackTraceElement;"),
        (b"L", "suppressedExceptions", "Ljava/util/List;"),
    ]
    throwable = _class(
        "java.lang.Throwable",
        -3042686055658047285,
        _SERIALIZABLE | _WITH_WRITE_OBJECT,
        fields,
        _NULL,
    )
    exception = _class(_CLASS, -3387516993124229948, _SERIALIZABLE, [], throwable)
    elements = _class(
        "[Ljava.lang.StackTraceElement;", 0x02462A3C3CFD2239, _SERIALIZABLE, [], _NULL
    )
    values = (_NULL, _text(text), _ARRAY + elements + struct.pack(">i", 0), _NULL)
    header = struct.pack(">HH", 0xACED, 5)
    return header + _OBJECT + exception + b"".join(values) + _END


def _class(
    name: str, version_uid: int, flags: int, fields: list[tuple[bytes, str, str]], parent: bytes
) -> bytes:
    described = b"".join(kind + _utf(field) + _text(of) for kind, field, of in fields)
    return (
        _CLASS_DESCRIPTION
        + _utf(name)
        + struct.pack(">qBH", version_uid, flags, len(fields))
        + described
        + _END
        + parent
    )


def _text(text: str) -> bytes:
    encoded = _modified_utf8(text)
    if len(encoded) <= _LONGEST_STRING:
        return _STRING + struct.pack(">H", len(encoded)) + encoded
    return _LONG_STRING + struct.pack(">q", len(encoded)) + encoded


def _utf(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def _modified_utf8(text: str) -> bytes:
    """Return *text* in Java's modified UTF-8: each UTF-16 unit by itself, NUL in two bytes."""
    units = text.encode("utf-16-be", "surrogatepass")
    characters = (chr(unit) for (unit,) in struct.iter_unpack(">H", units))
    return b"".join(
        b"\xc0\x80" if character == "\0" else character.encode("utf-8", "surrogatepass")
        for character in characters
    )
