"""Jobs, workers and the cluster as clients see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from flinkray.core.error_text import sendable
from flinkray.core.ids import JobID, JobVertexID, TriggerID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import stored, with_defaults
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.execution_table import ExecutionTable
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import JobStatus

_SHORT = 1024
"""Bytes of a text where there is room for little."""


@stored("ExceptionEntry")
@message
class ExceptionEntry:
    """One failure in a job's history; ``task`` and ``location`` are None for the job as a whole."""

    timestamp: float
    """Seconds since the epoch."""
    text: str
    traceback: str | None = None
    task: str | None = None
    location: str | None = None
    concurrent: tuple[ExceptionEntry, ...] = ()
    """What failed besides it, until the restart that it led to."""


@stored("StageProgressInfo")
@message
class StageProgressInfo:
    """Progress of one running Spark stage."""

    stage_id: int
    name: str
    num_tasks: int
    active_tasks: int
    completed_tasks: int
    failed_tasks: int


@stored("VertexInfo")
@message
class VertexInfo:
    """One vertex of a running or ended job."""

    vertex_id: JobVertexID
    name: str
    parallelism: int
    executions: tuple[ExecutionInfo, ...] | ExecutionTable
    active_stages: tuple[StageProgressInfo, ...] = ()
    completed_stages: int = 0
    completed_tasks: int = 0
    failed_tasks: int = 0
    max_parallelism: int | None = None
    prior_executions: tuple[ExecutionInfo, ...] | ExecutionTable = ()
    """Earlier attempts of its subtasks, oldest first of each; the newest few."""
    tasks: dict[str, int] = field(default_factory=dict)
    """ExecutionState name -> how many of the executions are in it; those that occur."""
    io_metrics: IOMetrics | None = None
    """The sum over those executions of which it is known."""
    measured: int = 0
    """How many these are."""


@stored("JobDetails", version=4, migrations=dict.fromkeys((1, 2, 3), with_defaults))
@message
class JobDetails:
    """All that a client may want to know of a job."""

    job_id: JobID
    name: str
    status: JobStatus
    start_time: float
    end_time: float | None
    status_timestamps: dict[str, float]
    """JobStatus name -> seconds since the epoch when it was entered last."""
    restarts: int
    """Of the job, or of regions of it."""
    vertices: tuple[VertexInfo, ...] = ()
    pending_reason: str | None = None
    """Why the job waits for slots, when it does."""
    exceptions: tuple[ExceptionEntry, ...] = ()
    worker_group: WorkerGroupId | None = None
    plan: str = ""
    """JSON, in the shape of Flink's."""
    warnings: tuple[str, ...] = ()
    """What its users should mend, though it runs."""
    checkpoints: CheckpointsOverview | None = None
    """None: it takes none."""
    failovers: int = 0
    """How many of its JobMasters have died.  What runs goes on then."""

    def without_executions(self) -> JobDetails:
        """For jobs so large that even :class:`ExecutionTable` is too much for one message."""
        bare = (replace(v, executions=(), prior_executions=()) for v in self.vertices)
        return replace(self, vertices=tuple(bare))

    def reductions(self) -> Iterator[JobDetails]:
        """Less and less of them, for jobs of which all is too much for one message; the last has
        nothing that grows with the job."""
        details = self.without_executions()
        yield details
        short = (
            replace(e, text=sendable(e.text, _SHORT), traceback=None, concurrent=())
            for e in self.exceptions
        )
        yield (details := replace(details, exceptions=tuple(short)))
        yield replace(
            details,
            name=sendable(self.name, _SHORT),
            vertices=(),
            pending_reason=None,
            plan="",
            warnings=(),
            checkpoints=None,
        )


@message
class VertexProgress:
    """How far a vertex is, in a few numbers."""

    name: str
    parallelism: int
    tasks: dict[str, int]
    """ExecutionState name -> how many of the current executions are in it; those that occur."""
    is_spark_stage: bool = False
    active_stages: tuple[StageProgressInfo, ...] = ()
    completed_stages: int = 0
    completed_tasks: int = 0


