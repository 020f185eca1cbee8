"""Runs a program in this process, without a cluster."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import copy_context
from functools import cache
from pathlib import Path
from typing import Any

from flinkray.client.job_result import JobExecutionResult
from flinkray.core.errors import JobCancelledError
from flinkray.core.ids import JobID
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.common.job_client import JobClient
from flinkray.scheduler.shared.states import JobStatus
from flinkray.streaming.errors import StreamError
from flinkray.streaming.local.local_job import LocalJob
from flinkray.streaming.sinks.simple import CollectSink

logger = logging.getLogger(__name__)


def unpacked_archives(archives: Mapping[str, str]) -> dict[str, str]:
    """Unpack the archives of a program that runs in this process, and return their folders by
    archive name (the argument of ``get_distributed_cache().get_file``). Raises JobFileError: a file
    cannot be read, or is no archive."""
    return {
        name: _unpacked(os.path.abspath(path), name, _changed_at(path)).name
        for name, path in archives.items()
    }


def _changed_at(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:  # the later read reports the error
        return None


@cache
def _unpacked(path: str, name: str, changed_at: int | None) -> tempfile.TemporaryDirectory[str]:
    """Unpack an archive into a new folder, which is removed when the process ends, and return the
    folder. A second call with the same arguments returns the same folder. *changed_at*: time of the
    last change of the archive; a changed archive is unpacked again."""
    from flinkray.actors.shared.job_files import unpack
    from flinkray.client.job_files import take_archive_along

    archive = take_archive_along(path, name)
    assert isinstance(archive.content, bytes)
    folder = tempfile.TemporaryDirectory(prefix="flinkray-archive-")
    unpack(archive.content, Path(folder.name))
    warn_of_archive(path, name)
    return folder


@cache
def warn_of_archive(path: str, name: str) -> None:
    """Warn once for each archive: unlike on a cluster, the archive is not in the working directory
    of functions here, and they find it only by its name in the distributed cache."""
    logger.warning(
        "In this process the archive %s is not in the working directory of functions, as on a "
        "cluster: they find it by runtime_context.get_distributed_cache().get_file(%r).",
        path,
        name,
    )


LONGEST_END = 10.0
"""Most seconds that the end of this process waits for a running program."""


class LocalJobClient(JobClient):
    """Client of a program that runs in a new thread of this process. The thread calls *make_job*
    and runs the job. When the process ends, it first cancels the program: otherwise the interpreter
    would stop the thread in the middle of a greenlet, and crash."""

    def __init__(self, job_id: JobID, name: str, make_job: Callable[[], LocalJob]) -> None:
        self._job_id = job_id
        self._name = name
        self._made: Future[LocalJob] = Future()
        self._future: Future[JobExecutionResult] = Future()
        self._status = JobStatus.RUNNING
        self._thread = threading.Thread(
            target=copy_context().run,
            args=(self._run, make_job),
            name=f"flinkray-job-{job_id.short()}",
            daemon=True,
        )
        self._thread.start()
        self._job = self._made.result()

    def _end_with_process(self) -> None:
        self._made.result().cancel()
        self._thread.join(LONGEST_END)

    def _run(self, make_job: Callable[[], LocalJob]) -> None:
        try:
            job = make_job()
        except BaseException as error:  # noqa: BLE001 - raised again where the program was executed
            self._made.set_exception(error)
            return
        atexit.register(self._end_with_process)
        self._made.set_result(job)
        try:
            self._run_job(job)
        finally:
            atexit.unregister(self._end_with_process)

    def _run_job(self, job: LocalJob) -> None:
        begun = job.clock.monotonic()
        try:
            job.run()
        except BaseException as error:
            if not job.cancelled:
                self._status = JobStatus.FAILED
                self._future.set_exception(error)
                return
            logger.warning(
                "job %s failed while it was being cancelled", self._job_id, exc_info=error
            )
        if job.cancelled:
            self._status = JobStatus.CANCELED
            self._future.set_exception(JobCancelledError(self._job_id, "was cancelled"))
            return
        self._status = JobStatus.FINISHED
        runtime = job.clock.monotonic() - begun
        self._future.set_result(JobExecutionResult.of_program(self._job_id, self._name, runtime))

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

    def trigger_savepoint(self, savepoint_directory: str | None = None) -> Future[str]:
        return _no_savepoint()

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: str | None = None
    ) -> Future[str]:
        return _no_savepoint()

    def get_job_execution_result(self) -> Future[JobExecutionResult]:
        return self._future


def _no_savepoint() -> Future[str]:
    refused: Future[str] = Future()
    refused.set_exception(
        StreamError(
            "the program takes no savepoints: call env.enable_checkpointing(...) before it is "
            "started, without a clock of your own and not in batch mode, or run it on a cluster"
        )
    )
    return refused


class LocalResults(CloseableIterator):
    """Results of a program that runs only while a caller takes results."""

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
