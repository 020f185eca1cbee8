"""The newest failures of a job."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from flinkray.scheduler.reports.job_info import ExceptionEntry
from flinkray.scheduler.shared.failure import Failure

_CONCURRENT_KEPT = 16
"""Largest number of concurrent failures per entry: a lost node can fail thousands of tasks."""


class ExceptionHistory:
    """Keeps the newest failures, oldest first; 16 by default, as Flink's
    ``web.exception-history-size``. Each entry led to a restart or to the job's end.  Its
    ``concurrent`` failures occurred until then."""

    def __init__(self, size: int = 16) -> None:
        self._entries: deque[ExceptionEntry] = deque(maxlen=size)

    def add(self, failure: Failure, timestamp: float) -> None:
        """Add a failure as a new entry.  *timestamp* is in seconds since the epoch."""
        self._entries.append(_entry(failure, timestamp))

    def add_concurrent(self, failure: Failure, timestamp: float) -> None:
        """Add a concurrent failure to the last entry, or as an entry if there is none."""
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
