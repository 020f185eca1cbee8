"""Errors of stream programs, of systems that do not answer, and of records that cannot be sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flinkray.core import cloud_pickle
from flinkray.core.error_text import sendable, summary_of, type_of
from flinkray.core.errors import FlinkRayError


class StreamError(FlinkRayError):
    """Raised when a stream program cannot run as it is written; the text says what to change."""


class UnavailableError(StreamError):
    """Another system does not answer now; the text names it (a broker, a server, a disk)."""

    retryable = True


class FileNotReadyError(StreamError):
    """A file or folder is missing, or a file is incomplete; the text names it. The file may still
    be written, or its folder not be mounted yet. So the job is restarted, and fails only if further
    attempts end with this error (``restart-strategy.patience-with-files``)."""

    retryable = True
    is_counted = True


def no_timestamps(who_needs_them: str) -> StreamError:
    """Return the error with the text "the records have no timestamps, which *who_needs_them*: …"
    and what to do. *who_needs_them* is for example "windows of event time need"."""
    return StreamError(
        f"the records have no timestamps, which {who_needs_them}: call "
        "assign_timestamps_and_watermarks before, and let map_batches functions keep the column "
        "'$timestamp'"
    )


def text_of(record: object) -> str:
    """Return a record as text for error messages, even if its ``__repr__`` raises an error."""
    try:
        return sendable(str.__str__(repr(record))[:300])
    except BaseException as error:  # noqa: BLE001 - whatever the record's class raised
        return f"<{type(record).__name__}, whose __repr__ raised {type_of(error)}>"


class UnpicklableRecordsError(FlinkRayError):
    """A record without an Arrow schema must leave its process, and cannot be pickled.
    ``__cause__`` is the error that pickling raised."""

    def __init__(
        self,
        reason: str,
        record: str = "",
        origin: str = "",
        operator: str = "",
        subtask: str = "",
    ) -> None:
        super().__init__(reason, record, origin, operator, subtask)
        self.reason = reason
        self.record = record
        self.origin = origin
        self.operator = operator
        """The operator that has put the record out; empty if unknown."""
        self.subtask = subtask

    def __str__(self) -> str:
        return (
            "a record cannot be sent to another process, because it cannot be pickled: "
            f"{self.reason}; put out something that can be"
        )


class UnreadableRecordsError(FlinkRayError):
    """Records from another process cannot be unpickled in this process.
    Their class fails or is missing. ``__cause__`` is the error that unpickling raised."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            "records that another process has sent cannot be unpickled in the one that reads them: "
            f"{self.reason}"
        )


def unpicklable(
    values: Sequence[Any], error: Exception, origin: object = None, operator: str = "", of: str = ""
) -> UnpicklableRecordsError:
    """Return the error for values that could not be pickled together. The error names the first
    value that cannot be pickled. *origin*: where the values entered the job. *of*: the operator's
    subtask."""
    source = "" if origin is None else str(origin)
    for value in values:
        try:
            cloud_pickle.dumps(value)
        except Exception as reason:  # noqa: BLE001 - whatever the record's class raised
            text = summary_of(reason)
            return UnpicklableRecordsError(text, text_of(value), source, operator, of)
    return UnpicklableRecordsError(summary_of(error), "", source, operator, of)
