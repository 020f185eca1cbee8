"""Running a program in this process."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobID
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.common.job_client import JobClient
from flinkray.datastream.common.job_execution_result import JobExecutionResult
from flinkray.datastream.common.job_status import JobStatus
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.sinks.simple import CollectSink


class LocalJobClient(JobClient):
    """A program that runs in a thread of this process."""

    def __init__(self, job_id: JobID, job: LocalJob) -> None:
        self._job_id = job_id
        self._job = job
        self._future: Future[JobExecutionResult] = Future()
        self._status = JobStatus.RUNNING
        self._thread = threading.Thread(
            target=self._run, name=f"flinkray-job-{job_id.short()}", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        begun = self._job.clock.monotonic()
        try:
            self._job.run()
        except FlinkRayError as error:  # whoever asks for the result is told
            self._status = JobStatus.FAILED
            self._future.set_exception(error)
            return
        self._status = JobStatus.CANCELED if self._job.cancelled else JobStatus.FINISHED
        runtime = self._job.clock.monotonic() - begun
        self._future.set_result(JobExecutionResult(self._job_id, runtime))

    def get_job_id(self) -> JobID:
        return self._job_id

    def get_job_status(self) -> Future[JobStatus]:
        status: Future[JobStatus] = Future()
        status.set_result(self._status)
        return status

    def cancel(self) -> Future[None]:
        self._job.cancel()
        ended: Future[None] = Future()
        self._future.add_done_callback(lambda _: ended.set_result(None))
        return ended

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        return self._future


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
