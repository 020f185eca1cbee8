"""The handle of a running program, with which its caller waits for its end or stops it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from typing import Any

from flinkray.client.job_result import JobExecutionResult
from flinkray.core.ids import JobID
from flinkray.scheduler.shared.states import JobStatus


class JobClient(ABC):
    """The handle of a running program, with which its caller waits for its end or stops it."""

    @abstractmethod
    def get_job_id(self) -> JobID:
        """Return the id of the program's job."""

    @abstractmethod
    def get_job_status(self) -> Future[JobStatus]:
        """Return the status of the program. A program without checkpoints and restarts in this
        process is never in another status than RUNNING, FINISHED, FAILED or CANCELED."""

    @abstractmethod
    def cancel(self) -> Future[None]:
        """Ask the program to end. The future is done when the program has ended."""

    @abstractmethod
    def trigger_savepoint(self, savepoint_directory: str | None = None) -> Future[str]:
        """Take a savepoint. The program continues.
        The future's result is the savepoint's directory. The directory lies below
        *savepoint_directory*; None: below the environment's default savepoint directory."""

    @abstractmethod
    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> Future[str]:
        """Take a savepoint and let the program finish with it.

        The future's result is the savepoint's directory.

        Args:
            advance_to_end_of_event_time: whether all windows and timers fire before the savepoint;
                otherwise they are in the savepoint.
        """

    @abstractmethod
    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        """Return a future of the program's result. The future is done when the program has ended,
        and raises the program's error if the program has failed."""

    def get_accumulators(self) -> Future[dict[str, Any]]:
        """Return an empty dict: functions have no accumulators, as in PyFlink."""
        done: Future[dict[str, Any]] = Future()
        done.set_result({})
        return done
