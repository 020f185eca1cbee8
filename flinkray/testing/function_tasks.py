"""Runs functions of tests as tasks, in the task processes of a MiniCluster or SimulatedCluster.

Such tasks replace stream tasks where a test is about the control plane: they need neither threads
nor sockets, start no StreamCoordinator, and exchange bytes by messages. A vertex with such tasks is
made by :mod:`flinkray.testing.function_jobs`. Processes of real clusters refuse them.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from flinkray.actors.gateways.task_process import TaskProcessArguments
from flinkray.actors.gateways.task_reports import not_ready
from flinkray.actors.shared.produced_partitions import ProducedPartition, produced_partitions
from flinkray.actors.task_process.code_failure import (
    Cancellation,
    CodeFailure,
    TaskCancelledError,
)
from flinkray.actors.task_process.deployed_task import DeployedTask, TaskResources
from flinkray.actors.task_process.endpoint import TaskProcess, create_task_process
from flinkray.actors.task_process.file_results import FileInput, FileOutput
from flinkray.actors.task_process.partitions import HeldPartition
from flinkray.actors.task_process.task import Task
from flinkray.actors.task_process.task_runtime import RunningCode
from flinkray.core import network_options
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.file_results import read_batches
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.scheduler.checkpoints.messages import CheckpointOrder, TriggerCheckpoint
from flinkray.scheduler.graph import distribution
from flinkray.scheduler.graph.job_graph import PYTHON, TASK_PROCESS_KINDS, ResultMedium
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import InputInformation, PartitionLocations, TaskExecutionState
from flinkray.testing.partition_reader import PartitionReader

T = TypeVar("T")

FUNCTION_TASK_PROCESS = f"{__name__}:create_function_task_process"
"""Factory of task processes that also run functions of tests."""


async def create_function_task_process(
    rpc_service: RpcService, arguments: TaskProcessArguments
) -> TaskProcess:
    """Create a task process that also runs functions of tests."""
    return await create_task_process(rpc_service, arguments, process_type=FunctionTaskProcess)


class _CoroutineCode:
    """The call of a coroutine function by a task; it runs on the event loop of its process."""

    def __init__(self, endpoint: RpcEndpoint, coroutine: Coroutine[Any, Any, object]) -> None:
        self.returned: asyncio.Future[CodeFailure | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._task = endpoint.create_task(self._run(coroutine))

    async def _run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        failure: CodeFailure | None = None
        try:
            await coroutine
        except BaseException as error:  # noqa: BLE001 - whatever the function raised
            failure = CodeFailure.of(error)
        if not self.returned.done():
            self.returned.set_result(failure)

    def interrupt(self) -> None:
        self._task.cancel()


class FunctionTask(Task):
    """A task whose code may be a coroutine function, which then runs on the event loop."""

    def _begin(self, code: Callable[..., Any], context: Any) -> RunningCode:
        if not inspect.iscoroutinefunction(code):
            return super()._begin(code, context)
        running = _CoroutineCode(self._endpoint, code(context))
        self._cancellation.listen(running.interrupt)
        return running


class FunctionTaskProcess(TaskProcess):
    """A task process that also runs functions of tests."""

    task_type: ClassVar[type[Task]] = FunctionTask
    kinds: ClassVar[frozenset[str]] = TASK_PROCESS_KINDS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._functions: set[ExecutionAttemptID] = set()
        self.reader = PartitionReader(
            self.rpc_service,
            self._configuration.get(network_options.REQUEST_BACKOFF_INITIAL),
            self._configuration.get(network_options.REQUEST_BACKOFF_MAX),
            self._producers.is_to_come,
        )
        """Reads results of functions in other processes."""

    def _prepare(self, deployed: DeployedTask) -> TaskResources:
        if deployed.vertex.invokable.kind != PYTHON:
            return super()._prepare(deployed)
        self._functions.add(deployed.attempt_id)
        return _FunctionResources(self, deployed)

    async def order_checkpoint(
        self, order: CheckpointOrder, attempts: tuple[ExecutionAttemptID, ...]
    ) -> None:
        """Pass the order to the stream tasks of this process. Tasks that run functions of tests
        decline every checkpoint."""
        functions = [a for a in attempts if a in self._functions and a in self._tasks]
        await super().order_checkpoint(order, attempts)
        if isinstance(order, TriggerCheckpoint):
            for attempt_id in functions:
                job_id = self._tasks[attempt_id].job_id
                self._reports.add((not_ready(job_id, order, attempt_id, "it is a function"),))

    async def forget_job(self, job_id: JobID) -> None:
        await super().forget_job(job_id)
        self.reader.forget_job(job_id)


class _FunctionResources(TaskResources):
    """The inputs and outputs of one attempt of a function task. Other tasks can read the outputs as
    soon as this object exists."""

    def __init__(self, process: FunctionTaskProcess, deployed: DeployedTask) -> None:
        self._process = process
        self._deployed = deployed
        self._files = process._files_of(deployed)
        self._partitions: list[tuple[ProducedPartition, HeldPartition]] = []
        for produced in produced_partitions(
            deployed.job.job_id, deployed.graph_id, deployed.vertex, deployed.task
        ):
            held = HeldPartition(produced.subpartitions, is_pipelined=produced.is_pipelined)
            process._partitions.add(produced.partition_id, held)
            self._partitions.append((produced, held))

    @property
    def has_finished(self) -> bool:
        return False

    async def open(self, cancellation: Cancellation) -> TaskContext:
        return TaskContext(
            self._process,
            self._deployed,
            cancellation,
            tuple(OutputPartition(held) for _, held in self._partitions),
            tuple(ReadFiles(one, self._process.rpc_service) for one in self._files.inputs),
            tuple(
                WrittenFiles(one, self._process.rpc_service) for one in self._files.outputs.values()
            ),
        )

    async def finish(self) -> None:
        """Mark the outputs as complete, and wait until readers have read pipelined results to their
        end."""
        for _, held in self._partitions:
            held.finish()
        for output in self._files.outputs.values():
            await output.finish()
        for _, held in self._partitions:
            await held.wait_until_read()

    async def settle(self) -> None:
        """Do nothing: a function task has no work in the background that must end first."""

    def io_metrics(self) -> IOMetrics | None:
        return None

    def ended(self, state: TaskExecutionState) -> None:
        for produced, _ in self._partitions:
            if produced.is_pipelined or state.state is not ExecutionState.FINISHED:
                self._process._partitions.remove(produced.partition_id)
        for output in self._files.outputs.values():
            output.ended(state)


class OutputPartition:
    """The part of a result that this task sends to its readers."""

    def __init__(self, partition: HeldPartition) -> None:
        self._partition = partition

    @property
    def number_of_subpartitions(self) -> int:
        """The number of subpartitions: one for each subtask that reads the partition."""
        return self._partition.number_of_subpartitions

    async def write(self, subpartition: int, data: bytes) -> None:
        """Send *data* as one buffer to the reader of *subpartition*. If the result is pipelined and
        the reader is slow, wait for it."""
        await self._partition.write(subpartition, bytes(data))


class TaskInput:
    """One input of a function task: those partitions of the producing vertex that this task
    reads."""

    def __init__(
        self,
        process: FunctionTaskProcess,
        deployed: DeployedTask,
        information: InputInformation,
        locations: PartitionLocations,
    ) -> None:
        way = information.pattern, information.producer_parallelism, deployed.vertex.parallelism
        subtask = deployed.task.subtask_index
        group = distribution.group_of_consumer(*way, subtask)
        self.partitions = distribution.partitions_of_group(*way, group)
        """Indices of the producers' subtasks that this task reads."""
        self._subpartition = distribution.subpartition_of(*way, subtask)
        self._job_id = deployed.job.job_id
        self._reader = process.reader
        self._locations = locations

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        """Yield the buffers that the producer of *partition* has written for this task, in order.

        Raises:
            ResultPartitionNotFoundError: the partition cannot be read, or no longer.
        """
        pieces = self._reader.pieces(self._job_id, self._locations, partition, self._subpartition)
        async for piece in pieces:
            for buffer in piece:
                yield buffer

    async def read_all(self) -> list[bytes]:
        """Read the buffers of all producers concurrently, and return them: first all of the first
        producer, then all of the second, and so on."""

        async def collect(partition: int) -> list[bytes]:
            return [data async for data in self.read(partition)]

        parts = await asyncio.gather(*map(collect, self.partitions))
        return [data for part in parts for data in part]


