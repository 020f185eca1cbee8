"""What a TaskExecutor asks of whatever runs its tasks, whichever kind they are of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, JobMasterId
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
    def forget_job(self, job_id: JobID) -> None:
        """Its JobMaster is gone, or it has nothing here any more."""
