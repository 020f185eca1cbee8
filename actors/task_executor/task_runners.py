"""The tasks that a TaskExecutor runs in its own process (Spark executors), and the runner for each
kind of such tasks."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.core import options
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import RpcConnectionError, RpcError
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    JobID,
)
from flinkray.rpc import RpcService
from flinkray.scheduler.graph.job_graph import SPARK, SPARK_SESSION
from flinkray.spark.environment import STANDALONE
from flinkray.spark.executors import StageEndedError, run_executor
from flinkray.spark.gateway import (
    SPARK_DRIVER_ENDPOINT,
    ExecutorSlot,
    SparkExecutorsGateway,
    attempt_name,
    spark_driver_process,
)
from flinkray.spark.processes import end_leftovers, past_attempts, remove_scratch
from flinkray.spark.ray_java import check_ray_starts_java

log = logging.getLogger(__name__)

_CONNECT_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class RunnerTask:
    """A task as a TaskRunner gets it: its ids, its kind, its slot and its configuration."""

    job_id: JobID
    attempt_id: ExecutionAttemptID
    kind: str
    """Kind of the task: its ``Invokable.kind``."""
    allocation_id: AllocationID
    coordinator_attempt: int
    """Attempt of the vertex's operator coordinator (its Spark driver) to which the task belongs.
    Processes of earlier attempts on the node are ended before the task runs.
    """
    configuration: Mapping[str, str] = field(default_factory=dict)
    """Configuration of the task: its ``Invokable.configuration``."""


class TaskRunner(ABC):
    """Runs the tasks of one kind (``Invokable.kind``), on the TaskExecutor's main thread."""

    @abstractmethod
    async def run(self, task: RunnerTask) -> None:
        """Run a task until its end. The task is FINISHED if this returns, FAILED if it raises
        TaskError, and CANCELED if it is cancelled.
        """

    @abstractmethod
    async def clean_up(self, job_id: JobID) -> None:
        """End the processes that the job's tasks have left on the node. Called when a slot in which
        such a task ran is being freed. Returns before the slot is given to another job."""


class SparkExecutorTasks(TaskRunner):
    """Occupies a slot for a Spark executor, and runs the executor there unless Ray does.

    On Ray, RayDP starts the executor in the slot's bundle, and Ray restarts and ends it. On the
    standalone host the task runs the executor as a child of this process until the task ends.

    Processes that an executor forked are ended here, because nothing else ends them. All slots of a
    Spark stage belong together: when one slot is freed, the stage is over. So freeing a slot ends,
    on this node, all processes of the attempts that had an executor here. Processes of other
    attempts are left alone: another stage of the job may run on the same node in its own worker
    group.
    """

    def __init__(
        self, rpc_service: RpcService, host: TaskExecutorHost, bundle_index: int, spark_host: str
    ) -> None:
        """Create the runner. *spark_host* applies to stages that do not choose a host."""
        self._rpc_service = rpc_service
        self._host = host
        self._bundle_index = bundle_index
        self._spark_host = spark_host
        self._attempts: dict[JobID, set[str]] = {}
        """Job id -> attempts with an executor here since the job's slots were last freed."""

    async def run(self, task: RunnerTask) -> None:
        # other components start the process of its function
        if SPARK_SESSION in task.configuration:
            await asyncio.get_running_loop().create_future()
        is_started_here = (
            task.configuration.get(options.SPARK_HOST.key, self._spark_host) == STANDALONE
        )
        if not is_started_here:
            check_ray_starts_java()
        vertex_id, graph_id = task.attempt_id.vertex.job_vertex_id, task.attempt_id.graph_id
        present = (vertex_id, graph_id, task.coordinator_attempt)
        self._attempts.setdefault(task.job_id, set()).add(attempt_name(*present))
        past = await self._rpc_service.run_blocking(past_attempts, task.job_id, *present)
        for attempt in past:
            await self._end_processes(task.job_id, attempt)
        if is_started_here:
            process = spark_driver_process(task.job_id, *present)
            await self._run_executor(process, task.attempt_id.vertex.subtask_index)
        await asyncio.get_running_loop().create_future()  # until it is cancelled

    async def _run_executor(self, driver_process: str, subtask_index: int) -> None:
        """Run a Spark executor until it ends, or return at once if its driver is gone: then the
        JobMaster will cancel the task.

        Raises:
            UnsupportedEnvironmentError, SparkStartError: the executor cannot be started here.
        """
        node, host = self._host.node, self._host
        if host.session_directory is None or host.logs_directory is None:
            raise TaskError("a Spark executor needs the directories of a Ray node")
        slot = ExecutorSlot(
            subtask_index, self._bundle_index, host.actor_id, node.node_id, node.node_ip
        )
        try:
            driver = await self._connect(driver_process)
            await run_executor(driver, slot, host.session_directory, host.logs_directory)
        except (RpcError, StageEndedError) as error:
            log.info("%s is not there any more: %s", driver_process, error)

    async def _connect(self, driver_process: str) -> SparkExecutorsGateway:
        address = f"{driver_process}/{SPARK_DRIVER_ENDPOINT}"
        while True:
            try:
                return await self._rpc_service.connect(address, SparkExecutorsGateway)
            except RpcConnectionError:
                await asyncio.sleep(_CONNECT_INTERVAL)

    async def clean_up(self, job_id: JobID) -> None:
        for attempt in sorted(self._attempts.pop(job_id, ())):
            await self._end_processes(job_id, attempt)

    async def _end_processes(self, job_id: JobID, attempt: str) -> None:
        run_blocking = self._rpc_service.run_blocking
        count = await run_blocking(end_leftovers, job_id, attempt)
        if count:
            log.info("job %s: ended %d processes that its Spark stage left here", job_id, count)
        if self._host.session_directory is not None:
            await run_blocking(remove_scratch, self._host.session_directory, job_id, attempt)


def task_runners(
    rpc_service: RpcService,
    host: TaskExecutorHost,
    bundle_index: int,
    configuration: ReadableConfig,
) -> dict[str, TaskRunner]:
    """Return (``Invokable.kind`` -> runner) of the tasks that a TaskExecutor runs in its own
    process."""
    spark_host = configuration.get(options.SPARK_HOST)
    return {SPARK: SparkExecutorTasks(rpc_service, host, bundle_index, spark_host)}
