"""What a JobMaster knows of its job as a whole: status, failures, and how it ended."""

from __future__ import annotations

from flinkray.core.ids import WorkerGroupId
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job.job_scheduler_actions import JobStatusChanged
from flinkray.scheduler.job.job_status_machine import JobStatusMachine
from flinkray.scheduler.job.transition_loop import Step
from flinkray.scheduler.job.transitions import StatusEntered
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.exception_history import ExceptionHistory
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobResult,
    VertexInfo,
)
from flinkray.scheduler.reports.json_plan import json_plan
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.scheduler.shared.states import JobStatus


class JobRecord:
    """Times that go in are monotonic seconds, those that come out seconds since the epoch."""

    def __init__(self, job_graph: JobGraph, epoch_offset: float, now: float) -> None:
        self._job_graph = job_graph
        self._plan = json_plan(job_graph)
        self.epoch_offset = epoch_offset
        self._started_at = now
        self._machine = JobStatusMachine(f"job {job_graph.job_id} ({job_graph.name})", now)
        self._history = ExceptionHistory()
        self.restarts = 0
        """Of the job, or of regions of it, under its earlier JobMasters, too."""
        self.failovers = 0
        """How many JobMasters have died before."""
        self.failure: Failure | None = None
        """Why the job is FAILING."""
        self.suspension: str | None = None
        """Why this JobMaster is giving the job up."""
        self.result: SparkResult | None = None

    def follow(self, *, restarts: int, failovers: int) -> None:
        """Count on from what was counted under earlier JobMasters."""
        self.restarts, self.failovers = restarts, failovers

    @property
    def status(self) -> JobStatus:
        return self._machine.status

    @property
    def has_begun(self) -> bool:
        """Whether this JobMaster executes it, or has."""
        early = (JobStatus.INITIALIZING, JobStatus.CREATED, JobStatus.RECONCILING)
        return self.status not in early

    @property
    def is_ending(self) -> bool:
        """Whether its end is decided, whatever fails yet."""
        ending = (JobStatus.FAILING, JobStatus.CANCELLING)
        return self.status.is_terminal or self.status in ending or self.suspension is not None

    @property
    def decided_end(self) -> JobStatus | None:
        """With which status it ends as soon as nothing runs any more; None: it goes on."""
        if self.suspension is not None:
            return JobStatus.SUSPENDED
        ends = {JobStatus.FAILING: JobStatus.FAILED, JobStatus.CANCELLING: JobStatus.CANCELED}
        return ends.get(self.status)

    @property
    def story(self) -> str:
        return str(self._machine.story)

    def enter(self, status: JobStatus, now: float, cause: str = "") -> None:
        """Take a transition; raises IllegalTransitionError."""
        self._machine.enter(status, now, cause)

    def change(self, status: JobStatus, now: float, cause: str = "") -> list[Step]:
        """The same, with what tells who listens, here and elsewhere."""
        self.enter(status, now, cause)
        return [JobStatusChanged(status), StatusEntered(status)]

    def since(self, time: float, now: float) -> float:
        """What another JobMaster calls *time*, in seconds since the epoch (0: it is not known), and
        is not to come here."""
        return min(time - self.epoch_offset, now) if time else now

    def runs_since(self, time: float, now: float) -> None:
        """It has been RUNNING since then under another JobMaster."""
        self._machine.entered[JobStatus.RUNNING] = self.since(time, now)

    @property
    def running_since(self) -> float:
        """In seconds since the epoch; 0: it is not running."""
        if self.status is not JobStatus.RUNNING:
            return 0.0
        return self._machine.entered[JobStatus.RUNNING] + self.epoch_offset

    def fail(self, failure: Failure, now: float) -> list[Step]:
        """Enter FAILING."""
        self.add_failure(failure, now)
        self.failure = failure
        return self.change(JobStatus.FAILING, now, failure.text)

    def suspend(self, reason: str, now: float) -> None:
        self.suspension = reason
        self._machine.story.add(now, f"is to be suspended: {reason}")

    def add_failure(self, failure: Failure, now: float) -> None:
        """Into the exceptions history."""
        self._history.add(failure, now + self.epoch_offset)

    def add_concurrent_failure(self, failure: Failure, now: float) -> None:
        """Into the exceptions history, to the last failure."""
        self._history.add_concurrent(failure, now + self.epoch_offset)

    @property
    def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """The exceptions history, oldest first."""
        return self._history.entries

    def details(
        self,
        vertices: tuple[VertexInfo, ...],
        pending_reason: str | None,
        worker_group: WorkerGroupId | None,
        warnings: tuple[str, ...],
        checkpoints: CheckpointsOverview | None,
    ) -> JobDetails:
        """The job as clients see it."""
        times = {s.name: at + self.epoch_offset for s, at in self._machine.entered.items()}
        return JobDetails(
            job_id=self._job_graph.job_id,
            name=self._job_graph.name,
            status=self.status,
            start_time=self._started_at + self.epoch_offset,
            end_time=times[self.status.name] if self.status.is_terminal else None,
            status_timestamps=times,
            restarts=self.restarts,
            failovers=self.failovers,
            vertices=vertices,
            pending_reason=pending_reason,
            exceptions=self.exceptions,
            worker_group=worker_group,
            plan=self._plan,
            warnings=warnings,
            checkpoints=checkpoints,
        )

    def overview(self, tasks: dict[str, int]) -> JobOverview:
        """The same in a few numbers; *tasks*: how many are in which state."""
        ended = self._machine.entered[self.status] if self.status.is_terminal else None
        return JobOverview(
            self._job_graph.job_id,
            self._job_graph.name,
            self.status,
            self._started_at + self.epoch_offset,
            None if ended is None else ended + self.epoch_offset,
            tasks,
            self.last_modified + self.epoch_offset,
        )

    @property
    def last_modified(self) -> float:
        """When its status changed last."""
        return max(self._machine.entered.values())

    def job_result(self, now: float) -> JobResult:
        """How the job ended.  A cancelled job's result is without any failure (JM-22)."""
        failure = self.failure if self.status is JobStatus.FAILED else None
        result = self.result if self.status is JobStatus.FINISHED else None
        return JobResult(
            job_id=self._job_graph.job_id,
            name=self._job_graph.name,
            status=self.status,
            net_runtime=max(0.0, now - self._started_at),
            failure=None if failure is None else failure.text,
            failure_traceback=None if failure is None else failure.traceback,
            result_location=None if result is None else result.location,
            num_rows=None if result is None else result.num_rows,
            schema_json=None if result is None else result.schema_json,
        )
