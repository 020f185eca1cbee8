"""Answers a Dispatcher's clients about running and ended jobs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from flinkray.actors.dispatcher.job_history import JobHistory
from flinkray.actors.dispatcher.managed_job import ManagedJob, overview_of
from flinkray.actors.gateways import JobMasterGateway
from flinkray.core.errors import JobNotFoundError, RpcError, UnreadableRecordError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.core.kv_states import (
    KvStateJobNotFoundError,
    KvStateLocation,
    UnknownKvStateLocationError,
)
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
    JobSettings,
)
from flinkray.scheduler.shared.states import JobStatus

log = logging.getLogger(__name__)

T = TypeVar("T")


class JobQueries:
    """Answers questions about jobs, from the history or by asking the job's JobMaster.
    A JobMaster is asked only for what is needed. The details of a job of 100,000 tasks are
    megabytes; its status and numbers of tasks are small.
    """

    def __init__(
        self,
        jobs: Mapping[JobID, ManagedJob],
        ended: JobHistory,
        unreadable: Mapping[JobID, UnreadableRecordError],
        now: Callable[[], float],
    ) -> None:
        """Create the object that answers queries, from the Dispatcher's own collections.
        *unreadable*: jobs whose stored record cannot be read. *now* returns monotonic seconds.
        """
        self._now = now
        self._jobs = jobs
        self._ended = ended
        self._unreadable = unreadable

    def managed(self, job_id: JobID) -> ManagedJob:
        """Return a job that has not ended, or has not been cleaned up yet.

        Raises:
            JobNotFoundError: there is no such job, or it has ended.
            UnreadableRecordError: the stored record of the job cannot be read.
        """
        if (unreadable := self._unreadable.get(job_id)) is not None:
            raise unreadable
        job = self._jobs.get(job_id)
        if job is None:
            raise JobNotFoundError(job_id)
        return job

    async def overviews(self) -> tuple[JobOverview, ...]:
        """Return one overview for each running and remembered job, by start time, oldest first."""
        running = await asyncio.gather(*map(self._overview_of, tuple(self._jobs.values())))
        overviews = {overview.job_id: overview for overview in running}
        overviews.update((ended.job_id, overview_of(ended.details)) for ended in self._ended)
        return tuple(sorted(overviews.values(), key=lambda o: (o.start_time, o.job_id)))

    async def status(self, job_id: JobID) -> JobStatus:
        """Return the status of a running or ended job. Raises the errors of :meth:`managed`."""
        if (ended := self._ended.get(job_id)) is not None:
            return ended.details.status
        job = self.managed(job_id)
        status = await self._ask(job, lambda job_master: job_master.request_job_status())
        return job.status if status is None else status

    async def progress(self, job_id: JobID) -> JobProgress:
        """Return the status of a running or ended job, with the progress of each vertex while it
        runs. Raises the errors of :meth:`managed`."""
        if (ended := self._ended.get(job_id)) is not None:
            return JobProgress.of(ended.details)
        job = self.managed(job_id)
        progress = await self._ask(job, lambda job_master: job_master.request_job_progress())
        if progress is None:
            return JobProgress.of(job.details())
        return replace(progress, failovers=max(progress.failovers, job.deaths.count))

    async def exceptions(self, job_id: JobID) -> tuple[ExceptionEntry, ...]:
        """Return the failures of a running or ended job. Raises the errors of :meth:`managed`."""
        if (ended := self._ended.get(job_id)) is not None:
            return ended.details.exceptions
        job = self.managed(job_id)
        found = await self._ask(job, lambda job_master: job_master.request_job_exceptions())
        return job.with_own_exceptions(*(found or ()))

    async def details(self, job_id: JobID) -> JobDetails:
        """Return all that is known about a running or ended job. Raises the errors of
        :meth:`managed`."""
        if (ended := self._ended.get(job_id)) is not None:
            return ended.details
        job = self.managed(job_id)
        details = await self._ask(job, lambda job_master: job_master.request_job_details())
        return job.details() if details is None else job.with_failovers(details)

    def settings(self, job_id: JobID) -> JobSettings:
        """Return the settings with which a running or ended job runs or ran.

        Raises:
            JobNotFoundError: there is no such job, or the settings of the ended job were not kept.
            UnreadableRecordError: the stored record of the job cannot be read.
        """
        ended = self._ended.get(job_id)
        settings = self.managed(job_id).settings if ended is None else ended.settings
        if settings is None:
            raise JobNotFoundError(job_id)
        return settings

    async def kv_state_location(self, job_id: JobID, name: str) -> KvStateLocation:
        """Return the location of a queryable state of a running job.

        Raises:
            KvStateJobNotFoundError: there is no such job, or it has ended.
            UnknownKvStateLocationError: the job has no such state at present.
        """
        try:
            job = self.managed(job_id)
        except JobNotFoundError:
            raise KvStateJobNotFoundError(job_id) from None
        if job.outcome is not None:
            raise KvStateJobNotFoundError(job_id)
        location = await self._ask(
            job, lambda job_master: job_master.request_kv_state_location(job_id, name)
        )
        if location is None:
            raise UnknownKvStateLocationError(name)
        return location

    async def source_coordinator(self, job_id: JobID) -> JobMasterId | None:
        """Return the id of the JobMaster that has started a running job's source coordinator.
        The id is part of the coordinator's process name. None if no JobMaster answers, or if it
        does not know the coordinator yet. Raises the errors of :meth:`managed`.
        """
        job = self.managed(job_id)
        return await self._ask(job, lambda job_master: job_master.request_source_coordinator())

    async def _overview_of(self, job: ManagedJob) -> JobOverview:
        remembered = job.remembered
        if job.outcome is not None or remembered is None:
            return job.overview()
        overview = remembered.get(self._now())
        if overview is None:
            answer = await self._ask(job, lambda job_master: job_master.request_job_overview())
            if answer is None:
                return job.overview()
            remembered.answered(answer)
            overview = answer.overview
        return job.with_start_time(overview)

    async def _ask(
        self, job: ManagedJob, question: Callable[[JobMasterGateway], Awaitable[T]]
    ) -> T | None:
        """Return the JobMaster's answer to *question*.
        None if the job has ended or no JobMaster answers.
        """
        if job.outcome is None and job.gateway is not None:
            try:
                return await question(job.gateway)
            except RpcError as error:
                # The JobMaster's death is being handled; until then answer with what is known here.
                log.info("%s: the JobMaster does not answer: %s", job.text, error)
        return None
