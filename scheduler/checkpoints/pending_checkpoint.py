"""Defines PendingCheckpoint: a checkpoint in progress, with the acknowledgements received so
far."""

from __future__ import annotations

from enum import Enum

from flinkray.checkpoint.handles import (
    OperatorStateMode,
    OperatorSubtaskState,
    StateLocation,
    TaskState,
)
from flinkray.checkpoint.metadata import (
    CheckpointedEdge,
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    MasterState,
)
from flinkray.core.errors import IllegalTransitionError
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.scheduler.checkpoints.plan import CheckpointPlan, PlannedVertex
from flinkray.scheduler.checkpoints.trigger_decisions import CheckpointRequest


class PendingPhase(Enum):
    """Phase of a pending checkpoint.
    Operator coordinators, with their master hooks, are asked before the tasks."""

    COORDINATORS = "coordinators"
    TASKS = "tasks"
    STORING = "storing"
    OVER = "over"


class Acknowledgement(Enum):
    """What a pending checkpoint answers to an acknowledgement that it receives."""

    SUCCESS = "success"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"
    """The sender does not take part in the checkpoint."""
    OVER = "over"
    """The checkpoint was aborted."""


class PendingCheckpoint:
    """A checkpoint in progress, which collects acknowledgements. It is complete when all tasks and
    operator coordinators have acknowledged."""

    def __init__(
        self,
        job_id: JobID,
        checkpoint_id: int,
        request: CheckpointRequest,
        plan: CheckpointPlan,
        *,
        number: int,
        begun_at: float,
        timestamp: int,
        directory: str,
        coordinators: tuple[str, ...],
    ) -> None:
        """Make a checkpoint that no task or coordinator has acknowledged yet. *number*: how many
        checkpoints the job has tried to take so far. *coordinators*: ids of the operators with a
        coordinator."""
        self._job_id = job_id
        self.checkpoint_id = checkpoint_id
        self.request = request
        self.properties = request.properties
        self.plan = plan
        self.number = number
        self.begun_at = begun_at
        """Monotonic seconds when the checkpoint began."""
        self.timestamp = timestamp
        self.directory = directory
        self.coordinators = coordinators
        self.phase = PendingPhase.COORDINATORS
        self._tasks: dict[ExecutionAttemptID, TaskState | None] = {}
        self._coordinators: dict[str, StateLocation | None] = {}
        self._master_states: list[MasterState] = []

    # --- acknowledgements -------------------------------------------------------------------------

    def acknowledge_task(
        self, attempt_id: ExecutionAttemptID, state: TaskState | None
    ) -> Acknowledgement:
        if self.phase is PendingPhase.OVER:
            return Acknowledgement.OVER
        if attempt_id not in self.plan.running or not self.is_triggered:
            return Acknowledgement.UNKNOWN
        if attempt_id in self._tasks:
            return Acknowledgement.DUPLICATE
        self._tasks[attempt_id] = state
        return Acknowledgement.SUCCESS

    def acknowledge_coordinator(
        self,
        operator_id: str,
        state: StateLocation | None,
        master_states: tuple[MasterState, ...] = (),
    ) -> Acknowledgement:
        if self.phase is PendingPhase.OVER:
            return Acknowledgement.OVER
        if operator_id not in self.coordinators:
            return Acknowledgement.UNKNOWN
        if operator_id in self._coordinators:
            return Acknowledgement.DUPLICATE
        self._coordinators[operator_id] = state
        self._master_states += master_states
        return Acknowledgement.SUCCESS

    @property
    def are_coordinators_acknowledged(self) -> bool:
        return len(self._coordinators) == len(self.coordinators)

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether all tasks and operator coordinators have acknowledged (CP-26)."""
        return self.are_coordinators_acknowledged and len(self._tasks) == len(self.plan.running)

    @property
    def is_triggered(self) -> bool:
        """Whether the tasks have been told to take the checkpoint."""
        return self.phase in (PendingPhase.TASKS, PendingPhase.STORING)

    @property
    def number_acknowledged(self) -> int:
        """How many tasks have acknowledged."""
        return len(self._tasks)

    def awaited_tasks(self) -> list[ExecutionAttemptID]:
        """Return the task attempts that have not acknowledged yet."""
        return [attempt for attempt in self.plan.running if attempt not in self._tasks]

    def unknown_operator(self, attempt_id: ExecutionAttemptID, state: TaskState) -> str | None:
        """Return the id of an operator in *state* that the task does not run; None if there is
        none."""
        vertex, _ = self.plan.running[attempt_id]
        known = {operator.operator_id for operator in self.plan.vertices[vertex].operators}
        return next((each for each in state.operators if each not in known), None)

    # --- the end ----------------------------------------------------------------------------------

    def abort(self) -> list[StateLocation]:
        """Abort the checkpoint.  Returns the received state, which the caller must discard.
        A second call returns nothing (CP-24)."""
        if self.phase is PendingPhase.OVER:
            return []
        self.phase = PendingPhase.OVER
        locations = [location for location in self._coordinators.values() if location is not None]
        for state in self._tasks.values():
            if state is not None:
                locations += locations_of(state)
        return locations

    def lost_by_finished_tasks(self) -> str | None:
        """Return why the checkpoint, although fully acknowledged, cannot be completed; None if it
        can. It cannot if it would lack the union state of finished subtasks: after a restore, every
        subtask must get the elements of all subtasks."""
        for attempt, state in self._tasks.items():
            vertex = self.plan.vertices[self.plan.running[attempt][0]]
            if state is None or not vertex.finished:
                continue
            for operator in vertex.operators:
                of_operator = state.operators.get(operator.operator_id)
                if of_operator is not None and _has_union_state(of_operator):
                    return (
                        f"the operator {operator} has union state, and some of its subtasks have "
                        "finished"
                    )
        return None

    def finalize(self) -> CheckpointMetadata:
        """Return the metadata to be stored, and enter the phase STORING.

        Raises:
            IllegalTransitionError: acknowledgements are missing, or the checkpoint was aborted.
        """
        if self.phase is PendingPhase.OVER or not self.is_fully_acknowledged:
            raise IllegalTransitionError(
                f"checkpoint {self.checkpoint_id} of job {self._job_id} cannot be stored: it is "
                f"{self.phase.value}, and {len(self.awaited_tasks())} tasks have not acknowledged"
            )
        self.phase = PendingPhase.STORING
        places = {place: attempt for attempt, place in self.plan.running.items()}
        operators = tuple(
            self._operator(number, vertex, index, places)
            for number, vertex in enumerate(self.plan.vertices)
            for index in range(len(vertex.operators))
        )
        return CheckpointMetadata(
            self._job_id,
            self.checkpoint_id,
            self.timestamp,
            self.properties.kind,
            operators,
            tuple(self._master_states),
            edges=self._edges_with_data(operators),
        )

    def _edges_with_data(
        self, operators: tuple[CheckpointedOperator, ...]
    ) -> tuple[CheckpointedEdge, ...]:
        inputs: set[tuple[str, int]] = set()
        results: set[tuple[str, int]] = set()
        for operator in operators:
            for subtask in operator.subtasks:
                state, of = subtask.state, operator.operator_id
                inputs.update((of, handle.gate) for handle in state.input_channels)
                results.update((of, handle.gate) for handle in state.result_subpartitions)
        return tuple(
            edge
            for vertex in self.plan.vertices
            for edge in vertex.edges
            if (edge.reader, edge.gate) in inputs or (edge.writer, edge.result) in results
        )

    def _operator(
        self,
        number: int,
        vertex: PlannedVertex,
        index: int,
        places: dict[tuple[int, int], ExecutionAttemptID],
    ) -> CheckpointedOperator:
        operator = vertex.operators[index]
        subtasks = []
        for subtask in range(vertex.parallelism):
            state, is_finished = OperatorSubtaskState(), subtask in vertex.finished
            if not is_finished:
                of_task = self._tasks[places[number, subtask]]
                if of_task is not None:
                    state = of_task.operators.get(operator.operator_id, state)
                    is_finished = of_task.is_finished
            if is_finished or not state.is_empty:
                subtasks.append(CheckpointedSubtask(subtask, state, is_finished))
        return CheckpointedOperator(
            operator.operator_id,
            operator.name,
            operator.uid,
            vertex.parallelism,
            vertex.max_parallelism,
            tuple(subtasks),
            self._coordinators.get(operator.operator_id),
        )


def _has_union_state(state: OperatorSubtaskState) -> bool:
    return any(
        named.mode is OperatorStateMode.UNION
        for handle in state.operator_state
        for named in handle.states
    )


def locations_of(state: TaskState) -> list[StateLocation]:
    """Return the locations of all state of a task."""
    return [location for each in state.operators.values() for location in each.locations()]
