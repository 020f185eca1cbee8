"""Job vertices, their subtasks, and the attempts to execute these."""

from __future__ import annotations

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.execution import Execution
from flinkray.scheduler.job_graph import JobGraph, JobVertex
from flinkray.scheduler.states import ExecutionState


class ExecutionVertex:
    """A subtask and its current attempt; of earlier ones the exceptions history tells."""

    def __init__(self, vertex: JobVertex, subtask_index: int, now: float) -> None:
        self.vertex_id = ExecutionVertexID(vertex.vertex_id, subtask_index)
        self.task_name = f"{vertex.name} ({subtask_index + 1}/{vertex.parallelism})"
        self.current = self._attempt(0, now)

    def _attempt(self, number: int, now: float) -> Execution:
        return Execution(ExecutionAttemptID(self.vertex_id, number), self.task_name, now)

    def reset_for_new_execution(self, now: float) -> Execution:
        """The next attempt becomes the current one.

        Raises:
            IllegalTransitionError: the current attempt has not ended.
        """
        if not self.current.state.is_terminal:
            raise self.current.story.illegal("be followed by another attempt: it has not ended")
        self.current = self._attempt(self.current.attempt_id.attempt_number + 1, now)
        return self.current


class ExecutionJobVertex:
    """A job vertex: its subtasks in order."""

    def __init__(self, vertex: JobVertex, now: float) -> None:
        self.vertex = vertex
        self.subtasks = tuple(ExecutionVertex(vertex, i, now) for i in range(vertex.parallelism))

    @property
    def executions(self) -> tuple[Execution, ...]:
        """The current attempts, by subtask."""
        return tuple(subtask.current for subtask in self.subtasks)

    @property
    def is_terminal(self) -> bool:
        """Whether every current attempt has ended."""
        return all(execution.state.is_terminal for execution in self.executions)

    @property
    def is_finished(self) -> bool:
        """Whether every subtask is FINISHED."""
        return all(execution.state is ExecutionState.FINISHED for execution in self.executions)

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """The current attempt of that id; None: it is of another vertex or not current (EX-11)."""
        index = attempt_id.vertex.subtask_index
        if attempt_id.vertex.job_vertex_id != self.vertex.vertex_id or not (
            0 <= index < len(self.subtasks)
        ):
            return None
        current = self.subtasks[index].current
        return current if current.attempt_id == attempt_id else None


class ExecutionGraph:
    """All vertices of a job, in the order in which they run."""

    def __init__(self, job_graph: JobGraph, now: float) -> None:
        self.job_graph = job_graph
        self.vertices = tuple(ExecutionJobVertex(vertex, now) for vertex in job_graph.vertices)

    @property
    def is_terminal(self) -> bool:
        """Whether every current attempt of every vertex has ended."""
        return all(vertex.is_terminal for vertex in self.vertices)

    def find(self, attempt_id: ExecutionAttemptID) -> Execution | None:
        """The current attempt of that id."""
        found = (vertex.find(attempt_id) for vertex in self.vertices)
        return next((execution for execution in found if execution is not None), None)
