"""What a TaskExecutor asks of whatever runs its tasks, whichever kind they are of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    JobID,
    JobMasterId,
)
from flinkray.scheduler.checkpoints.messages import CheckpointOrder
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import TaskDeployment, TaskDeployments, VertexInformation


@dataclass(frozen=True, slots=True)
class AcceptedTask:
    """A task that the slot table has taken."""

    attempt_id: ExecutionAttemptID
    deployment: TaskDeployment
    vertex: VertexInformation
    slot_index: int


class TasksOfKind(ABC):
    """Runs the tasks of some kinds (``Invokable.kind``), on the TaskExecutor's main thread.

    It tells each task's states, its final one last and once.  Attempts that do not run are passed
    over.
    """

    @abstractmethod
    def start(
        self,
        deployments: TaskDeployments,
        tasks: Sequence[AcceptedTask],
        job_master_id: JobMasterId,
        blob_server: str | None,
    ) -> None:
        """Run tasks that came in one message."""

    @abstractmethod
    def cancel(self, attempts: Sequence[ExecutionAttemptID]) -> None:
        """Idempotent."""

    @abstractmethod
    def fail(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        """End a task as failed."""

    @abstractmethod
    def order_checkpoint(
        self, order: CheckpointOrder, attempts: Sequence[ExecutionAttemptID]
    ) -> None:
        """Tell tasks of a checkpoint; each that is told to begin one answers, or has ended."""

    @abstractmethod
    async def io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        """What the tasks of a job have read and written, as far as it is known."""

    @abstractmethod
    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """No task runs in the slot any more: end what those that did have left behind."""

    @abstractmethod
    def led_anew(self, job_id: JobID) -> None:
        """The next deployments of the job are another JobMaster's, which numbers what they have in
        common in its own way."""

    @abstractmethod
    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """What other execution graphs of the job have left here is of no use; tasks of theirs that
        run are told by :meth:`cancel`."""

    @abstractmethod
    def forget_job(self, job_id: JobID) -> None:
        """It has nothing here any more, or its JobMaster wants nothing of it."""
