"""Describes jobs, with their settings and plans, workers and the cluster for clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

from flinkray.core.error_text import in_one_line, sendable
from flinkray.core.ids import JobID, JobVertexID, TriggerID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile
from flinkray.core.schema import stored, with_defaults
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import (
    JobEdge,
    JobGraph,
    JobVertex,
    ParallelismBounds,
    RestartStrategy,
)
from flinkray.scheduler.graph.validation import topological_order
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.execution_info import ExecutionInfo, ExecutionTable
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import JobStatus

_SHORT = 1024
"""Largest size in bytes of a text where there is little room."""


@stored("ExceptionEntry")
@message
class ExceptionEntry:
    """A failure in a job's history; ``task`` and ``location`` are None for the whole job."""

    timestamp: float
    """Seconds since the epoch."""
    text: str
    traceback: str | None = None
    task: str | None = None
    location: str | None = None
    concurrent: tuple[ExceptionEntry, ...] = ()
    """Failures that occurred after this failure and before the restart that this failure caused."""


@stored("StageProgressInfo")
@message
class StageProgressInfo:
    """Numbers of tasks of one running Spark stage: active, completed, failed."""

    stage_id: int
    name: str
    num_tasks: int
    active_tasks: int
    completed_tasks: int
    failed_tasks: int


@stored("VertexInfo")
@message
class VertexInfo:
    """One vertex of a job, running or ended, with the attempts of its subtasks."""

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
    """The newest earlier attempts of the subtasks; oldest first for each subtask."""
    tasks: dict[str, int] = field(default_factory=dict)
    """ExecutionState name -> number of executions in the state, if not 0."""
    io_metrics: IOMetrics | None = None
    """Sum of the known metrics of the executions; None if none is known."""
    measured: int = 0
    """Number of executions whose metrics are known."""


@stored("JobDetails", version=4, migrations=dict.fromkeys((1, 2, 3), with_defaults))
@message
class JobDetails:
    """All that clients can get about a job: status, vertices with attempts, failures, checkpoints,
    plan."""

    job_id: JobID
    name: str
    status: JobStatus
    start_time: float
    end_time: float | None
    status_timestamps: dict[str, float]
    """JobStatus name -> seconds since the epoch when the status was last entered."""
    restarts: int
    """Number of restarts of the job or of its regions."""
    vertices: tuple[VertexInfo, ...] = ()
    pending_reason: str | None = None
    """Why the job waits for slots; None if it does not."""
    exceptions: tuple[ExceptionEntry, ...] = ()
    worker_group: WorkerGroupId | None = None
    plan: str = ""
    """The plan in JSON, in the format of Flink."""
    warnings: tuple[str, ...] = ()
    """Warnings about problems that users should fix, although the job runs."""
    checkpoints: CheckpointsOverview | None = None
    """Statistics of the checkpoints; None if the job takes no checkpoints."""
    failovers: int = 0
    """How many JobMasters of the job have died.  Running tasks survive such a death."""

    def without_executions(self) -> JobDetails:
        """Return the details without the attempts of the subtasks, for jobs whose attempts are too
        large for a message, even as :class:`ExecutionTable`."""
        bare = (replace(v, executions=(), prior_executions=()) for v in self.vertices)
        return replace(self, vertices=tuple(bare))

    def reductions(self) -> Iterator[JobDetails]:
        """Yield smaller and smaller versions of the details, until one fits into a message. The
        last version contains nothing whose size grows with the job."""
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
    """Number of tasks of one vertex by state, and the progress of its Spark stage, if it is one.
    Its size does not depend on the parallelism."""

    name: str
    parallelism: int
    tasks: dict[str, int]
    """ExecutionState name -> number of current executions in the state, if not 0."""
    is_spark_stage: bool = False
    active_stages: tuple[StageProgressInfo, ...] = ()
    completed_stages: int = 0
    completed_tasks: int = 0


