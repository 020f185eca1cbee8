"""The endpoint of a task process: runs the tasks of one or several slots of its TaskExecutor."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from functools import partial
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from flinkray.actors.gateways.kv_states import KvStateAnswer, KvStateServerGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.gateways.models import ModelAnswer, ModelReplicaGateway
from flinkray.actors.gateways.task_errors import TaskError
from flinkray.actors.gateways.task_process import (
    PROCESS_MARK,
    TASK_PROCESS_ENDPOINT,
    JobPartition,
    PartitionData,
    TaskProcessArguments,
    TaskProcessGateway,
    TaskProcessHost,
    TaskProcessListenerGateway,
)
from flinkray.actors.gateways.task_reports import (
    MOST_REPORTS,
    TaskReport,
    shortened,
)
from flinkray.actors.shared.deployment_parts import DeployedParts
from flinkray.actors.shared.job_files import JobFiles
from flinkray.actors.shared.leftover_processes import write_note
from flinkray.actors.shared.notifications import BatchedSender
from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.actors.task_process.channel_finder import ProducerStates
from flinkray.actors.task_process.deployed_task import DeployedTask, TaskResources
from flinkray.actors.task_process.kv_state_server import KvStateReporter, KvStateServer
from flinkray.actors.task_process.model_replicas import ModelClients
from flinkray.actors.task_process.model_tasks import ModelTasks
from flinkray.actors.task_process.partitions import ResultPartitions
from flinkray.actors.task_process.stream_task_run import StreamTaskRun
from flinkray.actors.task_process.stream_tasks import StreamTasks
from flinkray.actors.task_process.task import Task
from flinkray.actors.task_process.task_files import TaskFiles
from flinkray.actors.task_process.task_runtime import TaskRuntime, ThreadedRuntime
from flinkray.actors.task_process.user_code import CodeOrigin, UserCode, UserFunction
from flinkray.core.blobs import BlobKey
from flinkray.core.captured_output import note_output
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FlinkRayError, FrameTooLargeError, RpcError
from flinkray.core.ids import AllocationID, ExecutionAttemptID, JobID, JobMasterId, KvStateID
from flinkray.core.job_options import MAX_WAITING_RECORDS, TASK_CANCELLATION_INTERVAL
from flinkray.core.options import QUERYABLE_STATE_SWITCH_INTERVAL
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.scheduler.checkpoints.messages import (
    CheckpointOrder,
)
from flinkray.scheduler.graph.job_graph import MODEL, STREAM
from flinkray.scheduler.shared.io_metrics import TaskIOMetrics
from flinkray.scheduler.shared.tasks import TaskDeployments, TaskExecutionState
from flinkray.state.kv_state_registry import KvStateRegistry
from flinkray.streaming.network import DataAddress

log = logging.getLogger(__name__)

_REPORT_RETRY_DELAY = 0.1
"""Seconds until reports that the TaskExecutor did not take are repeated."""


async def create_task_process(
    rpc_service: RpcService,
    arguments: TaskProcessArguments,
    runtime: TaskRuntime | None = None,
    process_type: type[TaskProcess] | None = None,
) -> TaskProcess:
    """Create the endpoint of a process that runs tasks, connected to its TaskExecutor.
    *process_type* None: :class:`TaskProcess`.
    """
    configuration = ReadableConfig(arguments.configuration)
    apply_rpc_settings(rpc_service, configuration)
    task_executor = await rpc_service.connect(
        arguments.task_executor_address, TaskProcessListenerGateway
    )
    return (process_type or TaskProcess)(
        rpc_service,
        arguments.cluster_id,
        configuration,
        task_executor,
        arguments.storage_dir,
        runtime,
    )


class TaskProcess(RpcEndpoint, TaskProcessGateway, KvStateServerGateway, ModelReplicaGateway):
    """Endpoint of the task process. Ends with its TaskExecutor's process, or with its job."""

    task_type: ClassVar[type[Task]] = Task
    kinds: ClassVar[frozenset[str]] = frozenset({STREAM, MODEL})
    """Kinds of tasks that the process runs. It refuses others."""

    def __init__(
        self,
        rpc_service: RpcService,
        cluster_id: str,
        configuration: ReadableConfig,
        task_executor: TaskProcessListenerGateway,
        storage_dir: str,
        runtime: TaskRuntime | None = None,
    ) -> None:
        """Create the endpoint of a process without tasks.
        *runtime* provides threads, sockets and clock of stream tasks. None means real ones.
        """
        super().__init__(rpc_service, TASK_PROCESS_ENDPOINT)
        self._host = mark_process() if rpc_service.has_own_process else None
        self._is_noted = False
        self._configuration = configuration
        self._interrupt_interval = configuration.get(TASK_CANCELLATION_INTERVAL)
        self._task_executor = task_executor
        self._parts = DeployedParts()
        self._user_code = UserCode(rpc_service)
        self._partitions = ResultPartitions(rpc_service.process_name)
        self._producers = ProducerStates(rpc_service, task_executor.request_partition_state)
        self._files_of = partial(
            TaskFiles, self, storage_dir, configuration.get(MAX_WAITING_RECORDS)
        )
        self._files = JobFiles(
            rpc_service, cluster_id, has_working_directory=rpc_service.has_own_process
        )
        self._runtime: TaskRuntime = runtime or ThreadedRuntime(rpc_service)
        self._kv_states = KvStateRegistry()
        self._kv_state_server = KvStateServer(self._kv_states)
        self._kv_state_reporter = KvStateReporter(
            self,
            self._kv_states,
            task_executor,
            configuration.get(QUERYABLE_STATE_SWITCH_INTERVAL),
        )
        self._model_clients = ModelClients(
            rpc_service,
            ClusterArguments(cluster_id, configuration.to_dict(), storage_dir),
            self._user_code.fetch,
        )
        self._streams = StreamTasks(
            self,
            self._runtime,
            configuration,
            self._partitions,
            self._producers.is_to_come,
            self._files.cached,
            self._files_of,
            lambda answer: self._reports.add((answer,)),
            self._kv_states,
            self._model_clients.replicas,
        )
        self._models = ModelTasks(self, self._runtime, self._kv_states)
        self._tasks: dict[ExecutionAttemptID, Task] = {}
        self._reports: BatchedSender[TaskReport] = BatchedSender(
            self, self._tell, MOST_REPORTS, shortened
        )
        self.terminated.add_done_callback(lambda _: self._abandon())

    async def on_start(self) -> None:
        if self.rpc_service.has_own_process:
            self.schedule_run_async(IMPORT_AHEAD_AFTER, self._import_ahead)

    async def _import_ahead(self) -> None:
        if not self._tasks:
            await self.rpc_service.run_blocking(import_ahead)

    async def on_stop(self) -> None:
        await self._streams.close()
        await self._model_clients.close()
        await self._user_code.close()
        self._files.close()

    def _abandon(self) -> None:
        for task in tuple(self._tasks.values()):
            task.abandon()
        self._files.close()
        self._streams.abandon()

    async def _tell(self, reports: tuple[TaskReport, ...]) -> None:
        """Send reports to the TaskExecutor, repeatedly until it has received them.
        Reports that arrive twice have no effect.

        Raises:
            FrameTooLargeError: the reports do not fit into one message.
        """
        while True:
            try:
                await self._task_executor.tasks_reported(self.rpc_service.process_name, reports)
                return
            except FrameTooLargeError:
                raise  # the sender makes smaller messages
            except RpcError as error:  # if the TaskExecutor is dead, this process soon ends
                log.warning("tasks are reported of again: %s", error)
                await self.rpc_service.pause(_REPORT_RETRY_DELAY)
            except FlinkRayError as error:
                log.info("the TaskExecutor does not take reports of tasks: %s", error)
                return

    async def host(self) -> TaskProcessHost | None:
        return self._host

    async def request_heartbeat(self) -> None:
        """Do nothing: the answer shows that the process lives."""

    # --- tasks ------------------------------------------------------------------------------------

    async def run_tasks(
        self, deployments: TaskDeployments, job_master_id: JobMasterId, blob_server: str | None
    ) -> None:
        if self._host is not None and not self._is_noted:
            self._is_noted = True  # from now on the process may leave something behind
            write_note(self._host)
        self._parts.add(deployments)
        job = self._parts.job(deployments)
        self._refuse_other_kinds(deployments)
        coordinator_owner = deployments.source_coordinator_owner or job_master_id
        self._kv_states.register_listener(job.job_id, self._kv_state_reporter)
        for task in deployments.tasks:
            vertex = self._parts.vertex(deployments.graph_id, task)
            inputs = self._parts.inputs(deployments.graph_id, task)
            deployed = DeployedTask(
                job, deployments.graph_id, vertex, task, inputs, coordinator_owner, blob_server
            )
            self._start(deployed, self._prepare(deployed))

    def _refuse_other_kinds(self, deployments: TaskDeployments) -> None:
        """Raise TaskError if the process cannot run one of the tasks."""
        for task in deployments.tasks:
            vertex = self._parts.vertex(deployments.graph_id, task)
            kind = vertex.invokable.kind
            if kind not in self.kinds:
                name = vertex.task(task.subtask_index)
                raise TaskError(
                    f"{name} is of kind {kind!r}, which no task process of this version runs: "
                    "submit the job again"
                )

    def _prepare(self, deployed: DeployedTask) -> TaskResources:
        """Return the task's resources. The task's results can be requested from now on."""
        if deployed.vertex.invokable.kind == MODEL:
            return self._models.prepare(deployed)
        return self._streams.prepare(deployed)

    def _start(self, deployed: DeployedTask, resources: TaskResources) -> None:
        job_id = deployed.job.job_id
        attempt_id = deployed.attempt_id
        origin = CodeOrigin(job_id, deployed.vertex.invokable.code, deployed.blob_server)

        def report(state: TaskExecutionState) -> None:
            self._reports.add((state,))
            if state.state.is_terminal:
                del self._tasks[attempt_id]
                # report this failure before tasks fail as a consequence
                self._reports.when_sent(lambda: resources.ended(state))

        task = self._tasks[attempt_id] = self.task_type(
            self,
            deployed,
            resources,
            load=_load_nothing if resources.has_finished else partial(self._load, deployed, origin),
            report=report,
            runtime=self._runtime,
            interrupt_interval=deployed.job.cancellation_interval or self._interrupt_interval,
        )
        task.start()

    async def _load(self, deployed: DeployedTask, origin: CodeOrigin) -> UserFunction:
        async def fetch(key: BlobKey) -> bytes:
            return await self._user_code.fetch(origin.job_id, key, origin.blob_server)

        if self.rpc_service.has_own_process:
            note_output(origin.job_id, self.rpc_service.process_name)
        await self._files.provide(origin.job_id, deployed.job.files, fetch)
        return await self._user_code.load(deployed.task.allocation_id, origin)

    async def cancel_tasks(self, attempts: tuple[ExecutionAttemptID, ...]) -> None:
        for attempt_id in attempts:
            task = self._tasks.get(attempt_id)
            if task is not None:
                task.cancel()

    async def fail_task(self, attempt_id: ExecutionAttemptID, cause: str) -> None:
        task = self._tasks.get(attempt_id)
        if task is not None:
            task.fail(cause)

    async def order_checkpoint(
        self, order: CheckpointOrder, attempts: tuple[ExecutionAttemptID, ...]
    ) -> None:
        for attempt_id in attempts:
            self._streams.order_checkpoint(order, attempt_id)

    async def request_io_metrics(self, job_id: JobID) -> tuple[TaskIOMetrics, ...]:
        measured = (
            (attempt_id, task.io_metrics())
            for attempt_id, task in self._tasks.items()
            if task.job_id == job_id
        )
        return tuple(TaskIOMetrics(a, found) for a, found in measured if found is not None)

    # --- what outlives tasks ----------------------------------------------------------------------

    async def free_slot(self, allocation_id: AllocationID, job_id: JobID) -> None:
        self._user_code.free(allocation_id)

    async def release_partitions(self, partitions: tuple[JobPartition, ...]) -> None:
        for partition in partitions:
            self._partitions.remove(partition)
            self._streams.release(partition)

    async def forget_job(self, job_id: JobID) -> None:
        self._parts.forget(job_id)
        self._files.forget(job_id)
        self._kv_states.unregister_listener(job_id)

    async def data_address(self) -> DataAddress:
        return self._streams.data_address()

    async def read_partition(
        self, partition: JobPartition, subpartition: int, position: int, max_bytes: int
    ) -> PartitionData:
        return await self._partitions.read(partition, subpartition, position, max_bytes)

    async def query_kv_state(
        self, kv_state_id: KvStateID, keys_and_namespace: bytes
    ) -> KvStateAnswer:
        return self._kv_state_server.query(kv_state_id, keys_and_namespace)

    async def infer(self, replica: KvStateID, request: bytes, others_wait: bool) -> ModelAnswer:
        return ModelAnswer(await self._models.infer(replica, request, others_wait))


