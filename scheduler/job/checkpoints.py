"""Connects the CheckpointCoordinator with its job: passes events of the job to the
CheckpointCoordinator, and applies the restored state to the execution graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flinkray.core.config import ReadableConfig
from flinkray.core.ids import JobVertexID
from flinkray.core.job_options import SCHEDULER, STATE_RECOVERY_IGNORE_UNCLAIMED
from flinkray.scheduler.checkpoints.actions import SnapshotFinished
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.coordinator import CheckpointCoordinator
from flinkray.scheduler.checkpoints.events import (
    CheckpointAnswered,
    CheckpointEvent,
    CheckpointIsNotStored,
    CheckpointIsStored,
    CheckpointNotPrepared,
    CheckpointPrepared,
    CheckpointStep,
    CheckpointTimerOver,
    CoordinatorCheckpointed,
    CoordinatorNotCheckpointed,
    ReadyToRestore,
    SavepointGiven,
    SnapshotRequested,
)
from flinkray.scheduler.checkpoints.failures import (
    CheckpointError,
    CheckpointFailureReason,
    StateRestoreError,
)
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    DeclineCheckpoint,
    PickledState,
)
from flinkray.scheduler.checkpoints.operators_with_state import (
    has_data_in_flight,
    key_groups_of,
    operators_without_uid,
)
from flinkray.scheduler.execution.execution_graph import ExecutionGraph
from flinkray.scheduler.graph.checkpoint_configuration import CheckpointConfiguration
from flinkray.scheduler.graph.job_graph import JobGraph, SchedulerMode, VertexOperator
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.checkpointed_graph import CheckpointedGraph, coordinated_operators
from flinkray.scheduler.job.outbox import Outbox
from flinkray.scheduler.job.transition_loop import Step, Steps
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointsOverview
from flinkray.scheduler.reports.spans import SpanBook
from flinkray.scheduler.shared.failure import Failure
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import RestoredTask


class NoCheckpoints:
    """Takes no checkpoints, for jobs that are not streaming jobs: a restarted task starts without
    state, and requests for snapshots are refused. The subclass :class:`Checkpoints` overrides the
    methods for jobs that take checkpoints."""

    takes_any = False

    def __init__(self, job_graph: JobGraph) -> None:
        self._job_graph = job_graph

    # --- questions of the job ---------------------------------------------------------------------

    def execute(self, graph: ExecutionGraph) -> None:
        """Do nothing. In :class:`Checkpoints`: work on this execution graph from now on, in place
        of the previous one."""

    def recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Do nothing. In :class:`Checkpoints`: load the checkpoints of an earlier JobMaster."""

    def overview(self) -> CheckpointsOverview | None:
        """Return the numbers of checkpoints, and statistics of the newest ones, for users. None if
        the job takes no checkpoints."""
        return None

    @property
    def are_periodic(self) -> bool:
        """Whether the job takes periodic checkpoints."""
        return False

    @property
    def last_triggered_at(self) -> float | None:
        """Seconds since the epoch when the job's last complete checkpoint was triggered.
        None if the job has no checkpoint of its own."""
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to users about states or operators that may not be restorable later."""
        return ()

    @property
    def has_completed(self) -> bool:
        """Whether the job has a complete checkpoint of its own."""
        return False

    @property
    def latest_completed(self) -> int:
        """Id of the job's last complete checkpoint; 0 if there is none."""
        return 0

    @property
    def completed(self) -> int:
        """Number of checkpoints that were completed under this JobMaster."""
        return 0

    @property
    def savepoint_in_use(self) -> str | None:
        """Path of the metadata of the savepoint that a restart would use.
        None if the job has a checkpoint of its own, or would restart without state."""
        return None

    @property
    def is_stopping(self) -> bool:
        """Whether the job is being stopped with a savepoint."""
        return False

    @property
    def requested_under_way(self) -> frozenset[int]:
        """Numbers (not checkpoint ids) of the savepoints and checkpoints in progress that users
        asked for."""
        return frozenset()

    @property
    def key_groups(self) -> Mapping[JobVertexID, int]:
        """Number of key groups of each vertex with keyed state, according to the latest
        checkpoint."""
        return {}

    # --- transitions ------------------------------------------------------------------------------

    def told(self, transition: CheckpointEvent, now: float) -> Steps:
        """Refuse a user's request for a snapshot; ignore other checkpoint events."""
        if not isinstance(transition, SnapshotRequested):
            return ()
        reason = CheckpointFailureReason.TRIGGER_CHECKPOINT_FAILURE
        error = CheckpointError(
            self._job_graph.job_id, reason, None, "the job takes none, as it is no streaming job"
        )
        return (SnapshotFinished(transition.request_id, None, None, error),)

    def savepoint_given(self, transition: SavepointGiven, now: float) -> Steps:
        """Fail the job, because a job that takes no checkpoints cannot start from a savepoint."""
        text = "the job takes no checkpoints, and so cannot start from a savepoint"
        return (t.GlobalFailure(Failure(text, suppress_restarts=True)),)

    def adopted(self, transition: t.CheckpointsAdopted, now: float) -> Steps:
        """Do nothing. In :class:`Checkpoints`: continue the checkpoints of an earlier JobMaster,
        whose tasks keep running."""
        return ()

    def status_entered(self, transition: t.StatusEntered, now: float) -> Steps:
        """Do nothing. In :class:`Checkpoints`: start or stop periodic checkpoints, because the job
        has entered another status."""
        return ()

    def cancel_everything(self, transition: t.CancelEverything, now: float) -> Steps:
        """Do nothing. In :class:`Checkpoints`: take no further checkpoints, because the end of the
        job has been decided."""
        return ()

    def attempts_over(self, transition: t.AttemptsOver, now: float) -> Steps:
        """Do nothing. In :class:`Checkpoints`: abort the checkpoints that still need an answer of
        these attempts, which have ended."""
        return ()

    def prepare_restore(self, cause: str, now: float, *, is_global: bool) -> Steps:
        """Return ReadyToRestore, because tasks can restart at once. In :class:`Checkpoints`: abort
        incomplete checkpoints; ReadyToRestore follows when tasks can be restored. *is_global*: all
        tasks restart, and the operators' coordinators are restored with them."""
        return (ReadyToRestore(),)

    def restore(self, transition: t.RestoreState, now: float) -> Steps:
        """Return ``transition.then``: new attempts start without state. In :class:`Checkpoints`:
        first set the state with which new attempts start."""
        return transition.then


