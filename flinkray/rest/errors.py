"""Converts errors to HTTP answers."""

from __future__ import annotations

from collections.abc import Callable

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
    """Return the HTTP error for an error of the cluster, or for a missing answer."""
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
    """Return the answer for an error, with a body like Flink's."""
    return web.json_response({"errors": list(error.texts)}, status=error.status, dumps=to_json)