@message
class JobProgress:
    """How far a job is; of the same size however many tasks it has."""

    job_id: JobID
    name: str
    status: JobStatus
    restarts: int
    pending_reason: str | None = None
    """Why the job waits for slots, when it does."""
    vertices: tuple[VertexProgress, ...] = ()
    """None, while and after no JobMaster runs it."""
    warnings: tuple[str, ...] = ()
    """As in :class:`JobDetails`."""
    completed_checkpoints: int | None = None
    """With savepoints; None: it takes none, or none is known."""
    failed_checkpoints: int = 0
    failovers: int = 0
    """As in :class:`JobDetails`."""

    @classmethod
    def of(cls, details: JobDetails) -> JobProgress:
        """Of a job that no JobMaster runs."""
        checkpoints = details.checkpoints
        return cls(
            details.job_id,
            details.name,
            details.status,
            details.restarts,
            details.pending_reason,
            warnings=details.warnings,
            completed_checkpoints=None if checkpoints is None else checkpoints.completed,
            failed_checkpoints=0 if checkpoints is None else checkpoints.failed,
            failovers=details.failovers,
        )


@message
class JobOverview:
    """One line of a job list; of the same size however many tasks the job has."""

    job_id: JobID
    name: str
    status: JobStatus
    start_time: float
    end_time: float | None
    tasks: dict[str, int] = field(default_factory=dict)
    """ExecutionState name -> how many subtasks are in it; those that occur."""
    last_modified: float | None = None
    """Seconds since the epoch when its status changed last."""


@message
class NumberedOverview:
    """What a JobMaster answers who looks at its job.  It holds until the JobMaster tells of a
    greater number."""

    number: int
    overview: JobOverview


@stored("JobResult", version=3, migrations={1: with_defaults, 2: with_defaults})
@message
class JobResult:
    """How a job ended.  Only FINISHED is success."""

    job_id: JobID
    name: str
    status: JobStatus
    net_runtime: float
    """Seconds."""
    failure: str | None = None
    failure_traceback: str | None = None
    result_location: str | None = None
    """Where a returned DataFrame lies as Parquet."""
    num_rows: int | None = None
    schema_json: str | None = None
    cancel_cause: str | None = None
    """Why a job was cancelled, if nobody has asked for it."""
    savepoint: str | None = None
    """Where the savepoint is that the job was stopped with."""
    stopped_by: TriggerID | None = None
    """Whose request that was, so that it can be answered again."""
    keeps_checkpoints: bool = False
    """It has failed as it cannot be read what it would have gone on from: its checkpoints stay,
    whatever is configured."""

    def __post_init__(self) -> None:
        if not self.status.is_terminal:
            raise ValueError(f"a job result has a terminal status, not {self.status.name}")
        if self.status is JobStatus.FAILED and self.failure is None:
            raise ValueError("a failed job's result needs its cause")
        if self.net_runtime < 0:
            raise ValueError(f"net runtime must not be negative: {self.net_runtime}")

    def with_savepoint(self, path: str, stopped_by: TriggerID) -> JobResult:
        """The same, of a job that was stopped so."""
        return replace(self, savepoint=path, stopped_by=stopped_by)

    def shortened(self) -> JobResult:
        """Its long texts cut: for messages that are too large with them."""
        failure = None if self.failure is None else sendable(self.failure, _SHORT)
        cause = None if self.cancel_cause is None else sendable(self.cancel_cause, _SHORT)
        return replace(
            self,
            name=sendable(self.name, _SHORT),
            failure=failure,
            failure_traceback=None,
            schema_json=None,
            cancel_cause=cause,
        )


@message
class TaskExecutorInfo:
    """One worker in the cluster's overview."""

    location: WorkerLocation
    total_profile: ResourceProfile
    number_of_slots: int
    free_slots: int
    jobs: tuple[JobID, ...] = ()
    """Of its slots, those that a job has: whose each is."""


@message
class MasterInfo:
    """Who leads one of the cluster's components, and who would take over."""

    component: str
    """``Dispatcher`` or ``ResourceManager``."""
    leader: str
    """Name of its process."""
    standbys: tuple[str, ...]
    """Names of the processes that wait."""


@message
class ClusterNumbers:
    """What is said of the TaskExecutors without naming any: of the same size however many there
    are."""

    version: str
    task_executors: int
    slots_total: int
    slots_available: int


@message
class ClusterOverview:
    """The cluster with each of its TaskExecutors; who wants no more than how many there are asks
    for :class:`ClusterNumbers`."""

    version: str
    task_executors: tuple[TaskExecutorInfo, ...]
    slots_total: int
    slots_available: int
    jobs: tuple[JobOverview, ...]
    cluster_total: ResourceProfile
    cluster_available: ResourceProfile
    dashboard_url: str | None = None
    masters: tuple[MasterInfo, ...] = ()
