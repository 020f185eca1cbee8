"""Records the status, the failures and the result of a job."""

from __future__ import annotations

from collections import deque

from flinkray.core.ids import WorkerGroupId
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.exception_history import ExceptionHistory
from flinkray.scheduler.job.job_scheduler_actions import JobStatusChanged
from flinkray.scheduler.job.job_status import JobStatusMachine
from flinkray.scheduler.job.transition_loop import Step
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
    JobResult,
    VertexInfo,
    VertexProgress,
    json_plan,
    one_line_of,
)
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.spark_reports import SparkResult
from flinkray.scheduler.shared.states import JobStatus

_CAUSES_KEPT = 16
"""Number of restart causes that are kept, equal to the entries in the exceptions history."""


class JobRecord:
    """Records the status, the failures and the result of a job for its JobMaster. Times in
    parameters are monotonic seconds; returned times are seconds since the epoch."""

    def __init__(self, job_graph: JobGraph, epoch_offset: float, now: float) -> None:
        self._job_graph = job_graph
        self._plan = json_plan(job_graph)
        self.epoch_offset = epoch_offset
        self._started_at = now
        self._machine = JobStatusMachine(f"job {job_graph.job_id} ({job_graph.name})", now)
        self._history = ExceptionHistory()
        self.restarts = 0
        """Restarts of the job or of its regions, including those under earlier JobMasters."""
        self.restart_causes: deque[str] = deque(maxlen=_CAUSES_KEPT)
        """Causes of the last restarts, each in one line with its task."""
        self.failovers = 0
        """How many JobMasters of the job have died."""
        self.failure: Failure | None = None
        """Why the job is FAILING; None if it is not."""
        self.suspension: str | None = None
        """Why this JobMaster suspends the job; None if it does not."""
        self.result: SparkResult | None = None

    def follow(self, *, restarts: int, failovers: int) -> None:
        """Continue counting restarts and failovers from the numbers that earlier JobMasters
        reached."""
        self.restarts, self.failovers = restarts, failovers

    @property
    def status(self) -> JobStatus:
        return self._machine.status

    @property
    def has_begun(self) -> bool:
        """Whether this JobMaster executes the job or has executed it."""
        early = (JobStatus.INITIALIZING, JobStatus.CREATED, JobStatus.RECONCILING)
        return self.status not in early

    @property
    def is_ending(self) -> bool:
        """Whether the job's end is decided: the job is failing, canceling or being suspended, or
        has ended."""
        ending = (JobStatus.FAILING, JobStatus.CANCELLING)
        return self.status.is_terminal or self.status in ending or self.suspension is not None

    @property
    def decided_end(self) -> JobStatus | None:
        """Status with which the job ends when nothing runs any more; None if no end is decided."""
        if self.suspension is not None:
            return JobStatus.SUSPENDED
        ends = {JobStatus.FAILING: JobStatus.FAILED, JobStatus.CANCELLING: JobStatus.CANCELED}
        return ends.get(self.status)

    @property
    def story(self) -> str:
        return str(self._machine.story)

    def enter(self, status: JobStatus, now: float, cause: str = "") -> None:
        """Change the status of the job, and report the change to nobody.

        Raises:
            IllegalTransitionError: the current status does not allow this status.
        """
        self._machine.enter(status, now, cause)

    def change(self, status: JobStatus, now: float, cause: str = "") -> list[Step]:
        """Change the status of the job. Returns what must follow: an action that tells the
        JobMaster's listeners the status, and a StatusEntered for the other decision objects.

        Raises:
            IllegalTransitionError: the current status does not allow this status.
        """
        self.enter(status, now, cause)
        return [JobStatusChanged(status), t.StatusEntered(status)]

    def since(self, time: float, now: float) -> float:
        """Convert *time*, seconds since the epoch by another JobMaster's clock, to monotonic
        seconds of this JobMaster, at most *now*. Returns *now* if *time* is 0 (unknown)."""
        return min(time - self.epoch_offset, now) if time else now

    def runs_since(self, time: float, now: float) -> None:
        """Set that the job has been RUNNING under another JobMaster since *time*, in seconds since
        the epoch."""
        self._machine.entered[JobStatus.RUNNING] = self.since(time, now)

    @property
    def running_since(self) -> float:
        """Seconds since the epoch when the job became RUNNING; 0 if it is not running."""
        if self.status is not JobStatus.RUNNING:
            return 0.0
        return self._machine.entered[JobStatus.RUNNING] + self.epoch_offset

    @property
    def began_at(self) -> float:
        """Seconds since the epoch when the job began, under this JobMaster or an earlier one."""
        began = self._started_at + self.epoch_offset
        return min(began, self.running_since or began)

    def fail(self, failure: Failure, now: float) -> list[Step]:
        """Add the failure to the exceptions history, and change the status to FAILING. Returns what
        must follow, as :meth:`change` does."""
        self.add_failure(failure, now)
        self.failure = failure
        return self.change(JobStatus.FAILING, now, failure.text)

    def count_restart(self, failure: Failure) -> str:
        """Count a restart, and return its cause in one line that names the failed task."""
        self.restarts += 1
        cause = one_line_of(failure.text, failure.task)
        self.restart_causes.append(cause)
        return cause

    def suspend(self, reason: str, now: float) -> None:
        self.suspension = reason
        self._machine.story.add(now, f"is to be suspended: {reason}")

    def add_failure(self, failure: Failure, now: float) -> None:
        """Add a failure to the exceptions history."""
        self._history.add(failure, now + self.epoch_offset)

    def add_concurrent_failure(self, failure: Failure, now: float) -> None:
        """Add a failure to the last entry of the exceptions history, as a concurrent failure."""
        self._history.add_concurrent(failure, now + self.epoch_offset)

    @property
    def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """The exceptions history: failures that led to a restart or to the job's end, oldest
        first."""
        return self._history.entries

    def details(
        self,
        vertices: tuple[VertexInfo, ...],
        pending_reason: str | None,
        worker_group: WorkerGroupId | None,
        warnings: tuple[str, ...],
        checkpoints: CheckpointsOverview | None,
    ) -> JobDetails:
        """Return all that clients can get about the job: its status and times, and the given
        parts."""
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

    def progress(
        self,
        vertices: tuple[VertexProgress, ...],
        pending_reason: str | None,
        warnings: tuple[str, ...],
        checkpoints: CheckpointsOverview | None,
    ) -> JobProgress:
        """Return what clients poll while they wait for the job: its status, restarts, numbers of
        tasks and of checkpoints, and why it waits."""
        return JobProgress(
            self._job_graph.job_id,
            self._job_graph.name,
            self.status,
            self.restarts,
            pending_reason,
            vertices,
            warnings,
            None if checkpoints is None else checkpoints.completed,
            0 if checkpoints is None else checkpoints.failed,
            self.failovers,
            tuple(self.restart_causes),
        )

    def overview(self, tasks: dict[str, int]) -> JobOverview:
        """Return the job's line in a list of jobs. *tasks*: ExecutionState name -> number of
        tasks."""
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
        """Monotonic seconds when the job's status last changed."""
        return max(self._machine.entered.values())

    def job_result(self, now: float) -> JobResult:
        """Return how the job has ended. The result of a canceled job contains no failure
        (JM-22)."""
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
