"""A Dispatcher's record of one job."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from flinkray.actors.dispatcher.job_master_deaths import JobMasterDeaths
from flinkray.actors.dispatcher.remembered_overview import RememberedOverview
from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import ArchivedJob, StoredJob
from flinkray.actors.shared.settings import job_settings
from flinkray.core.config import Configuration
from flinkray.core.errors import ConfigurationError, JobExecutionError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import TerminationWatch
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds
from flinkray.scheduler.reports.job_info import ExceptionEntry, JobDetails, JobOverview, JobResult
from flinkray.scheduler.reports.job_settings import JobSettings
from flinkray.scheduler.shared.states import JobStatus


@dataclass(frozen=True)
class Resizing:
    """A change of a job's parallelism that is under way."""

    bounds: tuple[ParallelismBounds, ...]
    stored: asyncio.Future[None]
    """Completes when it is, or fails with the reason why it is not."""


@dataclass
class ManagedJob:
    """A job that has not been cleaned up yet, and the JobMaster that runs it."""

    graph: JobGraph
    start_time: float
    """Seconds since the epoch."""
    deaths: JobMasterDeaths
    accepted: asyncio.Future[None]
    """Completes when its graph is stored, or fails with the reason why it is refused."""
    ended: asyncio.Future[ArchivedJob]
    """Completes when the job has ended and its resources are back."""
    told: asyncio.Future[ArchivedJob]
    """Completes then, too, or when that takes long: clients are told how it has ended."""
    configuration: Configuration
    """The cluster's."""
    job_master_id: JobMasterId | None = None
    """The present leader of the job; None until one is started or has registered."""
    gateway: JobMasterGateway | None = None
    """None while the JobMaster starts."""
    remembered: RememberedOverview | None = None
    """What that JobMaster has said last; None: there is none, or it starts."""
    watch: TerminationWatch | None = None
    has_had_job_masters: bool = False
    """Whether one may have left something: a SlotPool outlives its JobMaster."""
    cancel_requested: bool = False
    cancel_cause: ExceptionEntry | None = None
    """Why, if no client has asked for it."""
    resizing: Resizing | None = None
    """As long as it may still be taken back, too."""
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by who writes its graph: what is written last must be what counts."""
    ending: asyncio.Task[None] | None = None
    """Stores how the job ended; from its beginning on no JobMaster is started."""
    outcome: ArchivedJob | None = None
    """Set as soon as the job's end is stored."""

    @property
    def job_id(self) -> JobID:
        return self.graph.job_id

    def stored(self, **changes: Any) -> StoredJob:
        """What is kept of it until it has ended; *changes*: of fields that are to be stored before
        they are set."""
        stored = StoredJob(self.graph, self.start_time, self.cancel_requested, self.cancel_cause)
        return replace(stored, **changes)

    @property
    def status(self) -> JobStatus:
        """As far as the Dispatcher knows by itself: while no JobMaster can be asked."""
        if self.outcome is not None:
            return self.outcome.result.status
        if self.cancel_requested:
            return JobStatus.CANCELLING
        return JobStatus.RESTARTING if self.deaths.count else JobStatus.INITIALIZING

    @property
    def settings(self) -> JobSettings:
        """As its graph says at present: they change when it is resized.

        Raises:
            ConfigurationError: the job's do not go with the cluster's.
        """
        return job_settings(self.graph, self.configuration)

    def overview(self) -> JobOverview:
        return overview_of(self.details())

    def details(self) -> JobDetails:
        """What can be said without the JobMaster."""
        if self.outcome is not None:
            return self.outcome.details
        return JobDetails(
            job_id=self.job_id,
            name=self.graph.name,
            status=self.status,
            start_time=self.start_time,
            end_time=None,
            status_timestamps={JobStatus.INITIALIZING.name: self.start_time},
            restarts=0,
            failovers=self.deaths.count,
            exceptions=self.with_own_exceptions(),
        )

    def with_failovers(self, details: JobDetails) -> JobDetails:
        """A JobMaster's details, with the deaths of its predecessors added."""
        return replace(
            details,
            start_time=self.start_time,
            failovers=max(details.failovers, self.deaths.count),
            exceptions=self.with_own_exceptions(*details.exceptions),
        )

    def with_own_exceptions(self, *others: ExceptionEntry) -> tuple[ExceptionEntry, ...]:
        """Those that the Dispatcher knows of, and others of a JobMaster."""
        cause = () if self.cancel_cause is None else (self.cancel_cause,)
        return (*self.deaths.last, *others, *cause)

    def with_cancel_cause(self, result: JobResult) -> JobResult:
        """A JobMaster's result, with why the job was cancelled, if it was."""
        if self.cancel_cause is None or result.status is not JobStatus.CANCELED:
            return result
        return replace(result, cancel_cause=self.cancel_cause.text)

    def with_start_time(self, overview: JobOverview) -> JobOverview:
        """A JobMaster's overview, of all runs of the job."""
        return replace(overview, start_time=self.start_time)

    def failed(self, error: JobExecutionError, now: float) -> ArchivedJob:
        """The end of a job whose JobMaster cannot be kept alive."""
        known = self.details()
        details = replace(
            known,
            status=JobStatus.FAILED,
            end_time=now,
            status_timestamps={**known.status_timestamps, JobStatus.FAILED.name: now},
            exceptions=self.with_own_exceptions(ExceptionEntry(now, error.text)),
        )
        result = JobResult(
            job_id=self.job_id,
            name=self.graph.name,
            status=JobStatus.FAILED,
            net_runtime=max(0.0, now - self.start_time),
            failure=error.text,
        )
        return self.archived(result, details)

    def archived(self, result: JobResult, details: JobDetails) -> ArchivedJob:
        """What is kept of it when it has ended so."""
        try:
            settings = self.settings
        except ConfigurationError:  # the cluster's has changed since its submission
            settings = None
        return ArchivedJob(result, details, settings)


def overview_of(details: JobDetails) -> JobOverview:
    """The line of a job list that belongs to a job's details."""
    tasks: Counter[str] = Counter()
    for vertex in details.vertices:
        tasks.update(vertex.tasks)
    return JobOverview(
        details.job_id,
        details.name,
        details.status,
        details.start_time,
        details.end_time,
        dict(tasks),
        max(details.status_timestamps.values(), default=details.start_time),
    )
