"""Computes the state from which tasks, operator coordinators and master hooks start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flinkray.checkpoint.handles import StateLocation, TaskState
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.checkpoints.actions import (
    CheckpointAction,
    ResetCoordinatorSubtasks,
    ResetMasterHooks,
    RestoreCoordinators,
    RestoreMasterHooks,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.master_hooks import MasterHooks
from flinkray.scheduler.checkpoints.restored_vertices import RestoredVertex
from flinkray.scheduler.checkpoints.state_assignment import StateAssignment

Actions = list[CheckpointAction]
Task = tuple[JobVertexID, int]
"""(vertex, index of the subtask)"""

NO_CHECKPOINTS_LEFT = "there is no checkpoint to restore from"


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: the state with which tasks start, and further actions."""

    checkpoint_id: int | None
    """Id of the restored checkpoint; None if there is none and tasks start without state."""
    tasks: dict[Task, TaskState]
    """State of tasks; a task that is missing here has no state."""
    max_parallelism: dict[JobVertexID, int]
    """Max parallelism of the state, by vertex."""
    actions: Actions


class Restores:
    """Computes the state from which a job is restored.

    Args:
        coordinators: ids of the operators that have a coordinator.
    """

    def __init__(
        self,
        job_id: JobID,
        coordinators: tuple[str, ...],
        hooks: MasterHooks,
        *,
        allow_non_restored_state: bool,
    ) -> None:
        self._job_id = job_id
        self._coordinators = coordinators
        self._hooks = hooks
        self._allow_non_restored_state = allow_non_restored_state
        self.of_coordinators = 0
        """How often the operators' coordinators were restored."""

    def check(self, savepoint: CompletedCheckpoint, vertices: Sequence[RestoredVertex]) -> None:
        """Check that the job fits the savepoint.

        Raises:
            StateRestoreError: the job does not fit the savepoint.
        """
        self._assign(savepoint, vertices)

    def next(
        self,
        latest: CompletedCheckpoint | None,
        vertices: Sequence[RestoredVertex],
        tasks: Sequence[Task],
        *,
        is_global: bool,
    ) -> Restored:
        """Return the state of new attempts of these tasks; no state if *latest* is None.
        *is_global*: coordinators and master hooks are restored, too; otherwise coordinators learn
        which subtasks are reset.  Raises StateRestoreError if the job does not fit *latest*."""
        if latest is None:
            return Restored(None, {}, {}, self._begin_anew(vertices, tasks, is_global=is_global))
        assignment = self._assign(latest, vertices)
        states = {task: assignment.of_subtask(*task) for task in tasks}
        actions: Actions
        if is_global:
            given: dict[str, StateLocation | None] = dict.fromkeys(self._coordinators)
            given.update(assignment.coordinators())
            actions = self._restore_coordinators(latest.checkpoint_id, given)
            hooks = self._hooks.states_to_restore(
                self._job_id,
                latest.metadata.master_states,
                allow_non_restored_state=self._allow_non_restored_state,
            )
            if hooks:
                actions.append(RestoreMasterHooks(latest.checkpoint_id, hooks))
        else:
            actions = self._reset_subtasks(latest.checkpoint_id, vertices, tasks)
        found = {task: state for task, state in states.items() if state is not None}
        return Restored(latest.checkpoint_id, found, assignment.max_parallelism, actions)

    def _assign(
        self, checkpoint: CompletedCheckpoint, vertices: Sequence[RestoredVertex]
    ) -> StateAssignment:
        return StateAssignment(
            self._job_id,
            checkpoint.metadata,
            vertices,
            allow_non_restored_state=self._allow_non_restored_state,
        )

    def _begin_anew(
        self, vertices: Sequence[RestoredVertex], tasks: Sequence[Task], *, is_global: bool
    ) -> Actions:
        if not is_global:
            return self._reset_subtasks(None, vertices, tasks)
        actions = self._restore_coordinators(None, dict.fromkeys(self._coordinators))
        if self._hooks.hook_ids:
            actions.append(ResetMasterHooks())
        return actions

    def _restore_coordinators(
        self, checkpoint_id: int | None, states: dict[str, StateLocation | None]
    ) -> Actions:
        if not states:
            return []
        self.of_coordinators += 1
        return [RestoreCoordinators(checkpoint_id, states, self.of_coordinators)]

    def _reset_subtasks(
        self,
        checkpoint_id: int | None,
        vertices: Sequence[RestoredVertex],
        tasks: Sequence[Task],
    ) -> Actions:
        operators = {v.vertex_id: v.operators for v in vertices}
        reset: dict[str, list[int]] = {}
        for vertex_id, subtask in tasks:
            for operator in operators[vertex_id]:
                if operator.operator_id in self._coordinators:
                    reset.setdefault(operator.operator_id, []).append(subtask)
        if not reset:
            return []
        subtasks = {operator: tuple(of_operator) for operator, of_operator in reset.items()}
        return [ResetCoordinatorSubtasks(checkpoint_id, subtasks)]