class ReadFiles:
    """One input of the vertex that is a result in files: the files that this task is to read."""

    def __init__(self, files: FileInput, rpc_service: RpcService) -> None:
        self._files = files
        self._run_blocking = rpc_service.run_blocking

    async def read(self) -> AsyncIterator[pa.RecordBatch]:
        """Yield this task's rows.

        Raises:
            ResultPartitionNotFoundError: files are gone. The vertex that wrote them will run again.
        """
        batches = self._batches()
        while (batch := await self._run_blocking(next, batches, None)) is not None:
            yield batch

    def _batches(self) -> Iterator[pa.RecordBatch]:
        share = self._files.share()
        with self._files.telling_what_is_lost():
            yield from read_batches(share)


class WrittenFiles:
    """A result in files, to which this task adds its part."""

    def __init__(self, files: FileOutput, rpc_service: RpcService) -> None:
        self._files = files
        self._run_blocking = rpc_service.run_blocking

    async def write(self, data: pa.RecordBatch) -> None:
        """Add rows to the result. All rows of a result must have the same columns."""
        await self._run_blocking(self._files.write, data)


class TaskContext:
    """Argument of the function of a vertex: identity, inputs, outputs and cancellation of the task
    that calls the function. Created once for each attempt of each subtask."""

    def __init__(
        self,
        process: FunctionTaskProcess,
        deployed: DeployedTask,
        cancellation: Cancellation,
        outputs: tuple[OutputPartition, ...],
        file_inputs: tuple[ReadFiles, ...],
        file_outputs: tuple[WrittenFiles, ...],
    ) -> None:
        self.job_id = deployed.job.job_id
        self.vertex_name = deployed.vertex.name
        self.attempt_id = deployed.attempt_id
        self.subtask_index = deployed.task.subtask_index
        self.attempt_number = deployed.task.attempt_number
        self.inputs = tuple(
            TaskInput(process, deployed, *one) for one in deployed.inputs_of(ResultMedium.CHANNELS)
        )
        """Inputs that are read through messages, in the order of the vertex's inputs."""
        self.outputs = outputs
        """Results that are sent by messages, in the order of the vertex's results."""
        self.file_inputs = file_inputs
        self.file_outputs = file_outputs
        self._loop = asyncio.get_running_loop()
        self._cancellation = cancellation
        self._is_cancelled = threading.Event()
        cancellation.listen(self._is_cancelled.set)

    @property
    def is_cancelled(self) -> bool:
        """Whether the task should end as soon as possible."""
        return self._is_cancelled.is_set()

    def wait_until_cancelled(self, timeout: float | None = None) -> bool:
        """Wait until the task is cancelled, at most *timeout* seconds (None: no limit); return
        whether it is. For functions that are not async."""
        return self._is_cancelled.wait(timeout)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run an async method of this context, wait for its end, and return its result. For
        functions that are not async.

        Raises:
            TaskCancelledError: the task is being cancelled.
        """
        call = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        self._loop.call_soon_threadsafe(self._cancellation.listen, call.cancel)
        try:
            return call.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise TaskCancelledError from None
