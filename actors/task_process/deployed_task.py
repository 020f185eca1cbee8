"""A deployed task, and the interface of the resources with which it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from flinkray.actors.task_process.code_failure import Cancellation
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
    """One attempt of a task, with the information that its deployment shares with others."""

    job: JobInformation
    graph_id: ExecutionGraphID
    vertex: VertexInformation
    task: TaskDeployment
    inputs: tuple[PartitionLocations, ...]
    coordinator_owner: JobMasterId
    """The JobMaster that has started the coordinator of the job's sources.
    The coordinator's name contains its id. This JobMaster may be lost by now.
    """
    blob_server: str | None
    """Address of the server for code that is not in the deployment."""

    @property
    def attempt_id(self) -> ExecutionAttemptID:
        return attempt_of(self.graph_id, self.vertex, self.task)

    def inputs_of(
        self, medium: ResultMedium
    ) -> tuple[tuple[InputInformation, PartitionLocations], ...]:
        """Return (input, locations of its partitions) of each input that comes through *medium*:
        channels or files."""
        each = zip(self.vertex.inputs, self.inputs, strict=True)
        return tuple(one for one in each if one[0].medium is medium)

    @property
    def name(self) -> str:
        """The name of the attempt, such as ``Map (1/2)#0``.
        Subtasks are counted from 1, attempts from 0.
        """
        index, parallelism = self.task.subtask_index + 1, self.vertex.parallelism
        return f"{self.vertex.name} ({index}/{parallelism})#{self.task.attempt_number}"


class TaskResources(Protocol):
    """Inputs, outputs and services of one attempt. Used on the event loop."""

    @property
    def has_finished(self) -> bool:
        """Whether the task had finished in the restored checkpoint. Its code is not run then."""

    async def open(self, cancellation: Cancellation) -> Any:
        """Prepare the resources, and return the argument with which the task's code is called."""

    async def finish(self) -> None:
        """Finish the outputs after the code has returned.
        The task is FINISHED once this returns.
        """

    async def settle(self) -> None:
        """Wait until no other thread and no call works for the task any more. Called before the end
        of the task is reported, in any final state."""

    def io_metrics(self) -> IOMetrics | None:
        """Return what the attempt has read and written.
        None if it has not begun or is not measured.
        """

    def ended(self, state: TaskExecutionState) -> None:
        """Clean up after the attempt has ended with *state*. Called once."""
