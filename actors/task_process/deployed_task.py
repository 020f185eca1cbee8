"""A task as it was deployed, and what a kind of tasks provides for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from flinkray.actors.task_process.context import Cancellation
from flinkray.core.ids import ExecutionAttemptID, ExecutionGraphID, JobMasterId
from flinkray.scheduler.graph.job_graph import ResultMedium
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.tasks import (
    InputInformation,
    JobInformation,
    PartitionLocations,
    TaskDeployment,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)


@dataclass(frozen=True)
class DeployedTask:
    """One attempt, with the parts that it has in common with others."""

    job: JobInformation
    graph_id: ExecutionGraphID
    vertex: VertexInformation
    task: TaskDeployment
    inputs: tuple[PartitionLocations, ...]
    coordinator_owner: JobMasterId
    """The JobMaster that has started the coordinator of the job's sources, which bears its id; it
    may be lost by now."""
    blob_server: str | None
    """From where code comes that is not in the deployment."""

    @property
    def attempt_id(self) -> ExecutionAttemptID:
        return attempt_of(self.graph_id, self.vertex, self.task)

    def inputs_of(
        self, medium: ResultMedium
    ) -> tuple[tuple[InputInformation, PartitionLocations], ...]:
        """Those of the vertex's inputs that are of that medium, and where they are."""
        each = zip(self.vertex.inputs, self.inputs, strict=True)
        return tuple(one for one in each if one[0].medium is medium)

    @property
    def name(self) -> str:
        """``Map (1/2)#0``: subtask from 1, attempt from 0."""
        index, parallelism = self.task.subtask_index + 1, self.vertex.parallelism
        return f"{self.vertex.name} ({index}/{parallelism})#{self.task.attempt_number}"


class TaskResources(Protocol):
    """Of one attempt; on the event loop."""

    @property
    def has_finished(self) -> bool:
        """In the checkpoint that it goes on from, the task had come to its end: its code is not
        run."""

    async def open(self, cancellation: Cancellation) -> Any:
        """What the task's code is called with."""

    async def finish(self) -> None:
        """The code has returned: when this returns, too, the task is FINISHED."""

    async def settle(self) -> None:
        """The task is about to be told of as ended, however it has: when this returns, nothing is
        at work for it any more beside its code."""

    def io_metrics(self) -> IOMetrics | None:
        """Since it began; None: it is not counted, or has not begun."""

    def ended(self, state: TaskExecutionState) -> None:
        """With this state; called once."""
