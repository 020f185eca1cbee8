"""Defines the transitions of a job in execution, with which decision objects communicate. Regions
are given by their indices, subtasks by their current attempts.
:mod:`flinkray.scheduler.job.job_scheduler` registers which object applies which transition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flinkray.checkpoint.handles import StateLocation
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.scheduler.checkpoints.actions import CheckpointTimerKey, StoreCheckpoint
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.messages import CheckpointAnswer
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionJobVertex,
    ExecutionVertex,
)
from flinkray.scheduler.job.coordinator_events import CoordinatorEvent, CoordinatorID
from flinkray.scheduler.job.take_over import TakeOverPlan
from flinkray.scheduler.job.transition_loop import Phase, Transition
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage, WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import CoordinatorAttempt, JobNotes
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.slots.slot_requests import SlotEvent

# --- reports --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsTold(Transition):
    """The SlotPool has reported these events, in this order."""

    events: tuple[SlotEvent, ...]


@dataclass(frozen=True, slots=True)
class SlotFailed(Transition):
    """A slot of the job was lost."""

    allocation_id: AllocationID
    cause: str


@dataclass(frozen=True, slots=True)
class TaskExecutorLost(Transition):
    """A TaskExecutor was lost with all its slots and partitions."""

    resource_id: ResourceID
    cause: str


@dataclass(frozen=True, slots=True)
class ResourcesShort(Transition):
    """The ResourceManager has reported why slots are missing now; the list is complete."""

    shortages: tuple[ResourceShortage, ...]


@dataclass(frozen=True, slots=True)
class TasksReported(Transition):
    """TaskExecutors have reported these states of tasks, in this order."""

    states: tuple[TaskExecutionState, ...]
    finished_at: Mapping[ExecutionAttemptID, float] = field(default_factory=dict)
    """Monotonic seconds when attempts finished whose end an earlier JobMaster knew already."""


@dataclass(frozen=True, slots=True)
class DeploymentsFailed(Transition):
    """Deployments of attempts could not be sent to their TaskExecutor."""

    resource_id: ResourceID
    attempts: tuple[ExecutionAttemptID, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class CancellationsFailed(Transition):
    """Cancellations of attempts could not be sent to their TaskExecutor."""

    attempts: tuple[ExecutionAttemptID, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorStarted(Transition):
    """The process of a coordinator has started."""

    coordinator: CoordinatorID


@dataclass(frozen=True, slots=True)
class CoordinatorGone(Transition):
    """The process of a coordinator no longer exists: it died, was stopped, or did not start."""

    coordinator: CoordinatorID
    cause: str
    goes_on: bool = False
    """Whether another attempt replaces the coordinator without a failure. This is possible if the
    coordinator's state is known elsewhere."""


@dataclass(frozen=True, slots=True)
class CoordinatorTold(Transition):
    """A coordinator has sent an event."""

    coordinator: CoordinatorID
    event: CoordinatorEvent


# --- checkpoints: what became of what the coordinator has asked for ------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointPrepared(Transition):
    """A PrepareCheckpoint was carried out."""

    number: int
    checkpoint_id: int
    directory: str


@dataclass(frozen=True, slots=True)
class CheckpointNotPrepared(Transition):
    """A PrepareCheckpoint failed to get an id or a directory."""

    number: int
    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorCheckpointed(Transition):
    """The coordinator of an operator has taken its snapshot.
    *state* is None if the coordinator has no state."""

    checkpoint_id: int
    operator_id: str
    state: StateLocation | None
    master_states: tuple[MasterState, ...] = ()
    """States of master hooks that came with the snapshot."""


@dataclass(frozen=True, slots=True)
class CoordinatorNotCheckpointed(Transition):
    """The coordinator of an operator cannot take its snapshot, or a master hook has failed."""

    checkpoint_id: int
    operator_id: str | None
    """None: a master hook has failed, which *cause* names."""
    cause: str
    is_lost: bool = False
    """Whether the coordinator no longer exists.
    If so, the failed checkpoint does not count against the tolerable failures in a row."""