@message
class JobProgress:
    """What clients poll while they wait for a job: its status, restarts, numbers of tasks and of
    checkpoints, and why it waits. Its size does not depend on the number of tasks."""

    job_id: JobID
    name: str
    status: JobStatus
    restarts: int
    pending_reason: str | None = None
    """Why the job waits for slots; None if it does not."""
    vertices: tuple[VertexProgress, ...] = ()
    """Progress of each vertex; empty if no JobMaster runs the job."""
    warnings: tuple[str, ...] = ()
    """Warnings about problems that users should fix, although the job runs."""
    completed_checkpoints: int | None = None
    """Number of completed checkpoints and savepoints.
    None if the job takes none, or the number is unknown."""
    failed_checkpoints: int = 0
    failovers: int = 0
    """How many JobMasters of the job have died."""
    restart_causes: tuple[str, ...] = ()
    """Causes of the last restarts, oldest first, each in one line."""

    @property
    def text(self) -> str:
        """``job <id> (<name>)``, for log lines."""
        return f"job {self.job_id} ({self.name})"

    @classmethod
    def of(cls, details: JobDetails) -> JobProgress:
        """Create this report for a job that no JobMaster runs, from the job's stored details."""
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
            restart_causes=_restart_causes(details),
        )

    def restarts_after(self, number: int) -> list[tuple[int, str]]:
        """Return (number, cause) of each restart after restart *number*, if the cause is known."""
        first = self.restarts - len(self.restart_causes) + 1
        return [it for it in enumerate(self.restart_causes, first) if it[0] > number]


def _restart_causes(details: JobDetails) -> tuple[str, ...]:
    """Return why a job that has ended or waits was restarted, oldest first. Empty if JobMasters
    died, because the history then also contains their deaths."""
    if details.failovers or not details.restarts:
        return ()
    led_to_end = 1 if details.status is JobStatus.FAILED else 0
    entries = details.exceptions[: len(details.exceptions) - led_to_end]
    return tuple(one_line_of(entry.text, entry.task) for entry in entries[-details.restarts :])


def one_line_of(text: str, task: str | None) -> str:
    """Return *text*, which describes a failure, as one line that begins with the task if it does
    not name it. *task*: None for a failure of the whole job."""
    told = in_one_line(text)
    return told if task is None or task in told else f"{task}: {told}"


@message
class JobOverview:
    """A job's line in a list of jobs. Its size does not depend on the number of the job's tasks."""

    job_id: JobID
    name: str
    status: JobStatus
    start_time: float
    end_time: float | None
    tasks: dict[str, int] = field(default_factory=dict)
    """ExecutionState name -> number of subtasks in the state, if not 0."""
    last_modified: float | None = None
    """Seconds since the epoch when the job's status last changed; None if unknown."""


@message
class ModelInfo:
    """A model whose replicas run in the cluster (``DataStream.infer``)."""

    job_id: JobID
    """The job that runs the replicas."""
    name: str
    status: JobStatus
    running: int
    """Number of replicas that run now."""
    fewest: int
    most: int
    profile: ResourceProfile
    """Resources of the slot of each replica."""
    users: tuple[JobID, ...]
    """The running jobs that use the model, as far as the present Dispatcher has heard of them."""


@message
class NumberedOverview:
    """A JobMaster's answer to a request for its job's overview. The overview is valid until the
    JobMaster announces a greater number."""

    number: int
    overview: JobOverview