class Checkpoints(NoCheckpoints):
    """Takes and restores the checkpoints of a job, with a CheckpointCoordinator. New attempts get
    the state of the latest complete checkpoint.  After a failure of the whole job, the first
    restart also restores the operators' coordinators."""

    takes_any = True

    def __init__(
        self,
        job_graph: JobGraph,
        configuration: CheckpointConfiguration,
        outbox: Outbox,
        *,
        epoch_offset: float,
        random: Callable[[], float],
        spans: SpanBook,
    ) -> None:
        """Prepare to take the checkpoints of a job. *epoch_offset*: wall clock minus monotonic
        clock, in seconds. *random* returns numbers in [0, 1), which spread the first checkpoints of
        different jobs. *spans* receives a span for each checkpoint that is over."""
        super().__init__(job_graph)
        self._configuration = configuration
        self._outbox = outbox
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
            allow_non_restored_state=ReadableConfig(job_graph.configuration).get(
                STATE_RECOVERY_IGNORE_UNCLAIMED
            ),
        )
        self._graph: ExecutionGraph
        self._topology: CheckpointedGraph
        self._is_begun = False
        """Whether tasks may have run since the job was, or could have been, restored."""
        self._is_next_global = True
        """Whether the next restore of tasks also restores the operators' coordinators."""
        self._were_requested: frozenset[int] = frozenset()
        """Numbers of users' snapshots that were in progress after the coordinator's last event."""
        self._latest_looked_at: CompletedCheckpoint | None = None
        self._key_groups: dict[JobVertexID, int] = {}
        """Number of key groups by vertex in ``_latest_looked_at``."""
        self._pickled_states = PickledStates(job_graph)
        self._without_uid: tuple[str, ...] = ()
        """Names of the operators with state but without uid in the last savepoint."""

    # --- questions of the job ---------------------------------------------------------------------

    def execute(self, graph: ExecutionGraph) -> None:
        """Work on the execution graph *graph* from now on, in place of the previous one."""
        self._graph = graph
        self._topology = CheckpointedGraph(graph, self._with_own_max_parallelism)

    def recovered(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Load the checkpoints that an earlier JobMaster left.  Call this before the job starts."""
        self._coordinator.recovered(checkpoints)

    def overview(self) -> CheckpointsOverview | None:
        return self._coordinator.overview()

    @property
    def completed(self) -> int:
        return self._coordinator.overview().completed

    @property
    def are_periodic(self) -> bool:
        return self._configuration.interval is not None

    @property
    def last_triggered_at(self) -> float | None:
        """Seconds since the epoch when the job's last complete checkpoint was triggered.
        None if there is none; the savepoint that the job was started from does not count."""
        latest = self._coordinator.latest
        if latest is None or latest.properties.is_savepoint:
            return None
        return latest.metadata.timestamp / 1000

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings to users about pickled states, and about operators without uid in the last
        savepoint."""
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
    def latest_completed(self) -> int:
        latest = self._coordinator.latest
        return latest.checkpoint_id if latest is not None and self.has_completed else 0

    @property
    def savepoint_in_use(self) -> str | None:
        latest = self._coordinator.latest
        return latest.path if latest is not None and latest.properties.is_savepoint else None

    @property
    def _goes_on_from_another_job(self) -> bool:
        """Whether a restart would use another job's checkpoint or savepoint. A savepoint that the
        job was to be stopped with, but was not, belongs to the job itself."""
        latest = self._coordinator.latest
        return latest is not None and latest.metadata.job_id != self._job_graph.job_id

    # --- results of requested actions -------------------------------------------------------------

    def told(self, transition: CheckpointEvent, now: float) -> Steps:
        return self._steps(self._told(transition, now))

    def _told(self, transition: CheckpointEvent, now: float) -> list[CheckpointStep]:
        coordinator = self._coordinator
        match transition:
            case CheckpointPrepared(number, checkpoint_id, directory):
                return coordinator.prepared(number, checkpoint_id, directory, now)
            case CheckpointNotPrepared(number, cause):
                return coordinator.preparation_failed(number, cause, now)
            case CoordinatorCheckpointed(checkpoint_id, operator_id, state, master_states):
                return coordinator.coordinator_acknowledged(
                    checkpoint_id, operator_id, state, now, master_states
                )
            case CoordinatorNotCheckpointed(checkpoint_id, operator_id, cause, is_lost):
                return coordinator.coordinator_declined(
                    checkpoint_id, operator_id, cause, now, is_lost=is_lost
                )
            case CheckpointAnswered(answers):
                actions: list[CheckpointStep] = []
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
            case CheckpointTimerOver():
                return coordinator.timer(transition, now)
            case SnapshotRequested(request_id, properties, directory):
                return coordinator.request(request_id, properties, now, directory)

    # --- events of the job ------------------------------------------------------------------------

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
        """Check that an elastic job does not start from a checkpoint with in-flight data.
        The parallelism of an elastic job changes when slots come or go.  The job would then fail
        for good, so it fails at once instead."""
        is_elastic = self._job_graph.scheduler_mode is SchedulerMode.ADAPTIVE
        if is_elastic and not self.has_completed and has_data_in_flight(given.metadata):
            raise StateRestoreError(
                self._job_graph.job_id,
                f"the checkpoint {given.path} is unaligned: it has data in flight, and cannot be "
                "restored with another parallelism, which an elastic job may get at any time. "
                "Take a savepoint first and start from that, or set "
                f"{SCHEDULER.key} to {SchedulerMode.DEFAULT.name}",
            )

    def adopted(self, transition: t.CheckpointsAdopted, now: float) -> Steps:
        """Continue the checkpoints of an earlier JobMaster, whose tasks keep running. Tasks
        deployed later get the state of the latest checkpoint."""
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

    def status_entered(self, transition: t.StatusEntered, now: float) -> Steps:
        return self._steps(self._coordinator.job_status_changed(transition.status, now))

    def cancel_everything(self, transition: t.CancelEverything, now: float) -> Steps:
        return self._steps(self._coordinator.stop_scheduler(now))

    def attempts_over(self, transition: t.AttemptsOver, now: float) -> Steps:
        """Tell the CheckpointCoordinator which attempts have ended and will not answer any more."""
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

    def prepare_restore(self, cause: str, now: float, *, is_global: bool) -> Steps:
        self._is_next_global |= is_global
        return self._steps(self._coordinator.prepare_restore(cause, now, is_global=is_global))

    def restore(self, transition: t.RestoreState, now: float) -> Steps:
        """Set the state with which new attempts start: that of the latest complete checkpoint."""
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
            restored = self._coordinator.restore(
                vertices,
                {place: subtask.current.attempt_number for place, subtask in subtasks.items()},
                is_global=is_global,
            )
        except StateRestoreError as error:
            return _not_restored(error)
        for place, subtask in subtasks.items():
            if restored.checkpoint_id is not None:
                state = restored.tasks.get(place)
                subtask.current.restored = RestoredTask(
                    restored.checkpoint_id, state, self._goes_on_from_another_job
                )
        self._graph.restores = self._coordinator.restores
        self._apply_max_parallelism(restored.max_parallelism)
        return [*self._steps(restored.actions), *transition.then]

    def _apply_max_parallelism(self, of_state: Mapping[JobVertexID, int]) -> None:
        changed = []
        for vertex in self._graph.vertices:
            wanted = of_state.get(vertex.vertex.vertex_id, vertex.max_parallelism)
            if wanted != vertex.max_parallelism:
                vertex.max_parallelism = wanted
                changed.append(vertex)
        self._outbox.bulk.max_parallelism_changed(changed)

    # --- decisions of the coordinator -------------------------------------------------------------

    def _steps(self, actions: Iterable[CheckpointStep]) -> list[Step]:
        steps: list[Step] = [*actions]
        requested, self._were_requested = self._were_requested, self.requested_under_way
        if requested - self._were_requested:
            steps.append(t.SnapshotIsOver())
        return steps


def _not_restored(error: StateRestoreError) -> Steps:
    """Fail the job without a restart, because the same restore would fail again."""
    return (t.GlobalFailure(Failure(error.text, suppress_restarts=True)),)


def checkpoints_of_job(
    job_graph: JobGraph,
    outbox: Outbox,
    *,
    epoch_offset: float,
    random: Callable[[], float],
    spans: SpanBook,
) -> NoCheckpoints:
    """Create the object that takes the job's checkpoints; if none are configured, it refuses to
    take any. *spans* receives a span for each checkpoint that is complete or has failed. *outbox*
    is told if restored state changes the max parallelism of vertices."""
    if job_graph.checkpoints is None:
        return NoCheckpoints(job_graph)
    return Checkpoints(
        job_graph,
        job_graph.checkpoints,
        outbox,
        epoch_offset=epoch_offset,
        random=random,
        spans=spans,
    )


_MOST = 20
"""Largest number of warnings that are kept.  Each warning is about one state of an operator."""


class PickledStates:
    """Collects the states that tasks have reported as pickled, and warns about each of them
    once."""

    def __init__(self, job_graph: JobGraph) -> None:
        self._operators: dict[str, VertexOperator] = {
            operator.operator_id: operator
            for vertex in job_graph.vertices
            for operator in vertex.operators
        }
        self._warnings: dict[tuple[str, str], str] = {}

    def add(self, states: Iterable[PickledState]) -> None:
        """Add the pickled states that a task has reported, perhaps repeatedly."""
        for state in states:
            place = state.operator_id, state.name
            if place not in self._warnings and len(self._warnings) < _MOST:
                operator = self._operators.get(state.operator_id, state.operator_id)
                self._warnings[place] = (
                    f"state {state.name!r} of operator {operator} has values of "
                    f"{', '.join(state.types)}, which are pickled: a program whose class has "
                    "changed may be unable to read them; use a dataclass, a named tuple or a Row"
                )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings for users, in the order in which the states were reported."""
        return tuple(self._warnings.values())
