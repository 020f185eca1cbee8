"""What the JobScheduler asks the JobMaster to do."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobVertexID, ResultPartitionID
from flinkray.scheduler.graph.job_graph import MasterFormat
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirements, WorkerLocation
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.tasks import TaskDeploymentDescriptor, TaskDeployments
from flinkray.scheduler.slots.slot_requests import CancelSlotRequests, ReturnSlots, SlotRequests


@dataclass(frozen=True, slots=True)
class DeclareRequirements:
    """Set the requirements of the SlotPool."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class ScheduleSlotRequestTimeout:
    """Call ``slot_request_timed_out(generation)`` after *delay* seconds."""

    delay: float
    generation: int


@dataclass(frozen=True, slots=True)
class DeployTask:
    """Submit a task to the slot's TaskExecutor; when that fails: ``deploy_failed``.

    An attempt is deployed once.  The task of a Spark subtask is the presence of its executor: it
    runs until it is cancelled, and cancelling it alone ends no process of Spark's.
    """

    descriptor: TaskDeploymentDescriptor
    slot: AllocatedSlot


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Cancel a task at the slot's TaskExecutor, which answers with ``task_state_changed``; when the
    call fails: ``cancel_failed``."""

    attempt_id: ExecutionAttemptID
    slot: AllocatedSlot


@dataclass(frozen=True, slots=True)
class DeployTasks:
    """Send a TaskExecutor all that it has to begin, in one message; when that fails:
    ``deployments_failed``.  Each attempt is deployed once."""

    location: WorkerLocation
    deployments: TaskDeployments


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """Tell a TaskExecutor to cancel tasks, in one message; it reports the state of each.  When the
    call fails: ``cancel_failed`` for each."""

    location: WorkerLocation
    attempts: tuple[ExecutionAttemptID, ...]


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Tell a TaskExecutor that it need not keep these; whether that succeeds changes nothing."""

    location: WorkerLocation
    partitions: tuple[ResultPartitionID, ...]


@dataclass(frozen=True, slots=True)
class PromotePartitions:
    """Tell a TaskExecutor that these are the cluster's from now on, before the job's end is told.
    If that fails they are lost, as with a TaskExecutor that dies a moment later."""

    location: WorkerLocation
    partitions: tuple[ResultPartitionID, ...]


@dataclass(frozen=True, slots=True)
class InitializeOnMaster:
    """Have a vertex's format prepare and make its splits, in a process that may run user code; then
    ``master_initialized`` or ``master_failed``."""

    vertex_id: JobVertexID
    master_format: MasterFormat


@dataclass(frozen=True, slots=True)
class FinalizeOnMaster:
    """All tasks are finished: have a vertex's format commit; then ``master_finalized`` or
    ``master_failed`` with the generation."""

    vertex_id: JobVertexID
    master_format: MasterFormat
    generation: int


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """The job's status is another one now; for those who listen."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class StartCoordinator:
    """Spawn the Spark driver of an attempt of a vertex; slots in the order of the subtasks (and
    bundles)."""

    vertex_id: JobVertexID
    attempt_number: int
    slots: tuple[AllocatedSlot, ...]


@dataclass(frozen=True, slots=True)
class StopCoordinator:
    """Stop a Spark driver, also one that is still starting, and call ``coordinator_stopped`` when
    its process is gone."""

    vertex_id: JobVertexID
    attempt_number: int


@dataclass(frozen=True, slots=True)
class ScheduleRestart:
    """Call ``restart_delay_over(generation)`` after *delay* seconds."""

    delay: float
    generation: int


@dataclass(frozen=True, slots=True)
class ScheduleScalingTimer:
    """Call ``scaling_timer(generation)`` after *delay* seconds."""

    delay: float
    generation: int


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Give slots back through the SlotPool."""

    allocations: tuple[AllocationID, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last action: nothing of the job runs any more."""

    result: JobResult
    details: JobDetails


JobSchedulerAction = (
    DeclareRequirements
    | ScheduleSlotRequestTimeout
    | SlotRequests
    | CancelSlotRequests
    | ReturnSlots
    | DeployTask
    | CancelTask
    | DeployTasks
    | CancelTasks
    | ReleasePartitions
    | PromotePartitions
    | InitializeOnMaster
    | FinalizeOnMaster
    | JobStatusChanged
    | StartCoordinator
    | StopCoordinator
    | ScheduleRestart
    | ScheduleScalingTimer
    | ReleaseSlots
    | JobEnded
)
