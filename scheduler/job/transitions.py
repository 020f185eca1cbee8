"""All transitions of a job in execution: what decision objects want of each other.

Regions are known by their indices, subtasks by their current attempts.
:mod:`flinkray.scheduler.job.job_scheduler` says who applies which.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flinkray.checkpoint.handles import StateLocation
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

# --- what others report ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsTold(Transition):
    """What the SlotPool says, in its order."""

    events: tuple[SlotEvent, ...]


@dataclass(frozen=True, slots=True)
class SlotFailed(Transition):
    """One slot is not the job's any more."""

    allocation_id: AllocationID
    cause: str


@dataclass(frozen=True, slots=True)
class TaskExecutorLost(Transition):
    """A TaskExecutor is lost, with all that is on it."""

    resource_id: ResourceID
    cause: str


@dataclass(frozen=True, slots=True)
class ResourcesShort(Transition):
    """Why slots are missing now (the whole list)."""

    shortages: tuple[ResourceShortage, ...]


@dataclass(frozen=True, slots=True)
class TasksReported(Transition):
    """States of tasks, in their order."""

    states: tuple[TaskExecutionState, ...]
    finished_at: Mapping[ExecutionAttemptID, float] = field(default_factory=dict)
    """Of those that an earlier JobMaster has heard of before."""