@stored("JobResult", version=3, migrations={1: with_defaults, 2: with_defaults})
@message
class JobResult:
    """How a job has ended, with its failure or the place of its result. Only the status FINISHED is
    success."""

    job_id: JobID
    name: str
    status: JobStatus
    net_runtime: float
    """Runtime of the job in seconds."""
    failure: str | None = None
    failure_traceback: str | None = None
    result_location: str | None = None
    """Location of a returned DataFrame, in Parquet; None if none was returned."""
    num_rows: int | None = None
    schema_json: str | None = None
    cancel_cause: str | None = None
    """Why the job was canceled, if no user asked for it; otherwise None."""
    savepoint: str | None = None
    """Path of the savepoint that the job was stopped with; None if there is none."""
    stopped_by: TriggerID | None = None
    """Id of the request that stopped the job, to answer a repeated request; None without a stop."""
    keeps_checkpoints: bool = False
    """Whether the checkpoints stay, whatever is configured.
    True if the job failed because its checkpoint or savepoint could not be read."""

    def __post_init__(self) -> None:
        if not self.status.is_terminal:
            raise ValueError(f"a job result has a terminal status, not {self.status.name}")
        if self.status is JobStatus.FAILED and self.failure is None:
            raise ValueError("a failed job's result needs its cause")
        if self.net_runtime < 0:
            raise ValueError(f"net runtime must not be negative: {self.net_runtime}")

    def with_savepoint(self, path: str, stopped_by: TriggerID) -> JobResult:
        """Return a copy that names the savepoint with which the request *stopped_by* stopped the
        job."""
        return replace(self, savepoint=path, stopped_by=stopped_by)

    def shortened(self) -> JobResult:
        """Return the result with shortened texts, for a result that is too large for a message."""
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
    """One TaskExecutor in the cluster's overview: its place, its slots, and the jobs that use
    them."""

    location: WorkerLocation
    total_profile: ResourceProfile
    number_of_slots: int
    free_slots: int
    jobs: tuple[JobID, ...] = ()
    """For each slot that a job has, the id of the job."""


@message
class MasterInfo:
    """The leader and the standbys of one of the cluster's components."""

    component: str
    """``Dispatcher`` or ``ResourceManager``."""
    leader: str
    """Name of the leading process."""
    standbys: tuple[str, ...]
    """Names of the standby processes."""


@message
class ClusterNumbers:
    """How many TaskExecutors and slots the cluster has. The size of this message does not depend on
    the number of TaskExecutors."""

    version: str
    task_executors: int
    slots_total: int
    slots_available: int


@message
class ClusterOverview:
    """All TaskExecutors, jobs, masters and resources of the cluster. :class:`ClusterNumbers`
    contains only totals."""

    version: str
    task_executors: tuple[TaskExecutorInfo, ...]
    slots_total: int
    slots_available: int
    jobs: tuple[JobOverview, ...]
    cluster_total: ResourceProfile
    cluster_available: ResourceProfile
    dashboard_url: str | None = None
    masters: tuple[MasterInfo, ...] = ()


@stored("JobSettings")
@message
class JobSettings:
    """The settings that apply to a job: those of its job graph, otherwise those of the cluster."""

    restart_strategy: RestartStrategy
    state_backend: str
    """Value of the option ``state.backend.type``."""
    checkpoints: CheckpointConfiguration | None
    """Configuration of the checkpoints; None if the job takes no checkpoints."""
    is_elastic: bool
    """Whether the job's parallelism can be changed while it runs."""
    bounds: tuple[ParallelismBounds, ...]
    """Parallelism bounds of all vertices.
    If the job is not elastic, lower and upper bound are the parallelism."""


def json_plan(job_graph: JobGraph) -> str:
    """Return the plan as JSON, with the vertices in topological order.

    Raises:
        JobSubmissionError: the graph has no topological order.
    """
    order = topological_order(job_graph)
    producers = {
        result.data_set_id: (vertex, result.result_type)
        for vertex in order
        for result in vertex.results
    }

    def input_of(number: int, edge: JobEdge) -> dict[str, Any]:
        vertex, result_type = producers[edge.source]
        return {
            "num": number,
            "id": vertex.vertex_id.hex(),
            "ship_strategy": edge.ship_strategy or edge.pattern.value,
            "exchange": result_type.value.lower(),
        }

    def node_of(vertex: JobVertex) -> dict[str, Any]:
        node: dict[str, Any] = {
            "id": vertex.vertex_id.hex(),
            "parallelism": vertex.parallelism,
            "operator": "",
            "operator_strategy": "",
            "description": vertex.name,
            "optimizer_properties": {},
        }
        if vertex.inputs:
            node["inputs"] = [input_of(i, edge) for i, edge in enumerate(vertex.inputs)]
        return node

    plan = {
        "jid": job_graph.job_id.hex(),
        "name": job_graph.name,
        "type": job_graph.job_type.value,
        "nodes": [node_of(vertex) for vertex in order],
    }
    return json.dumps(plan, separators=(",", ":"))
