"""What the JobScheduler asks the JobMaster to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID, ResultPartitionID
from flinkray.scheduler.checkpoints.actions import CheckpointAction
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
)
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorID,
    CoordinatorInput,
    CoordinatorResult,
    FormatRequest,
)
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirements, WorkerLocation
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes
from flinkray.scheduler.shared.tasks import TaskDeployments
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    RestoredSlot,
    ReturnSlots,
    SlotRequests,
)


class TimerPurpose(Enum):
    """What is to be done when a timer's time has come."""

    RESTART = "restart"
    SCALING = "scaling"
    FORMATS = "formats"


@dataclass(frozen=True, slots=True)
class TimerKey:
    """Which of its timers the scheduler has started."""

    purpose: TimerPurpose
    generation: int
    """Tells a timer from an earlier one that is not waited for any more."""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call ``timer(key)`` after *delay* seconds."""

    key: TimerKey
    delay: float


@dataclass(frozen=True, slots=True)
class SetRequirements:
    """Set the requirements of the SlotPool (elastic jobs)."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class NoteJob:
    """Have the SlotPool keep these notes for the next JobMaster, in place of all before.  The
    DeployTasks that follow in the same list, and in later ones, are carried out when it has
    acknowledged them; all else need not wait."""

    notes: JobNotes


@dataclass(frozen=True, slots=True)
class NoteFinished:
    """Have the SlotPool keep that these have finished, each in place of earlier attempts of its
    subtask.  Nothing waits for it."""

    tasks: tuple[FinishedTask, ...]


@dataclass(frozen=True, slots=True)
class AdoptSlots:
    """Of a take-over, before all else that concerns slots: the job has these slots of its last
    JobMaster, some of them in use.  The SlotLedger is told (``adopted``), and the SlotPool is
    started from it; no offer and no request is needed for them.

    A reported slot that is not among them is vacated by its TaskExecutor, which offers it when it
    is clean.  So it is with all of them when nothing goes on.
    """

    slots: tuple[RestoredSlot, ...]


@dataclass(frozen=True, slots=True)
class DeployTasks:
    """Send a TaskExecutor all that it has to begin, in one message; when that fails:
    ``deployments_failed``.  Each attempt is deployed once."""

    location: WorkerLocation
    deployments: TaskDeployments


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """Tell a TaskExecutor to cancel tasks, in one message; it reports the state of each.  When the
    call fails: ``cancellations_failed``."""

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
class JobStatusChanged:
    """The job's status is another one now; for those who listen."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class StartCoordinator:
    """Start the process of a coordinator; then ``coordinator_started``, or ``coordinator_lost``
    when it cannot be started or has died."""

    coordinator: CoordinatorID
    slots: tuple[AllocatedSlot, ...] = ()
    """Of the subtasks of its vertex, in their order (which is that of the bundles); none for a
    coordinator of the job."""
    inputs: tuple[CoordinatorInput, ...] = ()
    """What its vertex reads, in the order of the vertex's inputs."""
    results: tuple[CoordinatorResult, ...] = ()
    """What it is to write, in the order of the vertex's results."""
    restores: int = 0
    """How often sources had been restored by then, as tasks know it that are deployed then."""
    graph_id: ExecutionGraphID | None = None
    """Of those tasks; None for a coordinator of the job."""


@dataclass(frozen=True, slots=True)
class StopCoordinator:
    """Stop a coordinator, also one that is still starting, and call ``coordinator_stopped`` when
    its process is gone."""

    coordinator: CoordinatorID


@dataclass(frozen=True, slots=True)
class AskCoordinator:
    """Ask the running coordinator of formats for something; ``coordinator_told`` has its answer."""

    coordinator: CoordinatorID
    request: FormatRequest


@dataclass(frozen=True, slots=True)
class OrderCheckpoint:
    """Tell tasks on one TaskExecutor, in one message.  If a TriggerCheckpoint cannot be told, they
    have declined.  Other orders are repeated until they are told, or the TaskExecutor is lost."""

    location: WorkerLocation
    attempts: tuple[ExecutionAttemptID, ...]
    order: CheckpointOrder


@dataclass(frozen=True, slots=True)
class OrderCoordinators:
    """Tell the coordinators of these operators, which take orders in the order of these actions,
    whatever they are."""

    operators: tuple[str, ...]
    order: CheckpointCompleted | CheckpointAborted


@dataclass(frozen=True, slots=True)
class ResetSubtasks:
    """Tell the coordinators of operators which of their subtasks go back to a checkpoint: what was
    given to their earlier attempts after it goes back, too."""

    checkpoint_id: int
    """0: to their beginning."""
    subtasks: Mapping[str, tuple[tuple[int, int], ...]]
    """Operator id -> subtask indices, each with the number of the attempt that begins there."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last action: nothing of the job runs any more."""

    result: JobResult
    details: JobDetails


JobSchedulerAction = (
    SetRequirements
    | AdoptSlots
    | NoteJob
    | NoteFinished
    | SlotRequests
    | CancelSlotRequests
    | ReturnSlots
    | DeployTasks
    | CancelTasks
    | ReleasePartitions
    | PromotePartitions
    | StartCoordinator
    | StopCoordinator
    | AskCoordinator
    | StartTimer
    | JobStatusChanged
    | CheckpointAction
    | OrderCheckpoint
    | OrderCoordinators
    | ResetSubtasks
    | JobEnded
)
