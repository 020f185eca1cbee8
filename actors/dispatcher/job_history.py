"""The jobs that have ended, as far as they are remembered."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from flinkray.actors.gateways.messages import ArchivedJob
from flinkray.core import options
from flinkray.core.config import Configuration
from flinkray.core.ids import JobID
from flinkray.file_results import data_of_job, delete_directory
from flinkray.ha import JobResultStore, StoreError
from flinkray.rpc import RpcEndpoint, TimerHandle

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0
"""Seconds between two looks for jobs to be forgotten."""


class JobHistory:
    """Ended jobs that were cleaned up; the oldest are forgotten, here and in the store, and what
    they have left in the cluster's storage goes with them.

    Lives on the Dispatcher's main thread.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        store: JobResultStore[ArchivedJob],
        configuration: Configuration,
        storage_dir: str,
    ) -> None:
        self._endpoint = endpoint
        self._storage_dir = storage_dir
        self._store = store
        self._expiration = configuration.get(options.JOB_STORE_EXPIRATION_TIME)
        self._capacity = configuration.get(options.JOB_STORE_MAX_CAPACITY)
        self._jobs: dict[JobID, ArchivedJob] = {}
        """In the order in which they ended."""
        self._forgotten: dict[JobID, None] = {}
        """Nobody is told of them any more, and they are stored yet."""
        self._timer: TimerHandle | None = None
        self._is_deleting = False
        self._is_due = False
        """Whether something may have been forgotten that nobody has tried to delete."""

    def __contains__(self, job_id: JobID) -> bool:
        """Whether the id is taken: a graph that is stored for it would not be run."""
        return job_id in self._jobs or job_id in self._forgotten

    def __iter__(self) -> Iterator[ArchivedJob]:
        return iter(tuple(self._jobs.values()))

    def get(self, job_id: JobID) -> ArchivedJob | None:
        return self._jobs.get(job_id)

    def recover(self, jobs: Iterable[ArchivedJob]) -> None:
        """Those that are stored.  What expired while no Dispatcher was there is forgotten at once,
        however long it takes to delete it."""
        for job in sorted(jobs, key=_end_time):
            self._jobs[job.job_id] = job
        self._forget_old()

    def add(self, job: ArchivedJob) -> None:
        """One more has ended, and its result is marked as clean."""
        self._jobs[job.job_id] = job
        self._forget_old()
        if self._forgotten:
            self._endpoint.create_task(self._delete_forgotten(), "delete forgotten jobs")

    def start(self) -> None:
        """Begin to forget."""
        self._timer = self._endpoint.schedule_run_async(0.0, self._look)

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _look(self) -> None:
        pause = min(_LONGEST_PAUSE, max(1.0, self._expiration / 10))
        self._timer = self._endpoint.schedule_run_async(pause, self._look)
        self._forget_old()
        await self._delete_forgotten()

    def _forget_old(self) -> None:
        """One whose end lies in the future, as a clock was wrong, keeps no other."""
        latest_end = self._endpoint.clock.time() - self._expiration
        surplus = len(self._jobs) - self._capacity
        for number, job in enumerate(tuple(self._jobs.values())):
            if number >= surplus and _end_time(job) > latest_end:
                continue
            del self._jobs[job.job_id]
            self._forgotten[job.job_id] = None

    async def _delete_forgotten(self) -> None:
        self._is_due = True
        if self._is_deleting:
            return
        self._is_deleting = True
        while self._is_due:
            self._is_due = False
            await self._try_to_delete_forgotten()
        self._is_deleting = False

    async def _try_to_delete_forgotten(self) -> None:
        """One that cannot be deleted keeps no other."""
        for job_id in tuple(self._forgotten):
            try:
                # first: what is left of one that nobody knows would be left for ever
                await self._delete_data(job_id)
                await self._store.remove_result(job_id)
            except (StoreError, OSError) as error:
                log.warning("job %s cannot be deleted yet: %s", job_id, error)
                continue
            self._forgotten.pop(job_id, None)

    async def _delete_data(self, job_id: JobID) -> None:
        location = data_of_job(self._storage_dir, job_id)
        await self._endpoint.rpc_service.run_blocking(delete_directory, location)


def _end_time(job: ArchivedJob) -> float:
    return job.details.end_time or 0.0
