"""The endpoint of a task process: runs the tasks of one or several slots of its TaskExecutor."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from flinkray.actors.batches import MOST_STATES, Batches
from flinkray.actors.settings import apply_rpc_settings
from flinkray.actors.task_process.context import (
    Cancellation,
    InputGate,
    OutputPartition,
    TaskContext,
)
from flinkray.actors.task_process.deployed_parts import DeployedParts
from flinkray.actors.task_process.gateway import (
    TASK_PROCESS_ENDPOINT,
    JobPartition,
    PartitionData,
    TaskProcessArguments,
    TaskProcessGateway,
    TaskProcessListenerGateway,
)
from flinkray.actors.task_process.job_services import JobServices
from flinkray.actors.task_process.partition_reader import PartitionReader
from flinkray.actors.task_process.partitions import ResultPartition, ResultPartitions
from flinkray.actors.task_process.produced import produced_partitions
from flinkray.actors.task_process.task import Task
from flinkray.actors.task_process.user_code import CodeOrigin, UserCode
from flinkray.core import options
from flinkray.core.config import Configuration
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.scheduler.states import ExecutionState
from flinkray.scheduler.tasks import (
    JobInformation,
    PartitionLocations,
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
)

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.1
"""Seconds until states are reported again that the TaskExecutor did not take."""


async def create_task_process(
    rpc_service: RpcService, arguments: TaskProcessArguments
) -> TaskProcess:
    """Factory of the process."""
    configuration = Configuration(arguments.configuration)
    apply_rpc_settings(rpc_service, configuration)
    task_executor = await rpc_service.connect(
        arguments.task_executor_address, TaskProcessListenerGateway
    )
    return TaskProcess(rpc_service, configuration, task_executor)


class TaskProcess(RpcEndpoint, TaskProcessGateway):
    """Dies with the process of its TaskExecutor, which has started it."""

    def __init__(
        self,
        rpc_service: RpcService,
        configuration: Configuration,
        task_executor: TaskProcessListenerGateway,
    ) -> None:
        super().__init__(rpc_service, TASK_PROCESS_ENDPOINT)
        self._interrupt_interval = configuration.get(options.TASK_CANCELLATION_INTERVAL)
        self._task_executor = task_executor
        self._parts = DeployedParts()
        self._user_code = UserCode(rpc_service)
        self._partitions = ResultPartitions(rpc_service.process_name)
        self._reader = PartitionReader(
            rpc_service,
            configuration.get(options.REQUEST_BACKOFF_INITIAL),
            configuration.get(options.REQUEST_BACKOFF_MAX),
            producer_state=task_executor.request_partition_state,
        )
        self._tasks: dict[ExecutionAttemptID, Task] = {}
        self._reports: Batches[TaskExecutionState] = Batches(self, self._tell, MOST_STATES)

    async def on_stop(self) -> None:
        await self._user_code.close()

    async def _tell(self, states: tuple[TaskExecutionState, ...]) -> None:
        """Until it is told; repetitions do no harm."""
        while True:
            try:
                await self._task_executor.task_states_changed(self.rpc_service.process_name, states)
                return
            except RpcError as error:  # if it is dead, this process is soon
                log.warning("task states are reported again: %s", error)
                await asyncio.sleep(_REPORT_RETRY_DELAY)
            except FlinkRayError as error:
                log.info("the TaskExecutor does not take task states: %s", error)
                return

    # --- tasks ------------------------------------------------------------------------------------

    async def run_tasks(self, deployments: TaskDeployments, blob_server: str | None) -> None:
        self._parts.add(deployments)
        job = self._parts.job(deployments)
        for deployment in deployments.tasks:
            vertex = self._parts.vertex(job.job_id, deployment)
            inputs = self._parts.inputs(job.job_id, deployment)
            self._start(job, vertex, deployment, inputs, blob_server)

    def _start(
        self,
        job: JobInformation,
        vertex: VertexInformation,
        deployment: TaskDeployment,
        inputs: tuple[PartitionLocations, ...],
        blob_server: str | None,
    ) -> None:
        attempt_id = attempt_of(vertex, deployment)
        origin = CodeOrigin(job.job_id, vertex.invokable.code, blob_server)
        produced = produced_partitions(job.job_id, vertex, deployment)
        partitions = tuple(
            ResultPartition(p.subpartitions, is_pipelined=p.is_pipelined) for p in produced
        )
        for one, partition in zip(produced, partitions, strict=True):
            self._partitions.add(one.partition_id, partition)

        def open_context(cancellation: Cancellation) -> TaskContext:
            return TaskContext(
                job.job_id,
                job.job_name,
                vertex.name,
                attempt_id,
                vertex.parallelism,
                vertex.max_parallelism,
                tuple(
                    InputGate(
                        job.job_id,
                        self._reader,
                        information,
                        locations,
                        deployment.subtask_index,
                        vertex.parallelism,
                    )
                    for information, locations in zip(vertex.inputs, inputs, strict=True)
                ),
                tuple(map(OutputPartition, partitions)),
                deployment.restored_state,
                cancellation,
                JobServices(attempt_id, self._task_executor),
            )

        async def finish() -> None:
            for partition in partitions:
                partition.finish()
            for partition in partitions:
                await partition.wait_until_read()

        def report(state: TaskExecutionState) -> None:
            if state.state.is_terminal:
                del self._tasks[attempt_id]
                for one in produced:
                    if one.is_pipelined or state.state is not ExecutionState.FINISHED:
                        self._partitions.remove(one.partition_id)
            self._reports.add((state,))

        task = self._tasks[attempt_id] = Task(
            self,
            job.job_id,
            attempt_id,
            load=partial(self._user_code.load, deployment.allocation_id, origin),
            open_context=open_context,
            finish=finish,
            report=report,
            interrupt_interval=self._interrupt_interval,
        )
        task.start()

    async def cancel_tasks(self, attempts: tuple[ExecutionAttemptID, ...]) -> None:
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                task.cancel()

    async def fail_task(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        task = self._tasks.get(attempt_id)
        if task is not None:
            task.fail(cause)

    # --- what outlives tasks ----------------------------------------------------------------------

    async def free_slot(self, allocation_id: AllocationID, job_id: JobID) -> None:
        self._user_code.free(allocation_id)

    async def release_partitions(self, partitions: tuple[JobPartition, ...]) -> None:
        for partition in partitions:
            self._partitions.remove(partition)

    async def forget_job(self, job_id: JobID) -> None:
        self._parts.forget(job_id)
        self._reader.forget_job(job_id)

    async def read_partition(
        self, partition: JobPartition, subpartition: int, position: int, max_bytes: int
    ) -> PartitionData:
        return await self._partitions.read(partition, subpartition, position, max_bytes)
