"""A Dispatcher's record of one job."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import Any

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.messages import ArchivedJob, StoredJob
from flinkray.actors.shared.settings import job_master_restart_strategy, job_settings
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import ConfigurationError, JobExecutionError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.core.options import (
    JOB_MASTER_FAILOVER_VALIDITY_INTERVAL,
    MAX_JOB_MASTER_FAILOVERS,
)
from flinkray.rpc import TerminationWatch
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobResult,
    JobSettings,
    NumberedOverview,
)
from flinkray.scheduler.shared.states import JobStatus


@dataclass(frozen=True)
class Resizing:
    """A change of a job's parallelism that is under way."""

    bounds: tuple[ParallelismBounds, ...]
    stored: asyncio.Future[None]
    """Completes when the change is stored, or fails with the reason why it is not."""


@dataclass
class ManagedJob:
    """A job that has not been cleaned up yet, and the JobMaster that runs it."""

    graph: JobGraph
    start_time: float
    """Time at which the job was submitted, in seconds since the epoch."""
    deaths: JobMasterDeaths
    accepted: asyncio.Future[None]
    """Completes when the job's graph is stored, or fails with the reason why the job is refused."""
    ended: asyncio.Future[ArchivedJob]
    """Completes when the job has ended and its resources are back."""
    told: asyncio.Future[ArchivedJob]
    """Completes when clients may be told how the job ended.
    This is together with :attr:`ended`, or earlier if the clean-up takes long.
    """
    configuration: ReadableConfig
    """Configuration of the cluster."""
    job_master_id: JobMasterId | None = None
    """The present leader of the job. None until a JobMaster is started or has registered."""
    gateway: JobMasterGateway | None = None
    """Gateway of the JobMaster. None while the JobMaster starts."""
    remembered: RememberedOverview | None = None
    """The last overview from the present JobMaster. None without a registered JobMaster."""
    watch: TerminationWatch | None = None
    has_had_job_masters: bool = False
    """Whether an earlier JobMaster may have left processes: a SlotPool outlives its JobMaster."""
    has_run: bool = False
    """Whether a JobMaster has told this Dispatcher or an earlier one that it has deployed tasks."""
    cancel_requested: bool = False
    cancel_cause: ExceptionEntry | None = None
    """Why the job is cancelled, if no client has requested the cancellation."""
    resizing: Resizing | None = None
    """The change of parallelism under way. Kept until a failed change is withdrawn."""
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the job's graph is written, so that the last written graph is the valid one."""
    ending: asyncio.Task[None] | None = None
    """Task that stores how the job ended. Once it exists, no JobMaster is started."""
    outcome: ArchivedJob | None = None
    """Record of how the job ended. None until this is stored."""

    @property
    def job_id(self) -> JobID:
        return self.graph.job_id

    @property
    def is_ending(self) -> bool:
        """Whether the job has ended, or it is decided that the job ends."""
        return self.ending is not None or self.outcome is not None or self.cancel_requested

    @property
    def text(self) -> str:
        """The text ``job <id> (<name>)``, for log lines."""
        return self.graph.text

    def stored(self, **changes: Any) -> StoredJob:
        """Return the job's record for the store, with *changes* to its fields.
        A change is written to the store first, and only then made in this object.
        """
        stored = StoredJob(
            self.graph, self.start_time, self.cancel_requested, self.cancel_cause, self.has_run
        )
        return replace(stored, **changes)

    @property
    def status(self) -> JobStatus:
        """The job's status as far as the Dispatcher knows, for when no JobMaster can be asked."""
        if self.outcome is not None:
            return self.outcome.result.status
        if self.cancel_requested:
            return JobStatus.CANCELLING
        return JobStatus.RESTARTING if self.deaths.count else JobStatus.INITIALIZING

    @property
    def settings(self) -> JobSettings:
        """The settings with which the job runs. They change when the job is resized.

        Raises:
            ConfigurationError: the job's settings contradict the cluster's configuration.
        """
        return job_settings(self.graph, self.configuration)

    def overview(self) -> JobOverview:
        return overview_of(self.details())

    def details(self) -> JobDetails:
        """Return all that the Dispatcher itself knows about the job. If the job has ended, its last
        details; otherwise nothing about vertices and tasks."""
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
        """Return the JobMaster's *details* with what only the Dispatcher knows: the job's start
        time, and the deaths of JobMasters."""
        return replace(
            details,
            start_time=self.start_time,
            failovers=max(details.failovers, self.deaths.count),
            exceptions=self.with_own_exceptions(*details.exceptions),
        )

    def with_own_exceptions(self, *others: ExceptionEntry) -> tuple[ExceptionEntry, ...]:
        """Return *others*, the failures that a JobMaster knows, together with those that only the
        Dispatcher knows: the deaths of JobMasters, and the cause of a cancellation."""
        cause = () if self.cancel_cause is None else (self.cancel_cause,)
        return (*self.deaths.last, *others, *cause)

    def with_cancel_cause(self, result: JobResult) -> JobResult:
        """Return the JobMaster's *result*. If the job was cancelled, the cause is added."""
        if self.cancel_cause is None or result.status is not JobStatus.CANCELED:
            return result
        return replace(result, cancel_cause=self.cancel_cause.text)

    def with_start_time(self, overview: JobOverview) -> JobOverview:
        """Return the JobMaster's *overview* with the start time that the Dispatcher knows."""
        return replace(overview, start_time=self.start_time)

    def failed(self, error: JobExecutionError, now: float) -> ArchivedJob:
        """Return the record for the history of a job that fails because no JobMaster can be kept
        alive."""
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
        """Return the record of the ended job for the history."""
        try:
            settings = self.settings
        except ConfigurationError:  # the cluster's configuration has changed since the submission
            settings = None
        return ArchivedJob(result, details, settings)