@dataclass(frozen=True, slots=True)
class CheckpointAnswered(Transition):
    """Tasks have answered checkpoint orders, in this order."""

    answers: tuple[CheckpointAnswer, ...]
    holds_much = True

    def __str__(self) -> str:
        told = ", ".join(f"{a.attempt_id} {type(a).__name__}" for a in self.answers[:3])
        return f"CheckpointAnswered({len(self.answers)}: {told})"


@dataclass(frozen=True, slots=True)
class CheckpointIsStored(Transition):
    """A StoreCheckpoint was carried out.  *path* is the path of the metadata."""

    stored: StoreCheckpoint
    path: str
    holds_much = True

    def __str__(self) -> str:
        return f"CheckpointIsStored({self.stored.metadata.checkpoint_id}, {self.path})"


@dataclass(frozen=True, slots=True)
class CheckpointIsNotStored(Transition):
    """A StoreCheckpoint failed for certain: no JobMaster will ever recover the checkpoint."""

    stored: StoreCheckpoint
    cause: str
    holds_much = True

    def __str__(self) -> str:
        return f"CheckpointIsNotStored({self.stored.metadata.checkpoint_id}, {self.cause})"


@dataclass(frozen=True, slots=True)
class CheckpointTimerOver(Transition):
    """The delay of a StartCheckpointTimer is over."""

    key: CheckpointTimerKey


@dataclass(frozen=True, slots=True)
class SnapshotRequested(Transition):
    """A user requests a savepoint, or a checkpoint if *properties* is None."""

    request_id: int
    properties: CheckpointProperties | None
    directory: str | None = None
    """Target directory of a savepoint; None for a checkpoint."""


CheckpointEvent = (
    CheckpointPrepared
    | CheckpointNotPrepared
    | CoordinatorCheckpointed
    | CoordinatorNotCheckpointed
    | CheckpointAnswered
    | CheckpointIsStored
    | CheckpointIsNotStored
    | CheckpointTimerOver
    | SnapshotRequested
)


@dataclass(frozen=True, slots=True)
class SnapshotIsOver(Transition):
    """A snapshot that a user asked for is complete or aborted. It may be the savepoint of a stop.
    The job continues, unless the same event ends or restarts the job."""

    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class SavepointGiven(Transition):
    """Start the job from this savepoint, unless the job has checkpoints of its own."""

    savepoint: CompletedCheckpoint
    holds_much = True

    def __str__(self) -> str:
        return f"SavepointGiven({self.savepoint.path})"


# --- queryable state ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvStatesRegistered(Transition):
    """Attempts register queryable states that they hold."""

    registrations: tuple[KvStateRegistration, ...]


@dataclass(frozen=True, slots=True)
class KvStatesUnregistered(Transition):
    """Attempts no longer hold these queryable states."""

    registrations: tuple[KvStateRegistration, ...]


# --- timers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartDelayOver(Transition):
    """The delay of a restart is over; the restart begins when all tasks of its regions have
    ended."""

    generation: int


@dataclass(frozen=True, slots=True)
class ScalingDelayOver(Transition):
    """The delay of a WaitFor is over, after which an elastic job must check its slots again."""

    generation: int


# --- taking over ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AwaitReports(Transition):
    """Wait for the reports of TaskExecutors about tasks of the job."""


@dataclass(frozen=True, slots=True)
class TakeOverJob(Transition):
    """Take over the job from another JobMaster; running tasks keep running."""

    plan: TakeOverPlan
    notes: JobNotes
    begun_checkpoints: Mapping[int, str]
    coordinated: Collection[JobVertexID]
    """Vertices whose coordinators exist."""
    holds_much = True

    def __str__(self) -> str:
        return f"TakeOverJob({self.notes.graph_id}: {self.plan.summary})"


@dataclass(frozen=True, slots=True)
class AttemptsAdopted(Transition):
    """Adopt attempts that an earlier JobMaster has deployed."""

    running: tuple[tuple[Execution, AllocatedSlot, ExecutionState, float], ...]
    """(attempt, slot, state, monotonic seconds of the deployment) of running attempts."""
    ended: tuple[tuple[Execution, AllocatedSlot, float], ...]
    """(attempt, slot, monotonic seconds of the deployment) of ended attempts.
    The next transitions say how they ended."""
    missing: tuple[Execution, ...]
    """Attempts that no longer exist; the next transitions fail them."""
    free: tuple[AllocatedSlot, ...]
    """Slots of the job that nothing uses."""


