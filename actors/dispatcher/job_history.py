"""The ended jobs that the Dispatcher remembers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice

from flinkray.actors.gateways.messages import ArchivedJob
from flinkray.core import options
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import JobID
from flinkray.file_results import data_of_job, delete_directory, results_of_job
from flinkray.ha import JobResultStore, StoreError
from flinkray.rpc import RpcEndpoint, TimerHandle

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0
"""Longest pause in seconds between two looks for jobs to forget."""

_STOPPING = 10.0
"""Seconds within which a TaskExecutor that was found to be lost is ended, with its processes."""

_RETRY_DELAY = 1.0
"""Seconds until results that could not be deleted are deleted again."""

_RECENT = 600.0
"""Seconds after a job's end in which a new Dispatcher looks for what was written late."""


class JobHistory:
    """Ended jobs that were cleaned up.
    Expired jobs, and the oldest beyond the capacity, are removed here and in the store. Their data
    in the cluster's storage is deleted too.

    The intermediate results of a job are deleted when the job is cleaned up. A task that could not
    be reached then, because its TaskExecutor stood still, may write results later. So the results
    are deleted once more after such a TaskExecutor was found and ended.

    Lives on the Dispatcher's main thread.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        store: JobResultStore[ArchivedJob],
        configuration: ReadableConfig,
        storage_dir: str,
    ) -> None:
        self._endpoint = endpoint
        self._storage_dir = storage_dir
        self._store = store
        self._expiration = configuration.get(options.JOB_STORE_EXPIRATION_TIME)
        self._capacity = configuration.get(options.JOB_STORE_MAX_CAPACITY)
        self._jobs: dict[JobID, ArchivedJob] = {}
        """The remembered jobs, in the order of their ends."""
        self._until_late = configuration.get(options.HEARTBEAT_TIMEOUT) + _STOPPING
        """Seconds from a job's clean-up until no task of the job writes any more."""
        self._late: dict[JobID, float] = {}
        """When the results of a job are deleted once more, on the monotonic clock."""
        self._forgotten: dict[JobID, str] = {}
        """Names of forgotten jobs, which are not shown any more but are still stored."""
        self._timer: TimerHandle | None = None
        self._is_deleting = False
        self._is_due = False
        """Whether more may have become due since the last attempt to delete what is due."""

    def __contains__(self, job_id: JobID) -> bool:
        """Return whether an ended job has this id. True also for an expired job that is not deleted
        yet."""
        return job_id in self._jobs or job_id in self._forgotten

    def __iter__(self) -> Iterator[ArchivedJob]:
        return iter(tuple(self._jobs.values()))

    def newest(self, seconds: float, most: int) -> Iterator[ArchivedJob]:
        """Yield at most *most* jobs that ended within the last *seconds*, the newest first."""
        earliest = self._endpoint.clock.time() - seconds
        for job in islice(reversed(self._jobs.values()), most):
            if _end_time(job) >= earliest:
                yield job

    def get(self, job_id: JobID) -> ArchivedJob | None:
        return self._jobs.get(job_id)

    def recover(self, jobs: Iterable[ArchivedJob]) -> None:
        """Add the ended jobs that a previous Dispatcher has stored.
        Jobs that expired while no Dispatcher ran are forgotten at once. Deleting their data may
        take longer.
        """
        earliest = self._endpoint.clock.time() - _RECENT
        for job in sorted(jobs, key=_end_time):
            self._jobs[job.job_id] = job
            if _end_time(job) >= earliest:
                self._expect_late_results(job.job_id)
        self._forget_old()

    def add(self, job: ArchivedJob) -> None:
        """Add an ended job whose result is marked as clean."""
        self._jobs[job.job_id] = job
        self._expect_late_results(job.job_id)
        self._forget_old()
        if self._forgotten:
            self._endpoint.create_task(self._delete_what_is_due(), "delete forgotten jobs")

    def start(self) -> None:
        """Begin to check at intervals for expired jobs, and to delete them with their data."""
        self._timer = self._endpoint.schedule_run_async(0.0, self._look)

    def stop(self) -> None:
        """Stop deleting expired jobs, and results that were written after their job's end.
        Idempotent."""
        self._late.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _look(self) -> None:
        pause = min(_LONGEST_PAUSE, max(1.0, self._expiration / 10))
        self._timer = self._endpoint.schedule_run_async(pause, self._look)
        self._forget_old()
        await self._delete_what_is_due()

    def _expect_late_results(self, job_id: JobID) -> None:
        self._late[job_id] = self._endpoint.clock.monotonic() + self._until_late
        self._endpoint.schedule_run_async(self._until_late, self._delete_what_is_due)

    def _forget_old(self) -> None:
        """Remove expired jobs and jobs beyond the capacity from the shown jobs. Their data is
        deleted later. All jobs are checked, because a wrong clock may have given the first job an
        end in the future."""
        latest_end = self._endpoint.clock.time() - self._expiration
        surplus = len(self._jobs) - self._capacity
        for number, job in enumerate(tuple(self._jobs.values())):
            if number >= surplus and _end_time(job) > latest_end:
                continue
            del self._jobs[job.job_id]
            self._late.pop(job.job_id, None)
            self._forgotten[job.job_id] = job.result.name

    async def _delete_what_is_due(self) -> None:
        """Delete late results and expired jobs, one after the other: a new job may get the id of an
        expired job once that is deleted, and the results of the new job must not be deleted."""
        self._is_due = True
        if self._is_deleting:
            return
        self._is_deleting = True
        while self._is_due:
            self._is_due = False
            await self._try_to_delete_late_results()
            await self._try_to_delete_forgotten()
        self._is_deleting = False

    async def _try_to_delete_late_results(self) -> None:
        now = self._endpoint.clock.monotonic()
        for job_id in [job_id for job_id, due in self._late.items() if due <= now]:
            if job_id not in self._late:
                continue  # forgotten in the meantime: all its data is deleted
            try:
                await self._delete(results_of_job(self._storage_dir, job_id))
            except OSError as error:
                log.warning("late results of job %s are not deleted yet: %s", job_id, error)
                self._endpoint.schedule_run_async(_RETRY_DELAY, self._delete_what_is_due)
                continue
            self._late.pop(job_id, None)

    async def _try_to_delete_forgotten(self) -> None:
        """Try to delete every expired job. An error with one job does not stop the others."""
        for job_id, name in tuple(self._forgotten.items()):
            try:
                # Data first: data of a job that is not stored any more would never be deleted.
                await self._delete(data_of_job(self._storage_dir, job_id))
                await self._store.remove_result(job_id)
            except (StoreError, OSError) as error:
                log.warning("job %s (%s) cannot be deleted yet: %s", job_id, name, error)
                continue
            self._forgotten.pop(job_id, None)

    async def _delete(self, location: str) -> None:
        await self._endpoint.rpc_service.run_blocking(delete_directory, location)


def _end_time(job: ArchivedJob) -> float:
    return job.details.end_time or 0.0