def overview_of(details: JobDetails) -> JobOverview:
    """Return the line that a list of jobs shows for the job with these details."""
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


class RememberedOverview:
    """Remembers the overview that one registered JobMaster has sent.
    Every registration of a JobMaster creates a new object.

    The JobMaster numbers its overviews. An overview is valid until the JobMaster reports a greater
    number. Because this report may be lost, the overview is valid only while the JobMaster's
    heartbeats arrive, which also carry the number. Times are monotonic seconds.
    """

    def __init__(self, lifetime: float, now: float) -> None:
        """Create a memory of one JobMaster's overview, which has no overview yet. *lifetime*: an
        overview counts as outdated this many seconds after the JobMaster's last heartbeat."""
        self._lifetime = lifetime
        self._heard_at = now
        self._number = 0
        self._overview: JobOverview | None = None

    def heard(self, number: int, now: float) -> None:
        """Note a heartbeat of the JobMaster. Drops the overview if its number is below *number*."""
        self._heard_at = now
        if number > self._number:
            self._number, self._overview = number, None

    def answered(self, answer: NumberedOverview) -> None:
        """Remember the overview that the JobMaster has sent.
        An overview with a smaller number than the last reported number is ignored.
        """
        if answer.number >= self._number:
            self._number, self._overview = answer.number, answer.overview

    def get(self, now: float) -> JobOverview | None:
        """Return the remembered overview if it is valid. None: the JobMaster must be asked."""
        return self._overview if now - self._heard_at <= self._lifetime else None


_DEATHS_KEPT = 16
"""Number of JobMaster deaths that are shown: as many as a JobMaster shows failures of its job."""


class JobMasterDeaths:
    """Deaths of a job's JobMasters that this Dispatcher has seen.
    A job fails when too many JobMasters die within one interval. Older deaths do not count.
    """

    def __init__(self, configuration: ReadableConfig) -> None:
        self.count = 0
        """Number of deaths that this Dispatcher has seen, for display."""
        self.last: deque[ExceptionEntry] = deque(maxlen=_DEATHS_KEPT)
        self._restarts = new_restart_strategy(job_master_restart_strategy(configuration))
        self._most = configuration.get(MAX_JOB_MASTER_FAILOVERS)
        self._interval = configuration.get(JOB_MASTER_FAILOVER_VALIDITY_INTERVAL)

    def one_more(self, reason: str, at: float, now: float) -> str | None:
        """Count a death. Returns the text of the failure with which the job must end now. None:
        another JobMaster may be started.

        *at* is in seconds since the epoch, *now* in monotonic seconds.
        """
        self.count += 1
        self.last.append(ExceptionEntry(at, f"the JobMaster died: {reason}"))
        self._restarts.notify_failure(now)
        if self._restarts.can_restart():
            return None
        how_often = f"{self._most + 1} times within {self._interval:g} s" if self._most else "once"
        return (
            f"its JobMaster died {how_often}, the last time: {reason}. Its log says what killed "
            "it; jobmaster.max-failovers and jobmaster.failover-validity-interval say how often "
            "it may die"
        )
