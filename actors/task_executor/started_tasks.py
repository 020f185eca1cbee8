"""The tasks that a TaskExecutor has started, and the report of them for the next JobMaster."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from flinkray.actors.task_executor.tasks_of_kind import AcceptedTask
from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID, KvStateID
from flinkray.core.kv_states import KvStateRegistration
from flinkray.scheduler.checkpoints.messages import AwaitCheckpoint
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.taking_over import (
    ReportedGraph,
    ReportedTask,
    TaskExecutorReport,
)
from flinkray.scheduler.shared.tasks import (
    SharedPart,
    TaskDeployment,
    TaskExecutionState,
    VertexInformation,
)


@dataclass(slots=True)
class StartedTask:
    """An attempt that was started, with its deployment and the shared information that the
    deployment referred to. Later deployments may bring newer versions of this information.
    """

    attempt_id: ExecutionAttemptID
    deployment: TaskDeployment
    vertex: SharedPart
    inputs: tuple[SharedPart, ...]
    state: ExecutionState = ExecutionState.DEPLOYING
    """The last reported state."""
    awaits: AwaitCheckpoint | None = None
    """The task's report that it awaits a checkpoint at the end of its input.
    None if it does not.
    """
    acknowledged: int = 0
    """The latest checkpoint for which the task has written its state. 0 if there is none."""
    stops_with: int | None = None
    """The checkpoint after which the task was ordered to stop. None if it was not."""
    kv_states: dict[KvStateID, KvStateRegistration] = field(default_factory=dict)
    """The queryable states of the task."""

    @property
    def name(self) -> str:
        """The name of the vertex with the number of the subtask, such as ``Map (1/2)``."""
        return self.information.task(self.deployment.subtask_index)

    @property
    def information(self) -> VertexInformation:
        assert isinstance(self.vertex.content, VertexInformation)
        return self.vertex.content

    def accepted(self, slot_index: int) -> AcceptedTask:
        """Return the task for its runner. This object then drops the state from which the task is
        restored, to free memory, and keeps only its checkpoint id."""
        accepted = AcceptedTask(self.attempt_id, self.deployment, self.information, slot_index)
        restored = self.deployment.restored
        if restored is not None:
            self.deployment = replace(self.deployment, restored=replace(restored, state=None))
        return accepted


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that ran here and has ended, with its final state."""

    task: StartedTask
    state: TaskExecutionState

    @property
    def number(self) -> int:
        """The number of the attempt."""
        return self.task.attempt_id.attempt_number


def reported_graphs(
    last: ExecutionGraphID | None, running: Iterable[StartedTask], ended: Iterable[EndedTask]
) -> tuple[ReportedGraph, ...]:
    """Return the tasks and the information that they share, by execution graph, for a report to a
    JobMaster. The shared parts get new keys, because one key of the deployments may have stood for
    several versions. *last*: the graph of the attempt that was started last, which is reported even
    if its tasks were dropped."""
    graphs = {} if last is None else {last: _Graph()}
    for task in running:
        graphs.setdefault(task.attempt_id.graph_id, _Graph()).add(task, None)
    for one in ended:
        graphs.setdefault(one.task.attempt_id.graph_id, _Graph()).add(one.task, one.state)
    return tuple(
        ReportedGraph(graph_id, tuple(graph.parts.values()), tuple(graph.tasks))
        for graph_id, graph in graphs.items()
    )


class _Graph:
    def __init__(self) -> None:
        self.parts: dict[tuple[int, int], SharedPart] = {}
        """Parts by key and version."""
        self.tasks: list[ReportedTask] = []

    def add(self, task: StartedTask, end: TaskExecutionState | None) -> None:
        deployment = replace(
            task.deployment,
            vertex=self._key_of(task.vertex),
            inputs=tuple(map(self._key_of, task.inputs)),
        )
        state = task.state if end is None else end.state
        is_stopping = task.stops_with is not None
        awaits = None if task.awaits is None else task.awaits.after
        self.tasks.append(
            ReportedTask(deployment, state, end, is_stopping, awaits, task.acknowledged)
        )

    def _key_of(self, part: SharedPart) -> int:
        known = self.parts.get((part.key, part.version))
        if known is None:
            known = SharedPart(len(self.parts), 0, part.content)
            if isinstance(part.content, VertexInformation):
                invokable = replace(part.content.invokable, code=b"")
                known = replace(known, content=replace(part.content, invokable=invokable))
            self.parts[part.key, part.version] = known
        return known.key


def without_texts(report: TaskExecutorReport) -> TaskExecutorReport:
    """Return a copy of the report with shortened texts of failures."""
    return replace(report, graphs=tuple(map(_graph_without_texts, report.graphs)))


def _graph_without_texts(graph: ReportedGraph) -> ReportedGraph:
    tasks = (
        task if task.ended is None else replace(task, ended=task.ended.shortened())
        for task in graph.tasks
    )
    return replace(graph, tasks=tuple(tasks))
