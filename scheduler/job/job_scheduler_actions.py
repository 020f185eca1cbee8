"""Defines the actions that the JobScheduler asks the JobMaster to carry out."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID, ResultPartitionID
from flinkray.scheduler.checkpoints.actions import CheckpointAction
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorID,
    CoordinatorInput,
    CoordinatorResult,
    GlobalFormatsCall,
)
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirements, WorkerLocation
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes
from flinkray.scheduler.shared.tasks import TaskDeployments
from flinkray.scheduler.shared.transition import StartTimer
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotRequests,
)


@dataclass(frozen=True, slots=True)
class SetRequirements:
    """Declare to the SlotPool how many slots the job requires in all (elastic jobs only)."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class NoteJob:
    """Store these notes for the next JobMaster in the SlotPool, in place of all earlier notes.
    Later DeployTasks must wait until the SlotPool has acknowledged the notes; other actions need
    not."""

    notes: JobNotes


@dataclass(frozen=True, slots=True)
class NoteFinished:
    """Store notes about finished tasks in the SlotPool, for the next JobMaster. No action waits for
    this. Each note replaces notes about earlier attempts of the same subtask."""

    tasks: tuple[FinishedTask, ...]


@dataclass(frozen=True, slots=True)
class AdoptSlots:
    """At a take-over: adopt these slots of the job's last JobMaster, whether in use or free. This
    is the first action that concerns slots. The JobMaster calls ``adopted`` of the SlotLedger, and
    starts the SlotPool with these slots, without offers and requests.

    Slots that TaskExecutors have reported and that are missing here are vacated: the TaskExecutor
    ends their tasks and offers them again. If no task keeps running, ``slots`` is empty, and all
    reported slots are vacated.
    """

    slots: tuple[HeldSlot, ...]


@dataclass(frozen=True, slots=True)
class DeployTasks:
    """Send a TaskExecutor all deployments in one message; each attempt is deployed once.
    If the message fails, DeploymentsFailed follows."""

    location: WorkerLocation
    deployments: TaskDeployments


@dataclass(frozen=True, slots=True)
class CancelTasks:
    """Tell a TaskExecutor to cancel tasks, in one message; it reports the state of each task.
    If the message fails, CancellationsFailed follows."""

    location: WorkerLocation
    attempts: tuple[ExecutionAttemptID, ...]


@dataclass(frozen=True, slots=True)
class ReleasePartitions:
    """Tell a TaskExecutor to release partitions.  A failure has no consequences."""

    location: WorkerLocation
    partitions: tuple[ResultPartitionID, ...]


@dataclass(frozen=True, slots=True)
class JobStatusChanged:
    """Tell the JobMaster's listeners that the job has this status now."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class JobRestarts:
    """Write a log line: the job, or some of its regions, will be restarted."""

    number: int
    """Number of this restart of the job."""
    cause: str
    """Cause in one line, with the task."""
    delay: float
    """Minimum seconds until the restart."""


@dataclass(frozen=True, slots=True)
class StartCoordinator:
    """Start the process of a coordinator.
    CoordinatorStarted follows; or CoordinatorGone if it cannot be started or has died."""

    coordinator: CoordinatorID
    slots: tuple[AllocatedSlot, ...] = ()
    """Slots of the vertex's subtasks, in their order, which is the order of the bundles.
    Empty for a coordinator of the job."""
    inputs: tuple[CoordinatorInput, ...] = ()
    """Results that the vertex reads, in the order of the vertex's inputs."""
    results: tuple[CoordinatorResult, ...] = ()
    """Results that the coordinator writes, in the order of the vertex's results."""
    restores: int = 0
    """How often the sources have been restored; tasks deployed now get this number, too."""
    graph_id: ExecutionGraphID | None = None
    """Execution graph of the coordinator's tasks; None for a coordinator of the job."""


@dataclass(frozen=True, slots=True)
class StopCoordinator:
    """Stop a coordinator, even if it is still starting.
    CoordinatorGone follows when its process has ended."""

    coordinator: CoordinatorID


@dataclass(frozen=True, slots=True)
class CallGlobalFormats:
    """Send the call to the StreamCoordinator, which may get the same call more than once.
    CoordinatorTold with GlobalFormatsCalled follows when the call is carried out."""

    call: GlobalFormatsCall


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Report the job's end to the outside.  Nothing of the job runs any more.  This is the last
    action."""

    result: JobResult
    details: JobDetails


SlotAction = SetRequirements | AdoptSlots | SlotRequests | CancelSlotRequests | ReturnSlots

JobSchedulerAction = (
    SlotAction
    | JobRestarts
    | NoteJob
    | NoteFinished
    | DeployTasks
    | CancelTasks
    | ReleasePartitions
    | StartCoordinator
    | StopCoordinator
    | CallGlobalFormats
    | StartTimer
    | JobStatusChanged
    | CheckpointAction
    | JobEnded
)
