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
    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        """Done when the program has ended; raises what it failed with."""

    def get_accumulators(self) -> Future[dict[str, Any]]:
        """Of nothing: functions have no accumulators, as PyFlink's have none."""
        done: Future[dict[str, Any]] = Future()
        done.set_result({})
        return done
