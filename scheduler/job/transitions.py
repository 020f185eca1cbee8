"""Defines the events of a job, and the transitions with which decision objects communicate. Regions
are given by their indices, subtasks by their current attempts.
:mod:`flinkray.scheduler.job.job_scheduler` registers which object applies which transition."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from flinkray.core.ids import ExecutionAttemptID, JobVertexID, ResourceID, ResultPartitionID
from flinkray.core.kv_states import KvStateRegistration
from flinkray.scheduler.checkpoints.messages import CheckpointAnswer
from flinkray.scheduler.execution.execution_graph import (
    Execution,
    ExecutionJobVertex,
    ExecutionVertex,
)
from flinkray.scheduler.graph.job_graph import ParallelismBounds
from flinkray.scheduler.job.coordinator_events import CoordinatorEvent, CoordinatorID
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.shared.taking_over import (
    FinishedTask,
    JobNotes,
    SourceCoordinatorPlace,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.shared.transition import JobEvent, Phase, Transition
from flinkray.scheduler.slots.slot_requests import SlotEvent

# --- events: orders -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartJob(JobEvent):
    """The job begins to run: start its coordinators, then schedule its first regions."""


@dataclass(frozen=True, slots=True)
class AwaitReports(JobEvent):
    """The JobMaster takes over the job and waits for the reports of TaskExecutors, in the status
    RECONCILING. TakeOverJob follows."""


@dataclass(frozen=True, slots=True)
class TakeOverJob(JobEvent):
    """Take over running tasks from an earlier JobMaster.  This comes in place of StartJob.
    Deployed attempts that are missing or contradict the notes fail together, as one failure.  If no
    task can keep running (:class:`~flinkray.scheduler.job.take_over.CannotTakeOverError`), all are
    canceled, and the job begins from its last checkpoint with a new execution graph.  AdoptSlots is
    the first action."""

    notes: JobNotes | None
    """The last notes; None if there are none.  Their ``source_coordinator`` is None unless it can
    be reached and already obeys this JobMaster."""
    finished: tuple[FinishedTask, ...]
    reports: tuple[TaskExecutorReport, ...]
    """One report per registered TaskExecutor, as of its registration."""
    begun_checkpoints: Mapping[int, str] = field(default_factory=dict)
    """Ids that were issued after the last recovered checkpoint, each with its directory as a
    checkpoint of the job."""
    coordinated: Collection[JobVertexID] = ()
    """Vertices whose coordinators exist in the attempts of the notes and already obey this
    JobMaster.  Further events of these coordinators follow after this event."""
    is_copy: bool = False
    """Whether only a TaskExecutor has the notes, and a later JobMaster may have had newer notes.
    All noted attempts must be present then, and in the last complete checkpoint."""
    has_run: bool = False
    """Whether tasks of the job were deployed at some time.  Without notes, the job then restarts,
    even if nothing else tells of these tasks."""
    holds_much = True

    def __str__(self) -> str:
        graph = None if self.notes is None else self.notes.graph_id
        return f"TakeOverJob({graph}, {len(self.reports)} reports)"


@dataclass(frozen=True, slots=True)
class CancelJob(JobEvent):
    """A user cancels the job.  A second CancelJob changes nothing."""


@dataclass(frozen=True, slots=True)
class SuspendJob(JobEvent):
    """This JobMaster stops its work on the job; the job's result is SUSPENDED (EX-08)."""

    reason: str


@dataclass(frozen=True, slots=True)
class ResizeJob(JobEvent):
    """Change the parallelism bounds of some vertices.  Equal bounds change nothing.  Raises
    JobStateError if the job is not elastic or the bounds are not possible."""

    bounds: tuple[ParallelismBounds, ...]
    counts_after_end = True


@dataclass(frozen=True, slots=True)
class ReplicasMeasured(JobEvent):
    """The running replicas of models have reported what they have done until now."""

    metrics: Mapping[ExecutionAttemptID, IOMetrics]


