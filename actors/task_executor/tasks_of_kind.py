"""The interface of a TaskExecutor to the components that run its tasks."""

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
    """A task that the slot table has accepted, with everything that its runner needs."""

    attempt_id: ExecutionAttemptID
    deployment: TaskDeployment
    vertex: VertexInformation
    slot_index: int


@dataclass(frozen=True, slots=True)
class AcceptedTasks:
    """Tasks of the same kind in one message of a JobMaster."""

    deployments: TaskDeployments
    """The message. It may also contain tasks of other kinds, and tasks that are refused."""
    tasks: Sequence[AcceptedTask]
    job_master_id: JobMasterId
    blob_server: str | None
    """Address of the server for code that is not in the message."""


class TasksOfKind(ABC):
    """Runs the tasks of some kinds (``Invokable.kind``), on the TaskExecutor's main thread.

    Each task's final state is reported once, as its last report. Calls ignore attempts that do not
    run.
    """

    @abstractmethod
    def start(self, accepted: AcceptedTasks) -> None:
        """Begin to run tasks that a JobMaster has sent in one message."""

    @abstractmethod
    def cancel(self, attempts: Sequence[ExecutionAttemptID]) -> None:
        """Begin to cancel tasks. Idempotent."""

    @abstractmethod
    def fail(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        """End a task as failed, with *cause* as the reason."""

    @abstractmethod
    def order_checkpoint(
        self, order: CheckpointOrder, attempts: Sequence[ExecutionAttemptID]
    ) -> None:
        """Pass a checkpoint order to tasks. Each running task that is told to begin a checkpoint
        will answer: it acknowledges or declines the checkpoint, unless it ends before.
        """

    @abstractmethod
    async def io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        """Return the I/O metrics of the job's tasks. Tasks whose metrics are unknown
        are left out."""

    @abstractmethod
    async def clean_up(self, allocation_id: AllocationID, job_id: JobID) -> None:
        """End processes and drop code that the slot's tasks have left.
        No task runs in the slot any more.
        """

    @abstractmethod
    def led_anew(self, job_id: JobID) -> None:
        """Drop the information that a job's deployments shared: the next JobMaster sends its own,
        under other keys.
        """

    @abstractmethod
    def goes_on(self, job_id: JobID, graph_id: ExecutionGraphID) -> None:
        """Drop everything of the job's execution graphs other than *graph_id*, except running
        tasks, which are cancelled by :meth:`cancel`.
        """

    @abstractmethod
    def forget_job(self, job_id: JobID) -> None:
        """Drop everything of a job.
        Called when the job has nothing here any more, or when its slots are freed.
        """