@dataclass(frozen=True, slots=True)
class CoordinatorsAdopted(Transition):
    """Adopt coordinators of regions that an earlier JobMaster has started."""

    attempts: Collection[CoordinatorAttempt]
    there: Collection[JobVertexID]
    """Vertices whose coordinators obey this JobMaster; all other coordinators no longer exist."""
    finished: Mapping[JobVertexID, float]
    """Vertex -> monotonic seconds when all its subtasks had finished.
    The subtasks are adopted as running."""


@dataclass(frozen=True, slots=True)
class CheckpointsAdopted(Transition):
    """Adopt the checkpoints of an earlier JobMaster, some of which may be in progress."""

    restores: int
    """How often the earlier JobMaster had restored the operators' coordinators."""
    begun: Mapping[int, str]
    """Id -> directory of incomplete checkpoints that the earlier JobMaster began."""
    ended: Collection[ExecutionAttemptID]
    """Attempts that have failed without a JobMaster; the next transitions report the failures.
    No checkpoint orders are sent to them, because they no longer run."""


# --- regions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartScheduling(Transition):
    """The execution graph begins to run, with the regions that read no other region's result."""


@dataclass(frozen=True, slots=True)
class ScheduleRegions(Transition):
    """Schedule these regions, unless they run already; their inputs are finished."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestSlots(Transition):
    """Request slots for these scheduled regions."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestSlotsAgain(Transition):
    """Request new slots for subtasks whose slots were lost while other subtasks of the region
    waited. Subtasks that the same event cancels are skipped."""

    ordinals: tuple[int, ...]
    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class RegionsReady(Transition):
    """These regions have all their slots."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UseSlots(Transition):
    """Deploy these regions, except regions that were canceled or have lost a slot."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeployRegion(Transition):
    """Deploy a region, which has all its slots, in the order of its vertices."""

    region: int
    slots: tuple[AllocatedSlot, ...]


@dataclass(frozen=True, slots=True)
class CancelRegions(Transition):
    """Cancel all attempts and coordinators of these regions. *keep_created*: attempts that are
    CREATED stay CREATED, because the regions restart, and these attempts can be scheduled as they
    are."""

    regions: tuple[int, ...]
    keep_created: bool


@dataclass(frozen=True, slots=True)
class CoordinatorsBegan(Transition):
    """Coordinators of a region have started or will start.
    They must end, too, before the region is over."""

    region: int
    number: int


@dataclass(frozen=True, slots=True)
class CoordinatorEnded(Transition):
    """A coordinator of a region has ended and has left the slots of its vertex."""

    region: int
    executions: tuple[Execution, ...]
    """Attempts of the vertex, which have ended or will end later."""


@dataclass(frozen=True, slots=True)
class RegionsOver(Transition):
    """All attempts and coordinators of these regions have ended."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionsFinished(Transition):
    """All results of these regions are finished."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionsUnfinished(Transition):
    """Finished regions are going to run again."""

    regions: tuple[int, ...]


# --- attempts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptsFailed(Transition):
    """Attempts have ended without finishing."""

    ends: tuple[tuple[Execution, Failure], ...]


@dataclass(frozen=True, slots=True)
class AttemptsOver(Transition):
    """Attempts have ended and need their slots no more (EX-06)."""

    executions: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class AttemptReplaced(Transition):
    """A subtask's attempt was lost, and another attempt continues in the same slot."""

    before: Execution
    after: Execution


@dataclass(frozen=True, slots=True)
class SendDeployments(Transition):
    """Send the deployments of these attempts to their TaskExecutors."""

    executions: Sequence[Execution]


