"""Handles of programs that run."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.sinks.simple import CollectSink


class JobExecutionResult:
    """The end of a program."""

    def __init__(self, job_id: JobID, net_runtime: float) -> None:
        self._job_id = job_id
        self._net_runtime = net_runtime

    def get_job_id(self) -> JobID:
        """The job that ended."""
        return self._job_id

    def is_job_execution_result(self) -> bool:
        """Always true: it has ended."""
        return True

    def get_net_runtime(self) -> int:
        """Milliseconds."""
        return round(self._net_runtime * 1000)

    def __str__(self) -> str:
        return f"job {self._job_id} finished in {self.get_net_runtime()} ms"


class JobClient(ABC):
    """A program that runs."""

    @abstractmethod
    def get_job_id(self) -> JobID:
        """The job that runs."""

    @abstractmethod
    def get_job_status(self) -> Future[str]:
        """RUNNING, FINISHED, FAILED, CANCELED; on a cluster also CREATED, RESTARTING and others."""

    @abstractmethod
    def cancel(self) -> Future[None]:
        """Ask the program to end; the future is done once it has."""

    @abstractmethod
    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        """Done when the program has ended; raises what it failed with."""


class LocalJobClient(JobClient):
    """A program that runs in a thread of this process."""

    def __init__(self, job_id: JobID, job: LocalJob) -> None:
        self._job_id = job_id
        self._job = job
        self._future: Future[JobExecutionResult] = Future()
        self._status = "RUNNING"
        self._thread = threading.Thread(
            target=self._run, name=f"flinkray-job-{job_id.short()}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        begun = self._job.clock.monotonic()
        try:
            self._job.run()
        except FlinkRayError as error:  # whoever asks for the result is told
            self._status = "FAILED"
            self._future.set_exception(error)
            return
        self._status = "CANCELED" if self._job.cancelled else "FINISHED"
        runtime = self._job.clock.monotonic() - begun
        self._future.set_result(JobExecutionResult(self._job_id, runtime))

    def get_job_id(self) -> JobID:
        return self._job_id

    def get_job_status(self) -> Future[str]:
        status: Future[str] = Future()
        status.set_result(self._status)
        return status

    def cancel(self) -> Future[None]:
        self._job.cancel()
        ended: Future[None] = Future()
        self._future.add_done_callback(lambda _: ended.set_result(None))
        return ended

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        return self._future


class CloseableIterator(Iterator[Any]):
    """Results of a program, which runs as far as they are asked for; close it to end the program.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> with env.from_collection([1, 2, 3]).execute_and_collect() as results:
    ...     next(results)
    1
    """

    @abstractmethod
    def close(self) -> None:
        """End the program; results that were not taken are dropped."""

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LocalResults(CloseableIterator):
    """Whoever takes results drives the program."""

    def __init__(self, job: LocalJob, results: CollectSink) -> None:
        self._job = job
        self._results = results

    def __next__(self) -> Any:
        while not self._results:
            if self._job.finished:
                self._job.close()
                raise StopIteration
            self._job.advance()
        return self._results.pop()

    def close(self) -> None:
        self._job.cancel()
        self._job.close()