@dataclass(frozen=True, slots=True)
class GlobalFailure(JobEvent):
    """A failure has occurred that concerns the whole job."""

    failure: Failure


# --- events: slots, tasks and coordinators --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotsTold(JobEvent):
    """The SlotPool has reported these events, in this order."""

    events: tuple[SlotEvent, ...]


@dataclass(frozen=True, slots=True)
class PoolSlotsChanged(JobEvent):
    """The SlotPool has gained or lost slots. Only elastic jobs need this event."""

    slots: tuple[AllocatedSlot, ...]
    """All slots that the pool holds, requested or not."""


@dataclass(frozen=True, slots=True)
class TaskExecutorLost(JobEvent):
    """A TaskExecutor was lost with all its slots and partitions.
    This comes before the SlotPool's event about the same loss."""

    resource_id: ResourceID
    cause: str


@dataclass(frozen=True, slots=True)
class ResourcesShort(JobEvent):
    """The ResourceManager has reported why slots are missing now; the list is complete."""

    shortages: tuple[ResourceShortage, ...]


@dataclass(frozen=True, slots=True)
class TasksReported(JobEvent):
    """TaskExecutors have sent these reports of tasks, in this order.  All failures among them count
    as one failure.  After the job's end, partitions that tasks have left are still released."""

    reports: tuple[TaskExecutionState | CheckpointAnswer, ...]
    counts_after_end = True


