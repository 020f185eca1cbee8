"""The failures of a job, for people."""

from __future__ import annotations

from collections import deque

from flinkray.scheduler.failure import Failure
from flinkray.scheduler.job_info import ExceptionEntry


class ExceptionHistory:
    """The newest failures, oldest first; 16 at most, as Flink's ``web.exception-history-size``."""

    def __init__(self, size: int = 16) -> None:
        self._entries: deque[ExceptionEntry] = deque(maxlen=size)

    def add(self, failure: Failure, timestamp: float) -> None:
        """*timestamp* in seconds since the epoch."""
        self._entries.append(
            ExceptionEntry(
                timestamp, failure.text, failure.traceback, failure.task, failure.location
            )
        )

    @property
    def entries(self) -> tuple[ExceptionEntry, ...]:
        return tuple(self._entries)
