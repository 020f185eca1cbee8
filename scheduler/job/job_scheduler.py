"""Makes the decisions of a JobMaster about its job."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import get_args

from flinkray.core.errors import (
    AttemptDisposedError,
    JobStateError,
    PartitionProducerDisposedError,
)
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
)
from flinkray.scheduler.checkpoints import events as c
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
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
from flinkray.scheduler.execution.pending_restarts import PendingRestarts
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.execution.repeated_errors import (
    DEFAULT_LIMITS,
    RepeatedErrors,
    RepetitionLimits,
)
from flinkray.scheduler.execution.restart_strategy import new_restart_strategy
from flinkray.scheduler.graph.job_graph import JobGraph, RestartStrategy
from flinkray.scheduler.graph.validation import validate
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.adoption import JobAdoption, NotedGraph
from flinkray.scheduler.job.checkpoints import checkpoints_of_job
from flinkray.scheduler.job.coordinator_kinds import coordinators_of_job, coordinators_of_regions
from flinkray.scheduler.job.failover import Failover
from flinkray.scheduler.job.job_execution import JobExecution
from flinkray.scheduler.job.job_phases import JobPhases
from flinkray.scheduler.job.job_record import JobRecord
from flinkray.scheduler.job.job_scheduler_actions import (
    JobEnded,
    JobSchedulerAction,
)
from flinkray.scheduler.job.kv_state_locations import KvStateLocationRegistry
from flinkray.scheduler.job.operator_coordinators import OperatorCoordinators
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.job.replica_scaling import ReplicaScaling
from flinkray.scheduler.job.result_partitions import PartitionTracker
from flinkray.scheduler.job.take_over import CannotTakeOverError, why_not
from flinkray.scheduler.job.task_reports import TaskReports
from flinkray.scheduler.job.transition_loop import Applied, Steps, TransitionLoop
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
)
from flinkray.scheduler.reports.spans import Span, SpanBook
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.spark_reports import SparkProgress
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.scheduler.shared.taking_over import (
    JobNotes,
)
from flinkray.scheduler.shared.transition import JobEvent


class JobScheduler:
    """Makes all decisions about a job that runs in slots of the SlotPool, without input or output.
    The JobMaster passes each event to :meth:`handle`, and carries out the returned actions in their
    order.  Events of an earlier attempt or generation change nothing.  After JobEnded only those
    events have consequences that say so.

    Each event enters a :class:`~flinkray.scheduler.job.transition_loop.TransitionLoop`;
    :meth:`_wire` registers which decision object applies which transition.
    """

    wants_all_slots = False
    """Whether the JobMaster must report changes of the pool's slots (PoolSlotsChanged)."""

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
        """Check the job graph and prepare the job, which StartJob or TakeOverJob begins.

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
        self._outbox = Outbox()
        self._checkpoints = checkpoints_of_job(
            job_graph, self._outbox, epoch_offset=epoch_offset, random=random, spans=self._spans
        )
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
        tracker = self._tracker = PartitionTracker(graph, regions)
        self._reports = TaskReports(
            graph,
            tracker,
            self._outbox,
            self._job.epoch_offset,
            is_stopping=lambda: self._checkpoints.is_stopping,
        )
        slots = self._region_slots = slots or RegionSlots(
            graph, regions, requests_made=requests_made
        )
        execution = self._execution = JobExecution(
            graph, regions, self._job, restarts, slots, tracker, self._outbox
        )
        self._phases.execute(execution.executions_of)
        self._failover = Failover(
            graph,
            regions,
            self._job,
            restarts,
            execution,
            tracker,
            self._restart_strategy,
            self._repeated_errors,
            self._checkpoints,
            first_generation=first_generation,
        )
        self._kv_states = KvStateLocationRegistry(graph)
        self._replicas = ReplicaScaling(graph)
        of_regions = coordinators_of_regions(
            graph, regions, self._job, restarts, execution, slots, self._outbox
        )
        self._coordinators = OperatorCoordinators(graph, of_regions, self._of_job, slots)
        self._adoption = JobAdoption(
            graph, self._job, execution, slots, self._coordinators, self._outbox.notebook
        )
        self._wire()

    def _wire(self) -> None:
        execution, failover, region_slots = self._execution, self._failover, self._region_slots
        coordinators, reports, kv_states = self._coordinators, self._reports, self._kv_states
        checkpoints, phases = self._checkpoints, self._phases
        bulk, notebook = self._outbox.bulk, self._outbox.notebook
        wire = self._loop.wire
        # events: orders
        wire(t.StartJob, self._begin)
        wire(t.AwaitReports, self._await_reports)
        wire(t.TakeOverJob, self._take_over)
        wire(t.CancelJob, self._cancel)
        wire(t.SuspendJob, self._suspend)
        wire(t.ResizeJob, self._resize)
        wire(t.GlobalFailure, failover.global_failure)
        wire(t.ReplicasMeasured, self._replicas.measured)
        wire(t.ScaleReplicas, execution.scale)
        wire(t.StopRegions, failover.stop_regions)
        # events: slots, tasks and coordinators
        wire(t.SlotsTold, region_slots.slots_told)
        wire(t.PoolSlotsChanged)
        wire(
            t.TaskExecutorLost,
            bulk.task_executor_lost,
            failover.task_executor_lost,
            region_slots.task_executor_lost,
        )
        wire(t.ResourcesShort, region_slots.resources_short)
        wire(t.TasksReported, reports.reported)
        wire(t.DeploymentsFailed, bulk.deployments_failed, reports.deployments_failed)
        wire(t.CancellationsFailed, reports.cancellations_failed)
        wire(t.CoordinatorStarted, coordinators.started)
        wire(t.CoordinatorGone, coordinators.gone)
        wire(t.CoordinatorTold, coordinators.told, notebook.coordinator_told)
        wire(t.SourceCoordinatorIsAt, notebook.source_coordinator_is_at)
        wire(t.KvStatesRegistered, kv_states.registered)
        wire(t.KvStatesUnregistered, kv_states.unregistered)
        # events: timers
        wire(t.RestartDelayOver, failover.delay_is_over)
        # checkpoints
        for kind in get_args(c.CheckpointEvent):
            wire(kind, checkpoints.told)
        wire(c.SavepointGiven, checkpoints.savepoint_given)
        wire(c.ReadyToRestore, failover.restore_possible)
        wire(c.CheckpointsFailJob, failover.checkpoints_fail_job)
        wire(t.CheckpointsAdopted, checkpoints.adopted)
        wire(t.SnapshotIsOver)
        # regions
        wire(t.StartScheduling, execution.start_scheduling)
        wire(t.ScheduleRegions, execution.schedule, phases.scheduled)
        wire(t.RequestSlotsAgain, region_slots.request_again)
        wire(t.RegionsReady, coordinators.regions_ready)
        wire(t.DeployRegion, coordinators.region_deployed, execution.deploy)
        wire(t.CancelRegions, region_slots.cancel, coordinators.regions_cancelled, execution.cancel)
        wire(t.CoordinatorEnded, region_slots.coordinator_ended, execution.coordinator_ended)
        # attempts
        wire(t.StatesReported, reports.states_reported, phases.states_reported)
        wire(t.AttemptsFailed, execution.attempts_failed)
        wire(
            t.AttemptsOver,
            checkpoints.attempts_over,
            kv_states.attempts_over,
            region_slots.attempts_over,
            execution.attempts_over,
        )
        # results
        wire(t.ResultsFinished, execution.results_finished)
        wire(t.ResultsTakenBack, execution.take_back_results)
        wire(t.PartitionsMissing, reports.partitions_missing)
        # failures and restarts
        wire(t.SubtasksFailed, failover.subtasks_failed)
        wire(t.DecideFailover, failover.decide)
        wire(
            t.StopEverything,
            notebook.everything_stopped,
            failover.stop_everything,
            phases.stop_everything,
        )
        wire(t.RestartDue, failover.restart)
        wire(t.ResetRegions, execution.reset, notebook.regions_reset, coordinators.regions_reset)
        wire(t.RestoreState, checkpoints.restore)
        wire(t.RegionsRestored, execution.restored)
        wire(t.StartJobCoordinators, coordinators.job_begins)
        # the job
        wire(t.CancelEverything, checkpoints.cancel_everything, failover.cancel_everything)
        wire(t.StatusEntered, checkpoints.status_entered, phases.status_entered)
        wire(t.NothingRuns, self._nothing_runs)
        wire(t.EndJob, self._end)
        wire(t.TellEnd, self._tell_end)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: JobEvent, now: float) -> list[JobSchedulerAction]:
        """Return the actions that follow from *event*.  *now* is in monotonic seconds.  Events are
        in :mod:`flinkray.scheduler.job.transitions`, and in
        :mod:`flinkray.scheduler.checkpoints.events`.

        Raises:
            JobStateError: only by a ResizeJob, which says why.
            IllegalTransitionError: a decision is not possible in the job's state, because of a
                mistake in the scheduler.
        """
        if event.counts_after_end or not self.status.is_terminal:
            self._loop.run(event, now)
        return self._outbox.take()

    def checkpoints_recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Load checkpoints of an earlier JobMaster, in any order. Must be called before the job
        starts."""
        self._checkpoints.recovered(checkpoints)

    def forget_parts(self, resource_id: ResourceID) -> None:
        """Forget which information for many deployments (SharedPart) a TaskExecutor has, because it
        has connected anew, or forgets the job, which no longer needs it (JM-15). The information is
        sent again with the next deployment."""
        self._outbox.bulk.forget(resource_id)

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

    @property
    def takes_checkpoints(self) -> bool:
        """Whether the job may take checkpoints; if not, it cannot take savepoints either."""
        return self._checkpoints.takes_any

    @property
    def savepoint_in_use(self) -> str | None:
        """Path of the metadata of the savepoint that a restart would use.
        None if the job has a checkpoint of its own, or would restart without state."""
        return self._checkpoints.savepoint_in_use

    @property
    def kv_states(self) -> KvStateLocationRegistry:
        """The registry of queryable states, for looking them up; only the scheduler changes it."""
        return self._kv_states

    def check_current(self, attempt_id: ExecutionAttemptID) -> None:
        """Check that a request comes from a current attempt of the current execution graph.

        Raises:
            AttemptDisposedError: the attempt is not the current attempt of its subtask, or has
                ended.
        """
        execution = self._graph.find(attempt_id)
        if execution is None or execution.state.is_terminal:
            raise AttemptDisposedError(self._graph.task_text(attempt_id))

    # --- questions of clients ---------------------------------------------------------------------

    def details(self, running: Mapping[ExecutionAttemptID, IOMetrics] = NO_METRICS) -> JobDetails:
        """Return all that clients can get about the job. *running*: I/O metrics of running stream
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

    @property
    def has_replicas(self) -> bool:
        """Whether the number of replicas of a model changes with the load (ReplicasMeasured)."""
        return self._replicas.are_there and not self._job.is_ending

    def places_of_streams(self) -> tuple[ResourceID, ...]:
        """Return the TaskExecutors that may run stream tasks now; the JobMaster asks them for the
        metrics that it passes to :meth:`details`."""
        return places_of_streams(self._graph.vertices)

    def progress(self) -> JobProgress:
        """Return what clients poll while they wait for the job: its status, restarts, numbers of
        tasks and of checkpoints, and why it waits."""
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
        """Return the failures that led to a restart or to the job's end, oldest first."""
        return self._job.exceptions

    def overview(self) -> JobOverview:
        """Return the job's line in a list of jobs: name, status, times, and number of tasks by
        state."""
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

    def _await_reports(self, event: t.AwaitReports, now: float) -> Steps:
        if self.status is not JobStatus.CREATED:
            return ()
        return self._job.change(JobStatus.RECONCILING, now, "TaskExecutors are to report")

    def _take_over(self, event: t.TakeOverJob, now: float) -> Steps:
        notes, reports, begun = event.notes, event.reports, event.begun_checkpoints
        if notes is not None:
            self._job.follow(restarts=notes.restarts, failovers=notes.failovers + 1)
        try:
            obstacle = why_not(self._job_graph, notes)
            if notes is None or obstacle is not None:
                raise CannotTakeOverError(obstacle)
            noted = NotedGraph.planned(
                self._noted_graph(notes, now),
                notes,
                event.finished,
                reports,
                now,
                event.coordinated,
                latest_completed=self._checkpoints.latest_completed if event.is_copy else None,
            )
        except CannotTakeOverError as error:
            has_run = event.has_run and notes is None
            has_run = has_run or self._checkpoints.has_completed or bool(begun)
            return self._adoption.begin_anew(str(error), notes, reports, now, has_run=has_run)
        self._build(
            noted.graph, takeovers=notes.takeovers + 1, regions=noted.regions, slots=noted.slots
        )
        self._outbox.notebook.adopt(notes)
        adopted = self._adoption.adopt(noted.plan, notes, begun, event.coordinated, now)
        steps = [*adopted, *self._adopted(now)]
        self._phases.taken_over(noted.plan.summary, now)
        return steps

    def _noted_graph(self, notes: JobNotes, now: float) -> ExecutionGraph:
        """Build the execution graph that the notes describe.

        Raises:
            CannotTakeOverError: the job graph does not fit the notes.
        """
        graph = ExecutionGraph(self._job_graph, notes.graph_id, now)
        if tuple(vertex.parallelism for vertex in graph.vertices) != notes.parallelisms:
            raise CannotTakeOverError("its vertices had other parallelisms")
        return graph

    def _adopted(self, now: float) -> Steps:
        """Return NothingRuns, which ends the job if nothing of it runs after its tasks were
        adopted."""
        return (t.NothingRuns(),)

    def _cancel(self, event: t.CancelJob, now: float) -> Steps:
        is_failing = self.status is JobStatus.FAILING and self._job.suspension is None
        if self._job.is_ending and not is_failing:
            return ()
        steps = self._job.change(JobStatus.CANCELLING, now, "cancelled by its user")
        return [*steps, t.CancelEverything()]

    def _suspend(self, event: t.SuspendJob, now: float) -> Steps:
        if self._job.suspension is not None:
            return ()
        self._job.suspend(event.reason, now)
        return (t.CancelEverything(),)

    def _resize(self, event: t.ResizeJob, now: float) -> Steps:
        raise JobStateError(self.job_id, "its parallelism is fixed")

    def _begin(self, event: t.StartJob, now: float) -> Steps:
        steps = self._job.change(JobStatus.RUNNING, now)
        subtasks = tuple(self._graph.subtasks)
        then = (t.StartJobCoordinators(), t.StartScheduling())
        return [*steps, t.RestoreState(subtasks, then)]

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
        self._outbox.bulk.release(self._tracker.let_go_of_all())
        stopped = self._coordinators.job_ends(now)
        changed = self._job.change(status, now, self._job.suspension or "")
        return [*stopped, *changed, t.TellEnd()]

    def _tell_end(self, _: t.TellEnd, now: float) -> Steps:
        return [JobEnded(self._job.job_result(now), self.details())]