@dataclass(frozen=True, slots=True)
class DeploymentsFailed(JobEvent):
    """A DeployTasks could not be sent, for these current or earlier attempts (EX-02).
    The TaskExecutor has not received the shared parts in the message either."""

    resource_id: ResourceID
    attempts: tuple[ExecutionAttemptID, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class CancellationsFailed(JobEvent):
    """A CancelTasks could not be sent.  Its attempts count as canceled (EX-04)."""

    attempts: tuple[ExecutionAttemptID, ...]
    cause: str


@dataclass(frozen=True, slots=True)
class CoordinatorStarted(JobEvent):
    """The process of a coordinator has started."""

    coordinator: CoordinatorID


@dataclass(frozen=True, slots=True)
class CoordinatorGone(JobEvent):
    """The process of a coordinator no longer exists: it died, was stopped, or did not start."""

    coordinator: CoordinatorID
    cause: str = "it ended"
    goes_on: bool = False
    """Whether another attempt replaces the coordinator without a failure. This is possible if the
    coordinator's state is known elsewhere."""


@dataclass(frozen=True, slots=True)
class CoordinatorTold(JobEvent):
    """The process of a coordinator has sent *event*."""

    coordinator: CoordinatorID
    event: CoordinatorEvent


@dataclass(frozen=True, slots=True)
class SourceCoordinatorIsAt(JobEvent):
    """This JobMaster has started the coordinator of the job's sources, at *place*.
    CoordinatorStarted follows. A coordinator that was taken over is not reported."""

    place: SourceCoordinatorPlace
    counts_after_end = True


@dataclass(frozen=True, slots=True)
class KvStatesRegistered(JobEvent):
    """Attempts register queryable states that they hold (QS-01).
    Refused registrations change nothing, except that the name of another operator's state fails the
    job (QS-02)."""

    registrations: tuple[KvStateRegistration, ...]


@dataclass(frozen=True, slots=True)
class KvStatesUnregistered(JobEvent):
    """Attempts no longer hold these queryable states."""

    registrations: tuple[KvStateRegistration, ...]


# --- events: timers -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestartDelayOver(JobEvent):
    """The delay of a restart is over; the restart begins when all tasks of its regions have
    ended."""

    generation: int


@dataclass(frozen=True, slots=True)
class ScalingDelayOver(JobEvent):
    """The delay of a WaitFor is over, after which an elastic job must check its slots again."""

    generation: int


# --- reports and take-over ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatesReported(Transition):
    """TaskExecutors have reported these states of tasks, in this order."""

    states: tuple[TaskExecutionState, ...]
    finished_at: Mapping[ExecutionAttemptID, float] = field(default_factory=dict)
    """Monotonic seconds when attempts finished whose end an earlier JobMaster knew already."""


@dataclass(frozen=True, slots=True)
class SnapshotIsOver(Transition):
    """A savepoint or checkpoint that a user asked for is complete or aborted; it may be the
    savepoint with which the job was to be stopped. The job continues, unless the same event ends or
    restarts it."""

    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class CheckpointsAdopted(Transition):
    """Continue the checkpoints of an earlier JobMaster, some of which may be in progress."""

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
class RequestSlotsAgain(Transition):
    """Request new slots for subtasks whose slots were lost while other subtasks of the region
    waited. Subtasks that the same event cancels are skipped."""

    ordinals: tuple[int, ...]
    phase = Phase.RESTART


@dataclass(frozen=True, slots=True)
class RegionsReady(Transition):
    """These regions have all their slots, so that they can be deployed."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeployRegion(Transition):
    """Deploy a region in all its slots, which are in the order of the region's subtasks."""

    region: int
    slots: tuple[AllocatedSlot, ...]


@dataclass(frozen=True, slots=True)
class CancelRegions(Transition):
    """Cancel all attempts and coordinators of these regions. *keep_created*: attempts in the state
    CREATED are not canceled, because the regions restart, and these attempts can be scheduled as
    they are."""

    regions: tuple[int, ...]
    keep_created: bool


@dataclass(frozen=True, slots=True)
class CoordinatorEnded(Transition):
    """A coordinator of a region has ended and has left the slots of its vertex."""

    region: int
    executions: tuple[Execution, ...]
    """Attempts of the vertex, which have ended or will end later."""


@dataclass(frozen=True, slots=True)
class ScaleReplicas(Transition):
    """Run this number of a model's replicas."""

    vertex: ExecutionJobVertex
    number: int


@dataclass(frozen=True, slots=True)
class StopRegions(Transition):
    """Cancel the tasks of these regions, which can be scheduled again when the tasks have ended.
    The job goes on."""

    regions: tuple[int, ...]


# --- attempts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptsFailed(Transition):
    """Attempts have ended without finishing: they have failed, or were canceled."""

    ends: tuple[tuple[Execution, Failure], ...]


@dataclass(frozen=True, slots=True)
class AttemptsOver(Transition):
    """Attempts have ended and no longer need their slots (EX-06)."""

    executions: tuple[Execution, ...]


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResultsFinished(Transition):
    """The attempts are FINISHED, and their results are complete."""

    executions: tuple[Execution, ...]


@dataclass(frozen=True, slots=True)
class ResultsTakenBack(Transition):
    """The regions are going to run again: mark their results as not finished from now on. Otherwise
    other regions could still begin to read the results until the restart."""

    regions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PartitionsMissing(Transition):
    """A reader could not read these partitions, so that they have to be produced again (FO-04)."""

    partitions: tuple[ResultPartitionID, ...]


# --- failures and restarts ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubtasksFailed(Transition):
    """Subtasks have failed. *concurrent*: errors of other subtasks that were being canceled."""

    failures: tuple[tuple[Sequence[int], Failure], ...]
    """(ordinals of the failed subtasks, failure)"""
    concurrent: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class DecideFailover(Transition):
    """Decide about all failures of this event, which count as one failure."""

    phase = Phase.FAILOVER


@dataclass(frozen=True, slots=True)
class StopEverything(Transition):
    """Cancel all tasks, although nothing has failed, and restart all regions when the tasks have
    ended."""

    cause: str


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
class StartJobCoordinators(Transition):
    """Start the job's coordinators that must run while the job runs, unless they run already."""


# --- the job --------------------------------------------------------------------------------------


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
    """End the job with this terminal status, because nothing of it runs any more."""

    status: JobStatus


@dataclass(frozen=True, slots=True)
class TellEnd(Transition):
    """Report the job's end to the outside, after all consequences of the terminal status."""