async def _load_nothing() -> UserFunction:
    return StreamTaskRun.end_at_once


IMPORT_AHEAD_AFTER = 3.0
"""Seconds from the start of the process to :func:`import_ahead`.

A job that already waits for the process is deployed before, and is not slowed down. Where jobs
follow one another faster, only those that use the modules load them.
"""
USER_API = "flinkray.datastream"
"""Name of the module with the API for stream jobs, which this package does not import."""


def import_ahead() -> None:
    """Import modules that most jobs need but the process does not, and pandas if it is installed.

    PyArrow imports pandas when it first converts between an array and Python's or NumPy's values.
    Nearly every task that works on columns does this.
    """
    for module in (USER_API, "pyarrow.compute"):
        importlib.import_module(module)
    pa.array([0])


_PR_SET_CHILD_SUBREAPER = 36
"""Constant of Linux: see prctl(2)."""


def mark_process() -> TaskProcessHost:
    """Mark this process, so that its TaskExecutor finds the processes that user code leaves behind.

    Children are in the process's group, or have the mark in their environment if they leave the
    group. Orphaned descendants become children of this process while it lives.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    stat = Path("/proc/self/stat").read_text()
    started = int(stat.rpartition(")")[2].split()[19])
    host = TaskProcessHost(os.getpid(), started, os.stat("/proc/self/ns/pid").st_ino)
    os.environ[PROCESS_MARK] = host.mark
    return host