@dataclass(frozen=True, slots=True)
class DeploymentsFailed(Transition):
    """Attempts could not be sent to their TaskExecutor."""

    resource_id: ResourceID
    attempts: tuple[ExecutionAttemptID, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class CancellationsFailed(Transition):
    """A TaskExecutor could not be told to cancel attempts."""

    attempts: tuple[ExecutionAttemptID, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorStarted(Transition):
    """The process of a coordinator is there."""

    coordinator: CoordinatorID


@dataclass(frozen=True, slots=True)
class CoordinatorGone(Transition):
    """The process of a coordinator is there no more: it died, was stopped, or did not start."""

    coordinator: CoordinatorID
    cause: str
    goes_on: bool = False
    """What it knew is known elsewhere: another one takes its place, and nobody else notices."""


@dataclass(frozen=True, slots=True)
class CoordinatorTold(Transition):
    """A coordinator has something to say."""

    coordinator: CoordinatorID
    event: CoordinatorEvent


# --- checkpoints: what became of what the coordinator has asked for ------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointPrepared(Transition):
    """A PrepareCheckpoint is carried out."""

    number: int
    checkpoint_id: int
    directory: str


@dataclass(frozen=True, slots=True)
class CheckpointNotPrepared(Transition):
    """There is no id, or no directory."""

    number: int
    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorCheckpointed(Transition):
    """The coordinator of an operator has made its cut; None: it has no state."""

    checkpoint_id: int
    operator_id: str
    state: StateLocation | None


@dataclass(frozen=True, slots=True)
class CoordinatorNotCheckpointed(Transition):
    """The coordinator of an operator cannot make its cut."""

    checkpoint_id: int
    operator_id: str
    cause: str
    is_lost: bool = False
    """It is there no more; that is no failure of the checkpoint."""


@dataclass(frozen=True, slots=True)
class CheckpointAnswered(Transition):
    """What tasks have answered, in their order."""

    answers: tuple[CheckpointAnswer, ...]
    holds_much = True

    def __str__(self) -> str:
        told = ", ".join(f"{a.attempt_id} {type(a).__name__}" for a in self.answers[:3])
        return f"CheckpointAnswered({len(self.answers)}: {told})"


@dataclass(frozen=True, slots=True)
class CheckpointIsStored(Transition):
    """A StoreCheckpoint is carried out; *path* is that of the metadata."""

    stored: StoreCheckpoint
    path: str
    holds_much = True

    def __str__(self) -> str:
        return f"CheckpointIsStored({self.stored.metadata.checkpoint_id}, {self.path})"


@dataclass(frozen=True, slots=True)
class CheckpointIsNotStored(Transition):
    """It is certain that nobody will ever recover it."""

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
    """A user wants a savepoint, or (None) a checkpoint of the job."""

    request_id: int
    properties: CheckpointProperties | None
    directory: str | None = None
    """In which the savepoint is to be."""


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
    """What a user had asked for is complete, or given up, be it the savepoint of a stop.  The job
    goes on, unless the same event has ended it or restarts it."""

    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class SavepointGiven(Transition):
    """The job is to start from it, unless there are checkpoints of its own."""

    savepoint: CompletedCheckpoint
    holds_much = True

    def __str__(self) -> str:
        return f"SavepointGiven({self.savepoint.path})"


# --- queryable state ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvStatesRegistered(Transition):
    """Attempts hold queryable states."""

    registrations: tuple[KvStateRegistration, ...]


@dataclass(frozen=True, slots=True)
class KvStatesUnregistered(Transition):
    """Attempts do not hold them any more."""

    registrations: tuple[KvStateRegistration, ...]


# --- timers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartDelayOver(Transition):
    """A failure's regions may be restarted as soon as nothing of them runs any more."""

    generation: int


@dataclass(frozen=True, slots=True)
class ScalingDelayOver(Transition):
    """An elastic job looks again at the slots that it has."""

    generation: int


@dataclass(frozen=True, slots=True)
class FormatsPauseOver(Transition):
    """Another process for the formats that are to be initialised may be started."""

    loss: int
    """The number of processes that had been lost."""


# --- taking over ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AwaitReports(Transition):
    """TaskExecutors are to say what they have of the job."""


@dataclass(frozen=True, slots=True)
class TakeOverJob(Transition):
    """Another JobMaster has executed it; what runs of it goes on."""

    plan: TakeOverPlan
    notes: JobNotes
    begun_checkpoints: Mapping[int, str]
    coordinated: Collection[JobVertexID]
    """Vertices whose coordinators are there."""
    holds_much = True

    def __str__(self) -> str:
        return f"TakeOverJob({self.notes.graph_id}: {self.plan.summary})"


@dataclass(frozen=True, slots=True)
class AttemptsAdopted(Transition):
    """An earlier JobMaster has deployed these."""

    running: tuple[tuple[Execution, AllocatedSlot, ExecutionState, float], ...]
    """With the time when each was deployed."""
    ended: tuple[tuple[Execution, AllocatedSlot, float], ...]
    """With the same.  How they ended is told next."""
    missing: tuple[Execution, ...]
    """They fail next."""
    free: tuple[AllocatedSlot, ...]
    """Slots of the job that nothing uses."""


@dataclass(frozen=True, slots=True)
class CoordinatorsAdopted(Transition):
    """An earlier JobMaster has started coordinators of regions."""

    attempts: Collection[CoordinatorAttempt]
    there: Collection[JobVertexID]
    """Those that are this JobMaster's by now; all others are gone."""
    finished: Mapping[JobVertexID, float]
    """Those of which all subtasks have finished, and when; they are adopted as running."""


@dataclass(frozen=True, slots=True)
class CheckpointsAdopted(Transition):
    """An earlier JobMaster has taken checkpoints, of which some may be under way."""

    restores: int
    """How often it had restored the operators' coordinators."""
    begun: Mapping[int, str]
    """Those that it has begun and that are not complete, with the directory of each."""
    ended: Collection[ExecutionAttemptID]
    """Attempts that have failed unheard, and are told next: nobody is there to be told of any."""


# --- regions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BeginExecution(Transition):
    """The job begins to run."""


@dataclass(frozen=True, slots=True)
class StartScheduling(Transition):
    """The execution graph begins to run: first what needs no other's result."""


@dataclass(frozen=True, slots=True)
class ScheduleRegions(Transition):
    """Their inputs are there: those that do not run yet are to run."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestSlots(Transition):
    """They are scheduled and want their slots."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RequestSlotsAgain(Transition):
    """Subtasks whose slots were lost while they waited for others of their region: those that wait
    yet, when it is known what the same event has cancelled, want other slots."""

    ordinals: tuple[int, ...]
    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class DeployRegion(Transition):
    """It has all its slots, in the order of its vertices."""

    region: int
    slots: tuple[AllocatedSlot, ...]


@dataclass(frozen=True, slots=True)
class CancelRegions(Transition):
    """Whatever runs of them is to end.  Attempts that are CREATED stay so if the regions are to be
    restarted (*keep_created*): there is nothing to restart yet."""

    regions: tuple[int, ...]
    keep_created: bool


@dataclass(frozen=True, slots=True)
class CoordinatorsBegan(Transition):
    """So many coordinators of a region are there, or will be: they must end, too, before the region
    is over."""

    region: int
    number: int


@dataclass(frozen=True, slots=True)
class CoordinatorEnded(Transition):
    """One of those has ended; nothing of it is in the slots of its vertex any more."""

    region: int
    executions: tuple[Execution, ...]
    """The attempts of the vertex, which have ended or will be over later."""


@dataclass(frozen=True, slots=True)
class RegionsOver(Transition):
    """Nothing of them runs any more."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionsFinished(Transition):
    """All their results are finished."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionsUnfinished(Transition):
    """They were finished and are going to run again."""

    regions: tuple[int, ...]


# --- attempts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptsFailed(Transition):
    """Attempts ended otherwise than by finishing."""

    ends: tuple[tuple[Execution, Failure], ...]


@dataclass(frozen=True, slots=True)
class AttemptsOver(Transition):
    """They have ended and need their slots no more (EX-06)."""

    executions: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class AttemptReplaced(Transition):
    """A subtask goes on as another attempt in the same slot."""

    before: Execution
    after: Execution


@dataclass(frozen=True, slots=True)
class SendDeployments(Transition):
    """Have their TaskExecutors told to run them."""

    executions: Sequence[Execution]


@dataclass(frozen=True, slots=True)
class SendCancellations(Transition):
    """Have their TaskExecutors told to cancel them."""

    executions: Sequence[Execution]


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultsFinished(Transition):
    """The attempts are FINISHED, and what they have produced is complete."""

    executions: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class ResultsTakenBack(Transition):
    """The regions are going to run again: from now on nobody may begin to read what they have
    produced.  At the restart would be too late."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResultsLost(Transition):
    """Finished partitions of these attempts are lost, and somebody has yet to read them."""

    producers: tuple[Execution, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class SendReleases(Transition):
    """Have TaskExecutors told that nobody needs these partitions any more."""

    partitions: tuple[tuple[WorkerLocation, ResultPartitionID], ...]


@dataclass(frozen=True, slots=True)
class SendPromotions(Transition):
    """Have TaskExecutors told that these partitions are the cluster's from now on."""

    partitions: tuple[tuple[WorkerLocation, ResultPartitionID], ...]


# --- failures and restarts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubtasksFailed(Transition):
    """Subtasks have failed.  *concurrent*: others that were being cancelled, with a cause."""

    failures: tuple[tuple[Sequence[int], Failure], ...]
    """Ordinals of the subtasks that each failure concerns."""
    concurrent: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class GlobalFailure(Transition):
    """Something failed that concerns the whole job."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class DecideFailover(Transition):
    """All that has failed by this event is known: it is one failure."""

    phase = Phase.FAILOVER


@dataclass(frozen=True, slots=True)
class StopEverything(Transition):
    """Nothing has failed, and yet all is to be restarted as soon as nothing runs any more."""

    cause: str


@dataclass(frozen=True, slots=True)
class PrepareRestore(Transition):
    """Tasks are going to be restarted: checkpoints that are not complete are given up.

    *is_global*: all tasks are, and the coordinators of operators go back with them.
    """

    cause: str
    is_global: bool


@dataclass(frozen=True, slots=True)
class RestorePossible(Transition):
    """No checkpoint can become complete any more that was begun before: tasks can be restored."""


@dataclass(frozen=True, slots=True)
class RestartDue(Transition):
    """Nothing of a failure's regions runs any more, and its delay is over."""

    generation: int
    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class ResetRegions(Transition):
    """Their subtasks get new attempts."""

    regions: tuple[int, ...]
    is_global: bool
    vertices: tuple[ExecutionVertex, ...]
    """All subtasks of the regions."""


@dataclass(frozen=True, slots=True)
class RestoreState(Transition):
    """New attempts get the state that they begin with (EX-16)."""

    vertices: tuple[ExecutionVertex, ...]
    """Their subtasks."""
    then: tuple[Transition, ...]
    """What follows, unless it fails."""
    is_all: bool = False
    """They are all of the job, and may be others than before: the coordinators of operators go back
    with them, whatever the cause."""


@dataclass(frozen=True, slots=True)
class RegionsRestored(Transition):
    """Their new attempts have the state that they begin with: they are scheduled."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MaxParallelismChanged(Transition):
    """The state that these vertices begin with has another max parallelism than they had."""

    vertices: tuple[ExecutionJobVertex, ...]


@dataclass(frozen=True, slots=True)
class StartJobCoordinators(Transition):
    """Those of the job's coordinators that are to be there while it runs, and are not."""


# --- the job --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartJob(Transition):
    """Formats are initialised, if there are any, and then the job begins to run."""


@dataclass(frozen=True, slots=True)
class CancelJob(Transition):
    """Its user wants it to end."""


@dataclass(frozen=True, slots=True)
class SuspendJob(Transition):
    """This JobMaster gives it up."""

    reason: str


@dataclass(frozen=True, slots=True)
class FailJob(Transition):
    """No restart is allowed."""

    failure: Failure
    concurrent: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class CancelEverything(Transition):
    """The job's end is decided: nothing is restarted any more."""


@dataclass(frozen=True, slots=True)
class NothingRuns(Transition):
    """Nothing ran any more at some moment of this event: the job is finished, or has ended as was
    decided before, or something else was begun."""

    phase = Phase.END


@dataclass(frozen=True, slots=True)
class StatusEntered(Transition):
    """The job's status is another one."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class EndJob(Transition):
    """The job has that terminal status."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class TellEnd(Transition):
    """All that follows from the job's terminal status has: what is kept of the job is final."""
