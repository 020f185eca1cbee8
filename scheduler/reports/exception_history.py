"""The failures of a job, for people."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from flinkray.scheduler.reports.job_info import ExceptionEntry
from flinkray.scheduler.shared.failure import Failure

_CONCURRENT_KEPT = 16
"""Of each entry: when a node dies thousands of tasks fail with it."""


class ExceptionHistory:
    """The newest failures, oldest first; 16 at most, as Flink's ``web.exception-history-size``.

    An entry is what a restart (or the job's end) was answered to; what failed besides it until then
    is in the entry as *concurrent*.
    """

    def __init__(self, size: int = 16) -> None:
        self._entries: deque[ExceptionEntry] = deque(maxlen=size)

    def add(self, failure: Failure, timestamp: float) -> None:
        """A failure of its own; *timestamp* in seconds since the epoch."""
        self._entries.append(_entry(failure, timestamp))

    def add_concurrent(self, failure: Failure, timestamp: float) -> None:
        """A failure that came with the last one."""
        if not self._entries:
            self.add(failure, timestamp)
            return
        root = self._entries[-1]
        if len(root.concurrent) < _CONCURRENT_KEPT:
            concurrent = (*root.concurrent, _entry(failure, timestamp))
            self._entries[-1] = replace(root, concurrent=concurrent)

    @property
    def entries(self) -> tuple[ExceptionEntry, ...]:
        return tuple(self._entries)


def _entry(failure: Failure, timestamp: float) -> ExceptionEntry:
    return ExceptionEntry(
        timestamp, failure.text, failure.traceback, failure.task, failure.location
    )
