"""What a TaskExecutor does for a task, by the task's kind."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass

from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, JobMasterId
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import SPARK
from flinkray.spark.gateway import attempt_name
from flinkray.spark.processes import end_leftovers, past_attempts, remove_scratch
from flinkray.spark.ray_java import check_ray_starts_java

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerTask:
    """A task that a TaskRunner runs, in a slot."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    kind: str
    """``Invokable.kind``."""
    allocation_id: AllocationID
    coordinator_attempt: int
    """The attempt of the vertex's operator coordinator (of its Spark driver) that the task belongs
    to; what earlier ones left on the node is ended before the task runs."""


class TaskRunner(ABC):
    """Runs the tasks of one kind (``Invokable.kind``), on the TaskExecutor's main thread."""

    @abstractmethod
    async def run(self, task: RunnerTask, job_master_id: JobMasterId) -> None:
        """Run a task to its end: returning is FINISHED, a TaskError FAILED, a cancellation
        CANCELED."""

    @abstractmethod
    async def clean_up(self, job_id: JobID) -> None:
        """End what the job's tasks that ran here may have left on the node; called when a slot in
        which such a task ran is being freed, before anybody else can get the slot."""


class SparkExecutorGuard(TaskRunner):
    """Holds a slot for a Spark executor, which Ray runs in the slot's bundle.

    RayDP starts and Ray restarts and ends the executor itself; what nobody else would end are the
    processes that it forked.  All slots of a Spark stage belong together: when one of them is freed
    the stage is over.  So freeing a slot may end all processes on the node of the attempts that had
    an executor here, and does.  It leaves those of others alone: another stage of the job may run
    beside this one, in a worker group of its own that has bundles on the same node.
    """

    def __init__(self, rpc_service: RpcService, session_directory: str | None) -> None:
        self._rpc_service = rpc_service
        self._session_directory = session_directory
        self._attempts: dict[JobID, set[str]] = {}
        """Those that have had an executor here since the job's slots were last freed."""

    async def run(self, task: RunnerTask, job_master_id: JobMasterId) -> None:
        check_ray_starts_java()
        present = (task.attempt_id.vertex.job_vertex_id, job_master_id, task.coordinator_attempt)
        self._attempts.setdefault(task.job_id, set()).add(attempt_name(*present))
        past = await self._rpc_service.run_blocking(past_attempts, task.job_id, *present)
        for attempt in past:
            await self._end_processes(task.job_id, attempt)
        await asyncio.get_running_loop().create_future()  # until it is cancelled

    async def clean_up(self, job_id: JobID) -> None:
        for attempt in sorted(self._attempts.pop(job_id, ())):
            await self._end_processes(job_id, attempt)

    async def _end_processes(self, job_id: JobID, attempt: str) -> None:
        run_blocking = self._rpc_service.run_blocking
        count = await run_blocking(end_leftovers, job_id, attempt)
        if count:
            log.info("job %s: ended %d processes that its Spark stage left here", job_id, count)
        if self._session_directory is not None:
            await run_blocking(remove_scratch, self._session_directory, job_id, attempt)


def task_runners(rpc_service: RpcService, session_directory: str | None) -> dict[str, TaskRunner]:
    """All kinds of tasks that a TaskExecutor can run."""
    return {SPARK: SparkExecutorGuard(rpc_service, session_directory)}
