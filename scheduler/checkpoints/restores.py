"""Restores tasks, and operator coordinators with their master hooks, from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flinkray.checkpoint.handles import StateLocation, TaskState
from flinkray.checkpoint.metadata import MasterState
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.checkpoints.actions import (
    ResetSubtasks,
    RestoreCoordinators,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.events import CheckpointsFailJob, CheckpointStep
from flinkray.scheduler.checkpoints.failures import StateRestoreError
from flinkray.scheduler.checkpoints.state_assignment import RestoredVertex, StateAssignment
from flinkray.scheduler.checkpoints.stop_with_savepoint import StopWithSavepoint

Actions = list[CheckpointStep]
Task = tuple[JobVertexID, int]
"""(vertex, index of the subtask)"""
Tasks = Mapping[Task, int]
"""Tasks that restart -> number of the new attempt."""

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


@dataclass(frozen=True, slots=True)
class _AwaitedRestore:
    """A restart of tasks that waits until no checkpoint can become complete any more."""

    cause: str
    is_global: bool


class Restores:
    """Computes the state from which restarted tasks start, and tracks whether a restart waits for
    it.

    Args:
        coordinators: ids of the operators that have a coordinator.
    """

    def __init__(
        self,
        job_id: JobID,
        coordinators: tuple[str, ...],
        stop: StopWithSavepoint,
        *,
        allow_non_restored_state: bool,
    ) -> None:
        self._job_id = job_id
        self._coordinators = coordinators
        self._stop = stop
        self._allow_non_restored_state = allow_non_restored_state
        self.of_coordinators = 0
        """How often the operators' coordinators were restored."""
        self.must_be_whole = False
        """Whether checkpoints must share no files, because tasks were restored from a savepoint.
        The savepoint's files do not belong to this job."""
        self._awaited: _AwaitedRestore | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether tasks wait to be restarted, until :meth:`next` returns their state."""
        return self._awaited is not None

    def checkpoint_completed(self) -> None:
        """Allow the next checkpoints to share files with this job's complete checkpoint. After a
        restore from a savepoint, the first checkpoint had to contain all state."""
        self.must_be_whole = False

    def taken_over(self, of_coordinators: int, latest: CompletedCheckpoint | None) -> None:
        """Continue after an earlier JobMaster whose tasks keep running, and which may have restored
        them from *latest*. *of_coordinators*: how often the operators' coordinators have been
        restored."""
        self.of_coordinators = of_coordinators
        if latest is not None:
            self.must_be_whole |= latest.properties.is_savepoint

    def prepare(self, cause: str, *, is_global: bool) -> Actions:
        """Begin to wait for a restart of tasks, for the reason *cause*. *is_global*: all tasks
        restart. Returns the answer to the user who waits for the job to stop (see
        :meth:`not_stopped`)."""
        self._awaited = _AwaitedRestore(cause, is_global)
        return self.not_stopped()

    def not_stopped(self) -> Actions:
        """Return the answer to the user whose job does not stop although its savepoint is complete,
        for example because a task failed while the savepoint was being stored. Empty if no restart
        is awaited, or if no user waits for the answer. If only some tasks were to restart, the
        answer is followed by a failure of the whole job."""
        if self._awaited is None:
            return []
        stopped = self._stop.failed(f"tasks are restarted from it, since {self._awaited.cause}")
        actions: Actions = [*stopped]
        if stopped and not self._awaited.is_global:
            error = stopped[0].error
            assert error is not None
            actions.append(CheckpointsFailJob(error, error.text))
        return actions

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
        tasks: Tasks,
        *,
        is_global: bool,
        is_required: bool,
    ) -> Restored:
        """Return the state with which new attempts of these tasks start; no state if *latest* is
        None. After this call no restart is awaited. *is_global*: coordinators and master hooks are
        restored, too; otherwise coordinators are told which subtasks are reset. *is_required*: a
        checkpoint must exist.

        Raises:
            StateRestoreError: the job does not fit *latest*; or *latest* is None and *is_required*.
        """
        self._awaited = None
        self._stop.over()
        if latest is None:
            if is_required:
                raise StateRestoreError(self._job_id, NO_CHECKPOINTS_LEFT)
            return Restored(None, {}, {}, self._begin_anew(vertices, tasks, is_global=is_global))
        assignment = self._assign(latest, vertices)
        states = {task: assignment.of_subtask(*task) for task in tasks}
        actions: Actions
        if is_global:
            given: dict[str, StateLocation | None] = dict.fromkeys(self._coordinators)
            given.update(assignment.coordinators())
            actions = self._restore_coordinators(
                latest.checkpoint_id, given, latest.metadata.master_states
            )
        else:
            actions = self._reset_subtasks(latest.checkpoint_id, vertices, tasks)
        self.must_be_whole |= latest.properties.is_savepoint
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
        self, vertices: Sequence[RestoredVertex], tasks: Tasks, *, is_global: bool
    ) -> Actions:
        if not is_global:
            return self._reset_subtasks(None, vertices, tasks)
        return self._restore_coordinators(None, dict.fromkeys(self._coordinators), ())

    def _restore_coordinators(
        self,
        checkpoint_id: int | None,
        states: dict[str, StateLocation | None],
        master_states: tuple[MasterState, ...],
    ) -> Actions:
        if not states:
            return []
        self.of_coordinators += 1
        return [RestoreCoordinators(checkpoint_id, states, self.of_coordinators, master_states)]

    def _reset_subtasks(
        self,
        checkpoint_id: int | None,
        vertices: Sequence[RestoredVertex],
        tasks: Tasks,
    ) -> Actions:
        operators = {v.vertex_id: v.operators for v in vertices}
        reset: dict[str, list[tuple[int, int]]] = {}
        for (vertex_id, subtask), attempt_number in tasks.items():
            for operator in operators[vertex_id]:
                if operator.operator_id in self._coordinators:
                    reset.setdefault(operator.operator_id, []).append((subtask, attempt_number))
        if not reset:
            return []
        subtasks = {operator: tuple(of_operator) for operator, of_operator in reset.items()}
        return [ResetSubtasks(checkpoint_id or 0, subtasks)]