@dataclass(frozen=True, slots=True)
class SendCancellations(Transition):
    """Send the cancellations of these attempts to their TaskExecutors."""

    executions: Sequence[Execution]


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultsFinished(Transition):
    """The attempts are FINISHED, and their results are complete."""

    executions: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class ResultsTakenBack(Transition):
    """The regions are going to run again: mark their results as not finished from now on. If this
    waited until the restart, other regions could still begin to read the results."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResultsLost(Transition):
    """Finished partitions of these attempts are lost, although they have still to be read."""

    producers: tuple[Execution, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class PartitionsMissing(Transition):
    """A reader could not read these partitions, so that they have to be produced again (FO-04)."""

    partitions: tuple[ResultPartitionID, ...]


@dataclass(frozen=True, slots=True)
class SendReleases(Transition):
    """Tell TaskExecutors to release partitions that are no longer needed."""

    partitions: tuple[tuple[WorkerLocation, ResultPartitionID], ...]


# --- failures and restarts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubtasksFailed(Transition):
    """Subtasks have failed. *concurrent*: errors of other subtasks that were being canceled."""

    failures: tuple[tuple[Sequence[int], Failure], ...]
    """(ordinals of the failed subtasks, failure)"""
    concurrent: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class GlobalFailure(Transition):
    """A failure has occurred that concerns the whole job."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class DecideFailover(Transition):
    """Decide about all failures of this event, which count as one failure."""

    phase = Phase.FAILOVER


@dataclass(frozen=True, slots=True)
class StopEverything(Transition):
    """Restart all regions as soon as all tasks have ended, although nothing has failed."""

    cause: str


@dataclass(frozen=True, slots=True)
class PrepareRestore(Transition):
    """Prepare a restart of tasks: abort incomplete checkpoints.
    *is_global*: all tasks restart, and the operators' coordinators are restored with them."""

    cause: str
    is_global: bool


@dataclass(frozen=True, slots=True)
class RestorePossible(Transition):
    """Tasks can be restored: no checkpoint begun before can become complete any more."""


@dataclass(frozen=True, slots=True)
class RestartDue(Transition):
    """A restart can begin: its delay is over, and all tasks of its regions have ended."""

    generation: int
    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class ResetRegions(Transition):
    """Create new attempts for the subtasks of these regions."""

    regions: tuple[int, ...]
    is_global: bool
    vertices: tuple[ExecutionVertex, ...]
    """All subtasks of the regions."""


@dataclass(frozen=True, slots=True)
class RestoreState(Transition):
    """Set the state with which new attempts start (EX-16)."""

    vertices: tuple[ExecutionVertex, ...]
    """Subtasks of the new attempts."""
    then: tuple[Transition, ...]
    """Transitions that follow, unless the restore fails."""
    is_all: bool = False
    """Whether these are all tasks of the job, perhaps with another parallelism.
    If so, the operators' coordinators are restored, too, whatever the cause."""


@dataclass(frozen=True, slots=True)
class RegionsRestored(Transition):
    """Schedule these regions, whose new attempts have their state."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MaxParallelismChanged(Transition):
    """The restored state has changed the max parallelism of these vertices."""

    vertices: tuple[ExecutionJobVertex, ...]


@dataclass(frozen=True, slots=True)
class StartJobCoordinators(Transition):
    """Start the job's coordinators that must run while the job runs, unless they run already."""


# --- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartJob(Transition):
    """The job begins to run: start its coordinators, then schedule its first regions."""


@dataclass(frozen=True, slots=True)
class CancelJob(Transition):
    """A user cancels the job."""


@dataclass(frozen=True, slots=True)
class SuspendJob(Transition):
    """This JobMaster suspends its work on the job."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailJob(Transition):
    """Fail the job, because no restart is allowed."""

    failure: Failure
    concurrent: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelEverything(Transition):
    """Cancel all regions; the job's end is decided and nothing is restarted any more."""


@dataclass(frozen=True, slots=True)
class NothingRuns(Transition):
    """At some moment of this event, nothing of the job ran any more. If nothing was started since,
    the job is finished, or ends as was decided before."""

    phase = Phase.END


@dataclass(frozen=True, slots=True)
class StatusEntered(Transition):
    """The job has entered another status."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class EndJob(Transition):
    """End the job with this terminal status."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class TellEnd(Transition):
    """Report the job's end to the outside, after all consequences of the terminal status."""
