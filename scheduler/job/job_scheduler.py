"""Makes the decisions of a JobMaster about its job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from flinkray.core.errors import (
    AttemptDisposedError,
    JobStateError,
    PartitionProducerDisposedError,
)
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
)
from flinkray.core.kv_states import KvStateRegistration
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.messages import CheckpointAnswer
from flinkray.scheduler.execution.execution_graph import (
    ExecutionGraph,
    ExecutionJobVertex,
)
from flinkray.scheduler.execution.job_archive import (
    NO_METRICS,
    places_of_streams,
    task_counts,
    vertex_info,
    vertex_progress,
)
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.restarts import (
    DEFAULT_LIMITS,
    PendingRestarts,
    RepeatedErrors,
    RepetitionLimits,
    new_restart_strategy,
)
from flinkray.scheduler.graph.job_graph import JobGraph, ParallelismBounds, RestartStrategy
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.adoption import JobAdoption, NotedGraph
from flinkray.scheduler.job.checkpoints import checkpoints_of_job
from flinkray.scheduler.job.coordinator_events import (
    CoordinatorEvent,
    CoordinatorID,
)
from flinkray.scheduler.job.coordinator_kinds import coordinators_of_job, coordinators_of_regions
from flinkray.scheduler.job.failover import Failover
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_phases import JobPhases
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    JobEnded,
    JobSchedulerAction,
    TimerKey,
    TimerPurpose,
)
from flinkray.scheduler.job.kv_state_locations import KvStateLocationRegistry
from flinkray.scheduler.job.operator_coordinators import OperatorCoordinators
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.result_partitions import PartitionTracker, Results
from flinkray.scheduler.job.take_over import (
    CannotTakeOverError,
    why_not,
)
from flinkray.scheduler.job.task_reports import TaskReports
from flinkray.scheduler.job.transition_loop import Applied, Step, Steps, Transition, TransitionLoop
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
)
from flinkray.scheduler.reports.spans import Span, SpanBook
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceShortage
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import (
    FinishedTask,
    JobNotes,
    SourceCoordinatorPlace,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.scheduler.slots.slot_requests import SlotEvent

_AT_ITS_TIME: Mapping[TimerPurpose, Callable[[int], Transition]] = {
    TimerPurpose.RESTART: t.RestartDelayOver,
    TimerPurpose.SCALING: t.ScalingDelayOver,
}

NOTHING_BEGUN: Mapping[int, str] = {}


class JobScheduler:
    """Makes all decisions about a job that runs in slots of the SlotPool, without input or output.
    The JobMaster calls a method for each event, and carries out the returned actions in their
    order.  ``now`` is in monotonic seconds.  Events of an earlier attempt or generation change
    nothing, nor do events after JobEnded.

    Each event enters a :class:`~flinkray.scheduler.job.transition_loop.TransitionLoop`;
    :meth:`_wire` registers which decision object applies which transition.
    """

    wants_all_slots = False
    """Whether :meth:`slots_changed` must be called."""

    def __init__(
        self,
        job_graph: JobGraph,
        job_master_address: str,
        *,
        new_graph_id: Callable[[], ExecutionGraphID],
        default_restart_strategy: RestartStrategy,
        same_error: RepetitionLimits = DEFAULT_LIMITS,
        epoch_offset: float,
        now: float,
        random: Callable[[], float] = lambda: 0.5,
    ) -> None:
        """Check the job graph and prepare the job, which :meth:`start` or :meth:`take_over` begins.

        Args:
            new_graph_id: returns a new id at each call, for the execution graphs of the job.
            epoch_offset: ``clock.time() - clock.monotonic()``, for the timestamps that users see.
            random: returns numbers in [0, 1), for the jitter of delays.
            same_error: limits for restart strategies that have no limit of their own.

        Raises:
            JobSubmissionError: the graph cannot run (see
                :mod:`flinkray.scheduler.graph.validation`).
        """
        validate(job_graph)
        self._job_graph = job_graph
        self._job_master_address = job_master_address
        self._new_graph_id = new_graph_id
        self._job = JobRecord(job_graph, epoch_offset, now)
        self._job.enter(JobStatus.CREATED, now)
        self._restart_strategy = new_restart_strategy(
            job_graph.restart_strategy or default_restart_strategy, random
        )
        if not self._restart_strategy.is_endless:
            same_error = same_error._replace(attempts=0)
        self._repeated_errors = RepeatedErrors(same_error)
        self._spans = SpanBook()
        self._phases = JobPhases(self._job, self._spans)
        self._checkpoints = checkpoints_of_job(
            job_graph, epoch_offset=epoch_offset, random=random, spans=self._spans
        )
        self._outbox = Outbox()
        self._loop = TransitionLoop(f"job {job_graph.job_id} ({job_graph.name})", self._outbox.add)
        self._of_job = coordinators_of_job(job_graph, self._job)
        self._build(ExecutionGraph(job_graph, new_graph_id(), now))

    def _build(
        self,
        graph: ExecutionGraph,
        *,
        first_generation: int = 0,
        requests_made: int = 0,
        takeovers: int = 0,
        regions: PipelinedRegions | None = None,
        slots: RegionSlots | None = None,
    ) -> None:
        """Build the decision objects that work on an execution graph.

        Args:
            first_generation: timer generation to continue, from the job's previous graph.
            requests_made: number of slot requests made for the job's previous graph.
            takeovers: how many JobMasters have taken over this graph.
            regions: regions of the graph; None: they are computed.
            slots: slots of the graph's regions; None: they are created.
        """
        self._graph = graph
        self._checkpoints.execute(graph)
        self._outbox.open(graph, self._job, takeovers=takeovers)
        regions = PipelinedRegions(graph) if regions is None else regions
        restarts = self._restarts = PendingRestarts()
        self._tracker = PartitionTracker(graph, regions)
        self._reports = TaskReports(
            graph,
            self._tracker,
            self._job.epoch_offset,
            is_stopping=lambda: self._checkpoints.is_stopping,
        )
        self._region_slots = slots or RegionSlots(graph, regions, requests_made=requests_made)
        self._execution = JobExecution(graph, regions, self._job, restarts)
        self._phases.execute(self._execution.executions_of)
        self._failover = Failover(
            graph,
            regions,
            self._job,
            restarts,
            self._execution,
            self._restart_strategy,
            self._repeated_errors,
            self._checkpoints,
            first_generation=first_generation,
        )
        self._results = Results(graph, regions, self._tracker)
        self._kv_states = KvStateLocationRegistry(graph)
        self._coordinators = OperatorCoordinators(
            graph, coordinators_of_regions(graph, regions, self._job, restarts), self._of_job
        )
        self._adoption = JobAdoption(graph, self._job, self._coordinators, self._outbox.notebook)
        self._wire()

    def _wire(self) -> None:
        execution, failover, region_slots = self._execution, self._failover, self._region_slots
        coordinators, results, reports = self._coordinators, self._results, self._reports
        checkpoints, phases = self._checkpoints, self._phases
        bulk, notebook = self._outbox.bulk, self._outbox.notebook
        wire = self._loop.wire
        # reports
        wire(t.SlotsTold, region_slots.slots_told)
        wire(t.SlotFailed, region_slots.slot_failed)
        wire(
            t.TaskExecutorLost,
            bulk.task_executor_lost,
            results.task_executor_lost,
            region_slots.task_executor_lost,
        )
        wire(t.ResourcesShort, region_slots.resources_short)
        wire(t.TasksReported, reports.reported, phases.tasks_reported)
        wire(t.DeploymentsFailed, bulk.deployments_failed, reports.deployments_failed)
        wire(t.CancellationsFailed, reports.cancellations_failed)
        wire(t.CoordinatorStarted, coordinators.started)
        wire(t.CoordinatorGone, coordinators.gone)
        wire(t.CoordinatorTold, coordinators.told, notebook.coordinator_told)
        wire(t.RestartDelayOver, failover.delay_is_over)
        # checkpoints
        wire(t.CheckpointPrepared, checkpoints.told)
        wire(t.CheckpointNotPrepared, checkpoints.told)
        wire(t.CoordinatorCheckpointed, checkpoints.told)
        wire(t.CoordinatorNotCheckpointed, checkpoints.told)
        wire(t.CheckpointAnswered, checkpoints.told)
        wire(t.CheckpointIsStored, checkpoints.told)
        wire(t.CheckpointIsNotStored, checkpoints.told)
        wire(t.CheckpointTimerOver, checkpoints.told)
        wire(t.SnapshotRequested, checkpoints.told)
        wire(t.SavepointGiven, checkpoints.savepoint_given)
        wire(t.SnapshotIsOver)
        # queryable state
        wire(t.KvStatesRegistered, self._kv_states.registered)
        wire(t.KvStatesUnregistered, self._kv_states.unregistered)
        # taking over
        wire(t.AttemptsAdopted, region_slots.attempts_adopted, execution.attempts_adopted)
        wire(t.CoordinatorsAdopted, coordinators.adopted)
        wire(t.CheckpointsAdopted, checkpoints.adopted)
        # regions
        wire(t.StartScheduling, execution.start_scheduling)
        wire(t.ScheduleRegions, execution.schedule, phases.scheduled)
        wire(t.RequestSlots, region_slots.request)
        wire(t.RequestSlotsAgain, region_slots.request_again)
        wire(t.RegionsReady, coordinators.regions_ready)
        wire(t.UseSlots, region_slots.use)
        wire(t.DeployRegion, coordinators.region_deployed, execution.deploy)
        wire(t.CancelRegions, region_slots.cancel, coordinators.regions_cancelled, execution.cancel)
        wire(t.CoordinatorsBegan, execution.coordinators_began)
        wire(t.CoordinatorEnded, region_slots.coordinator_ended, execution.coordinator_ended)
        wire(t.RegionsOver, failover.regions_over)
        wire(t.RegionsFinished, results.regions_finished)
        wire(t.RegionsUnfinished, results.regions_unfinished)
        # attempts
        wire(t.AttemptsFailed, execution.attempts_failed)
        wire(
            t.AttemptsOver,
            checkpoints.attempts_over,
            self._kv_states.attempts_over,
            region_slots.attempts_over,
            execution.attempts_over,
        )
        wire(t.AttemptReplaced, region_slots.attempt_replaced)
        wire(t.SendDeployments, notebook.deployed, bulk.deploy)
        wire(t.SendCancellations, bulk.cancel)
        # results
        wire(t.ResultsFinished, results.finished, execution.results_finished)
        wire(t.ResultsTakenBack, results.taken_back, execution.take_back_results)
        wire(t.ResultsLost, failover.results_lost)
        wire(t.PartitionsMissing, results.partitions_missing)
        wire(t.SendReleases, bulk.release)
        # failures and restarts
        wire(t.SubtasksFailed, failover.subtasks_failed)
        wire(t.GlobalFailure, failover.global_failure)
        wire(t.DecideFailover, failover.decide)
        wire(
            t.StopEverything,
            notebook.everything_stopped,
            failover.stop_everything,
            phases.stop_everything,
        )
        wire(t.RestartDue, failover.restart)
        wire(t.PrepareRestore, failover.restore_awaited, checkpoints.prepare_restore)
        wire(t.RestorePossible, failover.restore_possible)
        wire(t.ResetRegions, execution.reset, notebook.regions_reset, coordinators.regions_reset)
        wire(t.RestoreState, checkpoints.restore)
        wire(t.RegionsRestored, execution.restored)
        wire(t.MaxParallelismChanged, bulk.max_parallelism_changed)
        wire(t.StartJobCoordinators, coordinators.job_begins)
        # the job
        wire(t.AwaitReports, self._await_reports)
        wire(t.TakeOverJob, self._adoption.adopt, self._adopted, phases.taken_over)
        wire(t.StartJob, self._begin)
        wire(t.CancelJob, self._cancel)
        wire(t.SuspendJob, self._suspend)
        wire(t.FailJob, self._fail)
        wire(t.CancelEverything, checkpoints.cancel_everything, failover.cancel_everything)
        wire(t.StatusEntered, checkpoints.status_entered, phases.status_entered)
        wire(t.NothingRuns, self._nothing_runs)
        wire(t.EndJob, self._end)
        wire(t.TellEnd, self._tell_end)

    def _work_on(self, event: str, now: float, *steps: Step) -> list[JobSchedulerAction]:
        if not self.status.is_terminal:
            self._loop.run(event, now, steps)
        return self._outbox.take()

    # --- orders -----------------------------------------------------------------------------------

    def start(self, now: float) -> list[JobSchedulerAction]:
        """Start the job.  Call this once."""
        if self._job.is_ending:
            return []
        return self._work_on("start", now, t.StartJob())

    def reconcile(self, now: float) -> list[JobSchedulerAction]:
        """Wait for the reports of TaskExecutors, in the status RECONCILING; :meth:`take_over`
        follows."""
        if self.status is not JobStatus.CREATED:
            return []
        return self._work_on("reconcile", now, t.AwaitReports())

    def take_over(
        self,
        notes: JobNotes | None,
        finished: Iterable[FinishedTask],
        reports: Iterable[TaskExecutorReport],
        now: float,
        begun_checkpoints: Mapping[int, str] = NOTHING_BEGUN,
        coordinated: Collection[JobVertexID] = (),
        *,
        is_copy: bool = False,
        has_run: bool = False,
    ) -> list[JobSchedulerAction]:
        """Take over running tasks from an earlier JobMaster.  Call this in place of ``start``.
        Deployed attempts that are missing or contradict the notes fail together, as one event.  If
        no task can keep running (:class:`~flinkray.scheduler.job.take_over.CannotTakeOverError`),
        all are canceled, and the job begins from its last checkpoint with a new execution graph.
        AdoptSlots is the first action.

        Args:
            notes: the last notes; None if there are none.  Their ``source_coordinator`` must be
                None unless it can be reached and already obeys this JobMaster.
            reports: one report per registered TaskExecutor, as of its registration.
            begun_checkpoints: ids that were issued after the last recovered checkpoint, each with
                its directory as a checkpoint of the job.
            coordinated: vertices whose coordinators exist in the attempts of the notes and already
                obey this JobMaster.  Further events of these coordinators follow after this call.
            is_copy: only a TaskExecutor has the notes, and a later JobMaster may have had newer
                notes.  All noted attempts must be present, and in the last complete checkpoint.
            has_run: tasks of the job were deployed at some time.  Without notes, the job then
                restarts, even if nothing else tells of these tasks.
        """
        if self._job.is_ending:
            return []
        reports = tuple(reports)
        if notes is not None:
            self._job.follow(restarts=notes.restarts, failovers=notes.failovers + 1)
        try:
            obstacle = why_not(self._job_graph, notes)
            if notes is None or obstacle is not None:
                raise CannotTakeOverError(obstacle)
            noted = NotedGraph.planned(
                self._noted_graph(notes, now),
                notes,
                finished,
                reports,
                now,
                coordinated,
                latest_completed=self._checkpoints.latest_completed if is_copy else None,
            )
        except CannotTakeOverError as error:
            has_run = has_run and notes is None
            has_run = has_run or self._checkpoints.has_completed or bool(begun_checkpoints)
            steps = self._adoption.begin_anew(str(error), notes, reports, now, has_run=has_run)
            return self._work_on("take_over", now, *steps)
        self._build(
            noted.graph, takeovers=notes.takeovers + 1, regions=noted.regions, slots=noted.slots
        )
        self._outbox.notebook.adopt(notes)
        step = t.TakeOverJob(noted.plan, notes, begun_checkpoints, coordinated)
        return self._work_on("take_over", now, step)

    def _noted_graph(self, notes: JobNotes, now: float) -> ExecutionGraph:
        """Build the execution graph that the notes describe.

        Raises:
            CannotTakeOverError: the job graph does not fit the notes.
        """
        graph = ExecutionGraph(self._job_graph, notes.graph_id, now)
        if tuple(vertex.parallelism for vertex in graph.vertices) != notes.parallelisms:
            raise CannotTakeOverError("its vertices had other parallelisms")
        return graph

    def source_coordinator_is_at(
        self, place: SourceCoordinatorPlace, now: float
    ) -> list[JobSchedulerAction]:
        """Note where the coordinator of the job's sources was started. Call this before
        ``coordinator_started``, and not for a coordinator that was taken over."""
        self._outbox.notebook.source_coordinator_is_at(place)
        return self._work_on("source_coordinator_is_at", now)

    def cancel(self, now: float) -> list[JobSchedulerAction]:
        """Cancel the job.  A second call and a call after the job's end change nothing."""
        is_failing = self.status is JobStatus.FAILING and self._job.suspension is None
        if self._job.is_ending and not is_failing:
            return []
        return self._work_on("cancel", now, t.CancelJob())

    def suspend(self, reason: str, now: float) -> list[JobSchedulerAction]:
        """Stop this JobMaster's work on the job; the job's result is SUSPENDED (EX-08)."""
        if self.status.is_terminal or self._job.suspension is not None:
            return []
        return self._work_on("suspend", now, t.SuspendJob(reason))

    def global_failure(self, cause: Failure, now: float) -> list[JobSchedulerAction]:
        """Handle a failure that concerns the whole job."""
        if self._job.suspension is not None:
            return []
        return self._work_on("global_failure", now, t.GlobalFailure(cause))

    def resize(self, bounds: Sequence[ParallelismBounds], now: float) -> list[JobSchedulerAction]:
        """Change the parallelism bounds of some vertices.

        Raises:
            JobStateError: the job is not elastic, or the bounds are not possible.
        """
        raise JobStateError(self.job_id, "its parallelism is fixed")

    # --- checkpoints ------------------------------------------------------------------------------

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the job may take checkpoints; if not, it cannot take savepoints either."""
        return self._checkpoints.takes_any

    def checkpoints_recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Load checkpoints of an earlier JobMaster, in any order.  Call this before the start."""
        self._checkpoints.recovered(checkpoints)

    def start_from_savepoint(
        self, savepoint: CompletedCheckpoint, now: float
    ) -> list[JobSchedulerAction]:
        """Start from this savepoint, unless the job has checkpoints of its own (JM-09). Call this
        after ``checkpoints_recovered`` and before the start.  The job fails if its operators cannot
        be restored from the savepoint."""
        return self._work_on("start_from_savepoint", now, t.SavepointGiven(savepoint))

    @property
    def savepoint_in_use(self) -> str | None:
        """Path of the metadata of the savepoint that a restart would use.
        None if the job has a checkpoint of its own, or would restart without state."""
        return self._checkpoints.savepoint_in_use

    def checkpoint_told(self, event: t.CheckpointEvent, now: float) -> list[JobSchedulerAction]:
        """Handle the result of a checkpoint action.
        Call this after the job's end, too, because a checkpoint may still be being stored then."""
        self._loop.run("checkpoint_told", now, (event,))
        return self._outbox.take()

    # --- coordinators -----------------------------------------------------------------------------

    def coordinator_started(
        self, coordinator: CoordinatorID, now: float
    ) -> list[JobSchedulerAction]:
        """Handle that the coordinator's process has started."""
        return self._work_on("coordinator_started", now, t.CoordinatorStarted(coordinator))

    def coordinator_stopped(
        self, coordinator: CoordinatorID, now: float
    ) -> list[JobSchedulerAction]:
        """Handle that a coordinator has ended, as a StopCoordinator action demanded."""
        return self._work_on("coordinator_stopped", now, t.CoordinatorGone(coordinator, "it ended"))

    def coordinator_lost(
        self, coordinator: CoordinatorID, cause: str, now: float, *, goes_on: bool = False
    ) -> list[JobSchedulerAction]:
        """Handle that a coordinator died or could not be started.  Its process no longer exists.
        *goes_on*: another attempt can replace it without a failure."""
        gone = t.CoordinatorGone(coordinator, cause, goes_on)
        return self._work_on("coordinator_lost", now, gone)

    def coordinator_told(
        self, coordinator: CoordinatorID, event: CoordinatorEvent, now: float
    ) -> list[JobSchedulerAction]:
        """Handle an event of a coordinator.
        See :mod:`flinkray.scheduler.job.coordinator_events`."""
        return self._work_on("coordinator_told", now, t.CoordinatorTold(coordinator, event))

    def check_current(self, attempt_id: ExecutionAttemptID) -> None:
        """Check that a request comes from a current attempt of the current execution graph.

        Raises:
            AttemptDisposedError: the attempt is not the current attempt of its subtask, or has
                ended.
        """
        execution = self._graph.find(attempt_id)
        if execution is None or execution.state.is_terminal:
            raise AttemptDisposedError(self._graph.task_text(attempt_id))

    # --- slots ------------------------------------------------------------------------------------

    def slot_events(self, events: Iterable[SlotEvent], now: float) -> list[JobSchedulerAction]:
        """Handle events of the SlotPool, in their order."""
        return self._work_on("slot_events", now, t.SlotsTold(tuple(events)))

    def slots_changed(
        self, slots: tuple[AllocatedSlot, ...], now: float
    ) -> list[JobSchedulerAction]:
        """Handle a change of the pool's slots.
        *slots*: all slots that the pool holds, requested or not (see :attr:`wants_all_slots`)."""
        return []

    def slot_failed(
        self, allocation_id: AllocationID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """Handle a lost slot.  Call this before the SlotPool's event reports the same loss."""
        return self._work_on("slot_failed", now, t.SlotFailed(allocation_id, cause))

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """Handle a lost TaskExecutor with all its slots and partitions.
        Call this before the SlotPool's event reports the same loss."""
        return self._work_on("task_executor_lost", now, t.TaskExecutorLost(resource_id, cause))

    def task_executor_registered(self, resource_id: ResourceID) -> None:
        """Forget which shared parts a TaskExecutor has, because it has connected anew."""
        self._outbox.bulk.forget(resource_id)

    def task_executor_let_go(self, resource_id: ResourceID) -> None:
        """Forget which shared parts a TaskExecutor has, because the job no longer needs it (JM-15).
        The TaskExecutor forgets the parts, too."""
        self._outbox.bulk.forget(resource_id)

    def resources_short(
        self, shortages: tuple[ResourceShortage, ...], now: float
    ) -> list[JobSchedulerAction]:
        """Store why slots are missing, to explain it to users; *shortages* is the complete list.
        The SlotPool gets the list, too, and fails requests that cannot be fulfilled."""
        return self._work_on("resources_short", now, t.ResourcesShort(shortages))

    # --- tasks ------------------------------------------------------------------------------------

    def tasks_reported(
        self, reports: Iterable[TaskExecutionState | CheckpointAnswer], now: float
    ) -> list[JobSchedulerAction]:
        """Handle reports of TaskExecutors, in their order.  All failures in one call count as one
        failure. After the job's end, partitions that tasks have left are still released."""
        steps: list[Step] = []
        for are_states, alike in groupby(reports, lambda r: isinstance(r, TaskExecutionState)):
            kind = t.TasksReported if are_states else t.CheckpointAnswered
            steps.append(kind(tuple(alike)))  # type: ignore[arg-type]
        self._loop.run("tasks_reported", now, steps)
        return self._outbox.take()

    def deployments_failed(
        self,
        resource_id: ResourceID,
        attempts: Iterable[ExecutionAttemptID],
        cause: str,
        now: float,
    ) -> list[JobSchedulerAction]:
        """Handle that a DeployTasks could not be sent, for these current or earlier attempts
        (EX-02). The TaskExecutor has not received the shared parts in the message either."""
        failed = t.DeploymentsFailed(resource_id, tuple(attempts), cause)
        return self._work_on("deployments_failed", now, failed)

    def cancellations_failed(
        self, attempts: Iterable[ExecutionAttemptID], cause: str, now: float
    ) -> list[JobSchedulerAction]:
        """Handle that a CancelTasks could not be sent.  Its attempts count as canceled (EX-04)."""
        failed = t.CancellationsFailed(tuple(attempts), cause)
        return self._work_on("cancellations_failed", now, failed)

    # --- queryable state --------------------------------------------------------------------------

    def kv_states_registered(
        self, registrations: Sequence[KvStateRegistration], now: float
    ) -> list[JobSchedulerAction]:
        """Register queryable states of attempts (QS-01).
        Refused registrations (see :attr:`kv_states`) change nothing, except that the name of
        another operator's state fails the job (QS-02)."""
        registered = t.KvStatesRegistered(tuple(registrations))
        return self._work_on("kv_states_registered", now, registered)

    def kv_states_unregistered(
        self, registrations: Sequence[KvStateRegistration], now: float
    ) -> list[JobSchedulerAction]:
        """Unregister queryable states that the attempts no longer hold."""
        unregistered = t.KvStatesUnregistered(tuple(registrations))
        return self._work_on("kv_states_unregistered", now, unregistered)

    @property
    def kv_states(self) -> KvStateLocationRegistry:
        """The locations of queryable states.  Use this object for queries only."""
        return self._kv_states

    # --- time -------------------------------------------------------------------------------------

    def timer(self, key: TimerKey, now: float) -> list[JobSchedulerAction]:
        """Handle that the delay of a StartTimer action is over."""
        transition = _AT_ITS_TIME[key.purpose](key.generation)
        return self._work_on(f"timer: {key.purpose.value}", now, transition)

    # --- questions of the scheduler and of other processes ----------------------------------------

    @property
    def job_id(self) -> JobID:
        return self._job_graph.job_id

    @property
    def job_text(self) -> str:
        """``job <id> (<name>)``, for log lines."""
        return self._job_graph.text

    @property
    def graph_id(self) -> ExecutionGraphID:
        """Id of the current execution graph; an elastic job has several, one after the other."""
        return self._graph.graph_id

    @property
    def status(self) -> JobStatus:
        """Current status of the job."""
        return self._job.status

    @property
    def max_parallelism(self) -> Mapping[JobVertexID, int]:
        """Max parallelism of each vertex: from the state to restore, or else from the graph."""
        known = {v.vertex.vertex_id: v.max_parallelism for v in self._graph.vertices}
        return {**known, **self._checkpoints.key_groups}

    def partition_state(self, partition: ResultPartitionID) -> ExecutionState:
        """Return the state of the attempt that produces the partition (JM-13).

        Raises:
            ValueError: the job has no such partition.
            PartitionProducerDisposedError: the partition belongs to an attempt that is not current.
        """
        result = self._graph.result(partition.data_set_id)
        if result is None or not 0 <= partition.partition < result.producer.parallelism:
            raise ValueError(f"the job produces no partition {partition}")
        current = result.producer.subtasks[partition.partition].current
        if (partition.graph_id, partition.attempt_number) != (
            self._graph.graph_id,
            current.attempt_number,
        ):
            text = f"{partition} of {current.task_name}"
            raise PartitionProducerDisposedError(text, str(current.attempt_id))
        return current.state

    def holds_partitions_on(self, resource_id: ResourceID) -> bool:
        """Return whether the TaskExecutor keeps finished partitions of the job (JM-15)."""
        return self._tracker.holds_partitions_on(resource_id)

    def take_spans(self) -> list[Span]:
        """Return and remove the spans that have ended since the last call."""
        return self._spans.take()

    def story(self) -> str:
        """Return the history of the job as text: its statuses, and the last transitions."""
        return f"{self._job.story}\n{self._loop.story()}"

    @property
    def transcript(self) -> tuple[Applied, ...]:
        """The last applied transitions, oldest first."""
        return self._loop.transcript

    # --- questions of clients ---------------------------------------------------------------------

    def details(self, running: Mapping[ExecutionAttemptID, IOMetrics] = NO_METRICS) -> JobDetails:
        """Return all details of the job for clients. *running*: I/O metrics of running stream
        tasks, which their TaskExecutors have reported."""
        vertices = tuple(
            vertex_info(vertex, self._job.epoch_offset, progress, running)
            for vertex, progress in self._with_progress()
        )
        return self._job.details(
            vertices,
            self._why_pending(),
            self._coordinators.worker_group,
            self._warnings,
            self._checkpoints.overview(),
        )

    def places_of_streams(self) -> tuple[ResourceID, ...]:
        """Return the TaskExecutors of running stream tasks, to ask for metrics before
        :meth:`details`."""
        return places_of_streams(self._graph.vertices)

    def progress(self) -> JobProgress:
        """Return the progress of the job in a few numbers, for clients."""
        return self._job.progress(
            tuple(vertex_progress(*each) for each in self._with_progress()),
            self._why_pending(),
            self._warnings,
            self._checkpoints.overview(),
        )

    @property
    def running_since(self) -> float:
        """Seconds since the epoch when the job became RUNNING, under this or an earlier JobMaster.
        0 if the job is not RUNNING."""
        return self._job.running_since

    @property
    def down_since(self) -> float:
        """Seconds since the epoch when a part of the job failed that does not run again yet.
        0 if nothing is down."""
        since = self._phases.down_since
        return since + self._job.epoch_offset if since else 0.0

    @property
    def checkpointed_at(self) -> float | None:
        """Seconds since the epoch when the checkpoint that a restart would use was triggered. If
        the job has no checkpoint of its own: when the job began.  None if the job takes no periodic
        checkpoints."""
        if not self._checkpoints.are_periodic:
            return None
        began = self._job.began_at
        return began if (at := self._checkpoints.last_triggered_at) is None else at

    @property
    def has_deployed(self) -> bool:
        """Whether any task of the current execution graph was deployed, or was adopted."""
        return self._outbox.notebook.has_deployed

    @property
    def restarts(self) -> int:
        """Number of restarts of the job or of its regions."""
        return self._job.restarts

    @property
    def checkpoints(self) -> CheckpointsOverview | None:
        """Statistics of the checkpoints; None if the job takes none."""
        return self._checkpoints.overview()

    def exceptions(self) -> tuple[ExceptionEntry, ...]:
        """Return the failures of the job, oldest first."""
        return self._job.exceptions

    def overview(self) -> JobOverview:
        """Return a short overview of the job."""
        return self._job.overview(task_counts(self._graph.vertices))

    @property
    def overview_state(self) -> Hashable:
        """A value that changes whenever :meth:`overview` changes.
        It is computed without visiting each task."""
        changes = sum(vertex.changes for vertex in self._graph.vertices)
        return self.status, self._job.last_modified, self.graph_id, changes

    def _with_progress(self) -> Iterator[tuple[ExecutionJobVertex, SparkProgress | None]]:
        for vertex in self._graph.vertices:
            yield vertex, self._coordinators.progress_of(vertex.vertex.vertex_id)

    @property
    def _warnings(self) -> tuple[str, ...]:
        return self._checkpoints.warnings

    def _why_pending(self) -> str | None:
        if self.status is not JobStatus.RUNNING or self._job.suspension is not None:
            return None
        return self._region_slots.why_pending()

    # --- the job's own transitions ----------------------------------------------------------------

    def _await_reports(self, transition: t.AwaitReports, now: float) -> Steps:
        return self._job.change(JobStatus.RECONCILING, now, "TaskExecutors are to report")

    def _adopted(self, transition: t.TakeOverJob, now: float) -> Steps:
        """Check whether the job is over, after the changes that adopt its tasks."""
        return (t.NothingRuns(),)

    def _cancel(self, transition: t.CancelJob, now: float) -> Steps:
        steps = self._job.change(JobStatus.CANCELLING, now, "cancelled by its user")
        return [*steps, t.CancelEverything()]

    def _suspend(self, transition: t.SuspendJob, now: float) -> Steps:
        self._job.suspend(transition.reason, now)
        return (t.CancelEverything(),)

    def _begin(self, transition: t.StartJob, now: float) -> Steps:
        steps = self._job.change(JobStatus.RUNNING, now)
        subtasks = tuple(self._graph.subtasks)
        then = (t.StartJobCoordinators(), t.StartScheduling())
        return [*steps, t.RestoreState(subtasks, then)]

    def _fail(self, transition: t.FailJob, now: float) -> Steps:
        steps = self._job.fail(transition.failure, now)
        for failure in transition.concurrent:
            self._job.add_concurrent_failure(failure, now)
        return [*steps, t.CancelEverything()]

    def _nothing_runs(self, transition: t.NothingRuns, now: float) -> Steps:
        if self._execution.anything_runs or self.status.is_terminal:
            return ()
        end = self._job.decided_end
        if end is not None:
            return (t.EndJob(end),)
        is_running = self.status is JobStatus.RUNNING and not self._restarts
        if not is_running or not self._graph.is_finished:
            return ()
        if not self._coordinators.have_finished:
            return self._coordinators.finish(now)
        return (t.EndJob(JobStatus.FINISHED),)

    def _end(self, transition: t.EndJob, now: float) -> Steps:
        status = transition.status
        steps: list[Step] = [
            *self._results.job_ends(),
            *self._coordinators.job_ends(now),
            *self._job.change(status, now, self._job.suspension or ""),
        ]
        return [*steps, t.TellEnd()]

    def _tell_end(self, _: t.TellEnd, now: float) -> Steps:
        return [JobEnded(self._job.job_result(now), self.details())]
