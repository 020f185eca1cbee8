"""The handle of a program that runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any

from flinkray.core.ids import JobID
from flinkray.datastream.common.job_execution_result import JobExecutionResult
from flinkray.datastream.common.job_status import JobStatus


class JobClient(ABC):
    """A program that runs."""

    @abstractmethod
    def get_job_id(self) -> JobID:
        """The job that runs."""

    @abstractmethod
    def get_job_status(self) -> Future[JobStatus]:
        """In this process RUNNING, FINISHED, FAILED or CANCELED."""

    @abstractmethod
    def cancel(self) -> Future[None]:
        """Ask the program to end; the future is done once it has."""

    @abstractmethod
    def trigger_savepoint(self, savepoint_directory: str | None = None) -> Future[str]:
        """Take a savepoint; the program goes on.  The future's result is its directory, below that
        one; None: below the environment's default savepoint directory."""

    @abstractmethod
    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> Future[str]:
        """Take a savepoint and let the program finish with it; the same result.

        Args:
            advance_to_end_of_event_time: all windows and timers fire before; otherwise they are in
                the savepoint.
        """

    @abstractmethod
    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        """Done when the program has ended; raises what it failed with."""

    def get_accumulators(self) -> Future[dict[str, Any]]:
        """Of nothing: functions have no accumulators, as PyFlink's have none."""
        done: Future[dict[str, Any]] = Future()
        done.set_result({})
        return done
