"""The checkpoints of a job that runs: what the CheckpointCoordinator has to know of the job, and
what becomes of its decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flinkray.core.config import Configuration
from flinkray.core.ids import ExecutionAttemptID, JobVertexID
from flinkray.core.job_options import SCHEDULER, STATE_RECOVERY_IGNORE_UNCLAIMED
from flinkray.scheduler.checkpoints.actions import (
    CheckpointAction,
    CheckpointsFailJob,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    ReadyToRestore,
    ResetCoordinatorSubtasks,
    SnapshotFinished,
    TriggerTasks,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.coordinator import CheckpointCoordinator
from flinkray.scheduler.checkpoints.errors import (
    CheckpointError,
    CheckpointFailureReason,
    StateRestoreError,
)
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointOrder,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.operators_with_state import (
    has_data_in_flight,
    key_groups_of,
    operators_without_uid,
)
from flinkray.scheduler.execution.execution_graph import ExecutionGraph, ExecutionJobVertex
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph, SchedulerMode
from flinkray.scheduler.job.checkpointed_graph import CheckpointedGraph, coordinated_operators
from flinkray.scheduler.job.job_scheduler_actions import (
    OrderCheckpoint,
    OrderCoordinators,
    ResetSubtasks,
)
from flinkray.scheduler.job.pickled_states import PickledStates
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.job.transitions import (
    AttemptsOver,
    CancelEverything,
    CheckpointAnswered,
    CheckpointEvent,
    CheckpointIsNotStored,
    CheckpointIsStored,
    CheckpointNotPrepared,
    CheckpointPrepared,
    CheckpointsAdopted,
    CheckpointTimerOver,
    CoordinatorCheckpointed,
    CoordinatorNotCheckpointed,
    GlobalFailure,
    MaxParallelismChanged,
    PrepareRestore,
    RestorePossible,
    RestoreState,
    SavepointGiven,
    SnapshotIsOver,
    SnapshotRequested,
    StatusEntered,
)
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.spans import SpanBook
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import RestoredTask


class NoCheckpoints:
    """Of a job that takes none: what is restarted begins anew."""

    takes_any = False

    def __init__(self, job_graph: JobGraph) -> None:
        self._job_graph = job_graph

    # --- what the job knows -----------------------------------------------------------------------

    def execute(self, graph: ExecutionGraph) -> None:
        """The job is executed by this graph from now on."""

    def recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """What an earlier JobMaster has left."""

    def overview(self) -> CheckpointsOverview | None:
        """What people are told; None: there is nothing to tell."""
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What users should mend."""
        return ()

    @property
    def has_completed(self) -> bool:
        """Whether the job has run far enough to have a checkpoint of its own."""
        return False

    @property
    def savepoint_in_use(self) -> str | None:
        """The metadata of the savepoint that the job would go on from after a failure; None: it has
        a checkpoint of its own, or would begin anew."""
        return None

    @property
    def is_stopping(self) -> bool:
        """Whether the job is being stopped with a savepoint."""
        return False

    @property
    def requested_under_way(self) -> frozenset[int]:
        """Which of the savepoints and checkpoints that users have asked for are being taken."""
        return frozenset()

    @property
    def key_groups(self) -> Mapping[JobVertexID, int]:
        """Of the vertices with keyed state in what the job would go on from: how many this has."""
        return {}

    # --- transitions ------------------------------------------------------------------------------

    def told(self, transition: CheckpointEvent, now: float) -> Steps:
        """What became of what was asked for."""
        if not isinstance(transition, SnapshotRequested):
            return ()
        reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
        error = CheckpointError(
            self._job_graph.job_id, reason, None, "the job takes none, as it is no streaming job"
        )
        return (SnapshotFinished(transition.request_id, None, None, error),)

    def savepoint_given(self, transition: SavepointGiven, now: float) -> Steps:
        """The job is to start from it."""
        text = "the job takes no checkpoints, and so cannot start from a savepoint"
        return (GlobalFailure(Failure(text, suppress_restarts=True)),)

    def adopted(self, transition: CheckpointsAdopted, now: float) -> Steps:
        """An earlier JobMaster has taken some."""
        return ()

    def status_entered(self, transition: StatusEntered, now: float) -> Steps:
        """The job's status is another one."""
        return ()

    def cancel_everything(self, transition: CancelEverything, now: float) -> Steps:
        """The job's end is decided."""
        return ()

    def attempts_over(self, transition: AttemptsOver, now: float) -> Steps:
        """Attempts have ended."""
        return ()

    def prepare_restore(self, transition: PrepareRestore, now: float) -> Steps:
        """Tasks are going to be restarted."""
        return (RestorePossible(),)

    def restore(self, transition: RestoreState, now: float) -> Steps:
        """Give new attempts the state that they begin with."""
        return transition.then


class Checkpoints(NoCheckpoints):
    """Of a job that takes them, by a CheckpointCoordinator.

    Before the first deployments, and after each failure, tasks get the state of the latest
    checkpoint that is complete.  After a failure of the whole job the coordinators of operators go
    back with them: by the first restart that follows, and once.
    """

    takes_any = True

    def __init__(
        self,
        job_graph: JobGraph,
        configuration: CheckpointConfiguration,
        *,
        epoch_offset: float,
        random: Callable[[], float],
        spans: SpanBook,
    ) -> None:
        """*epoch_offset*, *random* and *spans*: as of the CheckpointCoordinator."""
        super().__init__(job_graph)
        self._configuration = configuration
        self._with_own_max_parallelism = frozenset(
            vertex.vertex_id for vertex in job_graph.vertices if vertex.max_parallelism is not None
        )
        self._coordinator = CheckpointCoordinator(
            job_graph.job_id,
            configuration,
            lambda: self._topology,
            coordinators=coordinated_operators(job_graph),
            epoch_offset=epoch_offset,
            random=random,
            spans=spans,
            allow_non_restored_state=Configuration(job_graph.configuration).get(
                STATE_RECOVERY_IGNORE_UNCLAIMED
            ),
        )
        self._graph: ExecutionGraph
        self._topology: CheckpointedGraph
        self._is_begun = False
        """Whether tasks may have worked since the job was, or could have been, restored."""
        self._is_next_global = True
        """Whether the coordinators of operators go back with the next tasks."""
        self._were_requested: frozenset[int] = frozenset()
        """What users had asked for, and was under way, when the coordinator was told last."""
        self._latest_looked_at: CompletedCheckpoint | None = None
        self._key_groups: dict[JobVertexID, int] = {}
        """Of that checkpoint."""
        self._pickled_states = PickledStates(job_graph)
        self._without_uid: tuple[str, ...] = ()
        """Names of operators with state in the last savepoint."""

    # --- what the job knows -----------------------------------------------------------------------

    def execute(self, graph: ExecutionGraph) -> None:
        """The job is executed by this graph from now on."""
        self._graph = graph
        self._topology = CheckpointedGraph(graph, self._with_own_max_parallelism)

    def recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """What an earlier JobMaster has left; before the job is started."""
        self._coordinator.recovered(checkpoints)

    def overview(self) -> CheckpointsOverview | None:
        """What people are told."""
        return self._coordinator.overview()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What users should mend."""
        if not self._without_uid:
            return self._pickled_states.warnings
        names = ", ".join(map(repr, self._without_uid))
        return (
            *self._pickled_states.warnings,
            f"the last savepoint has state of operators without a uid: {names}; they are known by "
            "their place in the program: set a uid before you change it",
        )

    @property
    def is_stopping(self) -> bool:
        return self._coordinator.is_stopping

    @property
    def requested_under_way(self) -> frozenset[int]:
        return self._coordinator.requested_under_way

    @property
    def key_groups(self) -> Mapping[JobVertexID, int]:
        latest = self._coordinator.latest
        if latest is not self._latest_looked_at:
            self._latest_looked_at = latest
            vertices = self._job_graph.vertices
            self._key_groups = {} if latest is None else key_groups_of(latest.metadata, vertices)
        return self._key_groups

    @property
    def has_completed(self) -> bool:
        latest = self._coordinator.latest
        return latest is not None and not latest.properties.is_savepoint

    @property
    def savepoint_in_use(self) -> str | None:
        latest = self._coordinator.latest
        return latest.path if latest is not None and latest.properties.is_savepoint else None

    @property
    def _goes_on_from_another_job(self) -> bool:
        """What a job was to be stopped with, and was not, is a savepoint of its own."""
        latest = self._coordinator.latest
        return latest is not None and latest.metadata.job_id != self._job_graph.job_id

    # --- what became of what was asked for --------------------------------------------------------

    def told(self, transition: CheckpointEvent, now: float) -> Steps:
        return self._steps(self._told(transition, now))

    def _told(self, transition: CheckpointEvent, now: float) -> list[CheckpointAction]:
        coordinator = self._coordinator
        match transition:
            case CheckpointPrepared(number, checkpoint_id, directory):
                return coordinator.prepared(number, checkpoint_id, directory, now)
            case CheckpointNotPrepared(number, cause):
                return coordinator.preparation_failed(number, cause, now)
            case CoordinatorCheckpointed(checkpoint_id, operator_id, state):
                return coordinator.coordinator_acknowledged(checkpoint_id, operator_id, state, now)
            case CoordinatorNotCheckpointed(checkpoint_id, operator_id, cause, is_lost):
                return coordinator.coordinator_declined(
                    checkpoint_id, operator_id, cause, now, is_lost=is_lost
                )
            case CheckpointAnswered(answers):
                actions: list[CheckpointAction] = []
                for answer in answers:
                    match answer:
                        case AcknowledgeCheckpoint():
                            self._pickled_states.add(answer.pickled)
                            actions += coordinator.acknowledged(answer, now)
                        case DeclineCheckpoint():
                            actions += coordinator.declined(answer, now)
                        case AwaitCheckpoint():
                            actions += coordinator.awaited(answer)
                return actions
            case CheckpointIsStored(stored, path):
                if stored.properties.is_savepoint:
                    self._without_uid = operators_without_uid(stored.metadata)
                return coordinator.checkpoint_stored(stored, path, now)
            case CheckpointIsNotStored(stored, cause):
                return coordinator.checkpoint_not_stored(stored, cause, now)
            case CheckpointTimerOver(key):
                return coordinator.timer(key, now)
            case SnapshotRequested(request_id, properties, directory):
                return coordinator.request(request_id, properties, now, directory)

    # --- what happens to the job ------------------------------------------------------------------

    def savepoint_given(self, transition: SavepointGiven, now: float) -> Steps:
        vertices = self._topology.restored_vertices()
        try:
            self._check_can_be_rescaled(transition.savepoint)
            return self._steps(
                self._coordinator.start_from_savepoint(transition.savepoint, vertices)
            )
        except StateRestoreError as error:
            return _not_restored(error)

    def _check_can_be_rescaled(self, given: CompletedCheckpoint) -> None:
        """An elastic job has another parallelism as soon as a slot is lost or comes: it would fail
        for good by then, if it did not do so at once."""
        is_elastic = self._job_graph.scheduler_mode is SchedulerMode.ADAPTIVE
        if is_elastic and not self.has_completed and has_data_in_flight(given.metadata):
            raise StateRestoreError(
                self._job_graph.job_id,
                f"the checkpoint {given.path} is unaligned: it has data in flight, and cannot be "
                "restored with another parallelism, which an elastic job may get at any time. "
                "Take a savepoint first and start from that, or set "
                f"{SCHEDULER.key} to {SchedulerMode.DEFAULT.name}",
            )

    def adopted(self, transition: CheckpointsAdopted, now: float) -> Steps:
        """Its tasks go on; those that are deployed next begin as those that are deployed after a
        failure."""
        self._is_begun, self._is_next_global = True, False
        running = [
            subtask.current.attempt_id
            for subtask in self._graph.subtasks
            if subtask.current.slot is not None
            and not subtask.current.state.is_terminal
            and subtask.current.attempt_id not in transition.ended
        ]
        actions = self._coordinator.take_over(transition.restores, transition.begun, running, now)
        return self._steps(actions)

    def status_entered(self, transition: StatusEntered, now: float) -> Steps:
        return self._steps(self._coordinator.job_status_changed(transition.status, now))

    def cancel_everything(self, transition: CancelEverything, now: float) -> Steps:
        return self._steps(self._coordinator.stop_scheduler(now))

    def attempts_over(self, transition: AttemptsOver, now: float) -> Steps:
        """They answer nothing any more."""
        steps: list[Step] = []
        for is_finished in (True, False):
            ended = [
                execution.attempt_id
                for execution in transition.executions
                if (execution.state is ExecutionState.FINISHED) is is_finished
            ]
            if ended:
                actions = self._coordinator.tasks_ended(ended, is_finished=is_finished, now=now)
                steps += self._steps(actions)
        return steps

    # --- restore ----------------------------------------------------------------------------------

    def prepare_restore(self, transition: PrepareRestore, now: float) -> Steps:
        """What is not complete is given up; RestorePossible says when tasks can be restored."""
        self._is_next_global |= transition.is_global
        is_global, cause = transition.is_global, transition.cause
        actions = self._coordinator.prepare_restore(cause, now, is_global=is_global)
        return self._steps(actions)

    def restore(self, transition: RestoreState, now: float) -> Steps:
        """Give new attempts the state that they begin with."""
        is_first, self._is_begun = not self._is_begun, True
        is_global = self._is_next_global or transition.is_all
        self._is_next_global = False
        if is_first and self._coordinator.latest is None:
            return transition.then
        vertices = self._topology.restored_vertices()
        taking_part = {vertex.vertex_id for vertex in vertices}
        subtasks = {
            (subtask.vertex_id.job_vertex_id, subtask.subtask_index): subtask
            for subtask in transition.vertices
            if subtask.vertex_id.job_vertex_id in taking_part
        }
        try:
            restored = self._coordinator.restore(vertices, subtasks, is_global=is_global)
        except StateRestoreError as error:
            return _not_restored(error)
        for place, subtask in subtasks.items():
            if restored.checkpoint_id is not None:
                state = restored.tasks.get(place)
                subtask.current.restored = RestoredTask(
                    restored.checkpoint_id, state, self._goes_on_from_another_job
                )
        self._graph.restores = self._coordinator.restores
        steps = self._steps(restored.actions)
        changed = self._apply_max_parallelism(restored.max_parallelism)
        if changed:
            steps.append(MaxParallelismChanged(changed))
        return [*steps, *transition.then]

    def _apply_max_parallelism(
        self, of_state: Mapping[JobVertexID, int]
    ) -> tuple[ExecutionJobVertex, ...]:
        """Those that have another one by that."""
        changed = []
        for vertex in self._graph.vertices:
            wanted = of_state.get(vertex.vertex.vertex_id, vertex.max_parallelism)
            if wanted != vertex.max_parallelism:
                vertex.max_parallelism = wanted
                changed.append(vertex)
        return tuple(changed)

    # --- what the coordinator decides -------------------------------------------------------------

    def _steps(self, actions: Iterable[CheckpointAction]) -> list[Step]:
        """The same in terms of the job."""
        steps = [step for action in actions for step in self._step(action)]
        requested, self._were_requested = self._were_requested, self.requested_under_way
        if requested - self._were_requested:
            steps.append(SnapshotIsOver())
        return steps

    def _step(self, action: CheckpointAction) -> Steps:
        match action:
            case TriggerTasks():
                return self._orders(action.attempts, self._trigger(action))
            case NotifyCheckpointComplete():
                completed = CheckpointCompleted(action.checkpoint_id)
                return [
                    *self._orders(action.attempts, completed),
                    *_order_coordinators(action.coordinators, completed),
                ]
            case NotifyCheckpointAborted():
                aborted = CheckpointAborted(action.checkpoint_id, action.latest_completed or 0)
                return [
                    *self._orders(action.attempts, aborted),
                    *_order_coordinators(action.coordinators, aborted),
                ]
            case ResetCoordinatorSubtasks(checkpoint_id, subtasks):
                numbers = {
                    operator: self._topology.attempt_numbers(operator, of_operator)
                    for operator, of_operator in subtasks.items()
                }
                return (ResetSubtasks(checkpoint_id or 0, numbers),)
            case CheckpointsFailJob(_, text):
                return (GlobalFailure(Failure(text)),)
            case ReadyToRestore():
                return (RestorePossible(),)
        return (action,)

    def _trigger(self, action: TriggerTasks) -> TriggerCheckpoint:
        """A savepoint overtakes nothing, so that it can be restored with another parallelism."""
        configuration = self._configuration
        may_overtake = configuration.is_unaligned and not action.properties.is_savepoint
        timeout = configuration.alignment_timeout if may_overtake else 0.0
        return TriggerCheckpoint(
            action.checkpoint_id,
            action.timestamp,
            action.properties,
            action.directory,
            action.latest_completed or 0,
            action.is_whole,
            is_unaligned=may_overtake and not timeout,
            alignment_timeout=timeout or None,
        )

    def _orders(self, attempts: Iterable[ExecutionAttemptID], order: CheckpointOrder) -> list[Step]:
        """One for each TaskExecutor; attempts that have ended need not be told."""
        by_location: dict[WorkerLocation, list[ExecutionAttemptID]] = {}
        for attempt_id in attempts:
            execution = self._graph.find(attempt_id)
            if execution is None or execution.slot is None or execution.state.is_terminal:
                continue
            by_location.setdefault(execution.slot.location, []).append(attempt_id)
        return [
            OrderCheckpoint(location, tuple(here), order) for location, here in by_location.items()
        ]


def _order_coordinators(
    operators: tuple[str, ...], order: CheckpointCompleted | CheckpointAborted
) -> Steps:
    return (OrderCoordinators(operators, order),) if operators else ()


def _not_restored(error: StateRestoreError) -> Steps:
    """It would be the same again: neither the job nor the checkpoint would be another."""
    return (GlobalFailure(Failure(error.text, suppress_restarts=True)),)


def checkpoints_of_job(
    job_graph: JobGraph, *, epoch_offset: float, random: Callable[[], float], spans: SpanBook
) -> NoCheckpoints:
    """As the job wants them; *spans* is told of each that is over."""
    if job_graph.checkpoints is None:
        return NoCheckpoints(job_graph)
    return Checkpoints(
        job_graph, job_graph.checkpoints, epoch_offset=epoch_offset, random=random, spans=spans
    )
