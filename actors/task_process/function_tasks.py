"""Tasks that run a plain Python function. They exchange bytes by messages, or rows by files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.shared.produced_partitions import (
    ProducedPartition,
    produced_partitions,
)
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.actors.task_process.context import (
    Cancellation,
    OutputPartition,
    TaskContext,
    TaskInput,
)
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.file_results import FileOutput
from flinkray.actors.task_process.partition_reader import PartitionReader
from flinkray.actors.task_process.partitions import HeldPartition, ResultPartitions
from flinkray.actors.task_process.task_files import TaskFiles
from flinkray.scheduler.graph.job_graph import ResultMedium
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    InputInformation,
    PartitionLocations,
    TaskExecutionState,
)


class FunctionTasks:
    """Creates the inputs and outputs of the function tasks of one process."""

    def __init__(
        self,
        reader: PartitionReader,
        partitions: ResultPartitions,
        task_executor: TaskProcessListenerGateway,
        main: MainLoop,
        files: Callable[[DeployedTask], TaskFiles],
    ) -> None:
        self.main = main
        self._files = files
        self.reader = reader
        self.partitions = partitions
        self.task_executor = task_executor

    def prepare(self, deployed: DeployedTask) -> FunctionTaskResources:
        """Return the task's inputs and outputs. The task's results can be read from now on."""
        produced = produced_partitions(
            deployed.job.job_id, deployed.graph_id, deployed.vertex, deployed.task
        )
        channels = [_Channels(self.partitions, self.main, one) for one in produced]
        return FunctionTaskResources(self, deployed, channels, self._files(deployed))


class _Output(ABC):
    @abstractmethod
    async def finish(self) -> None:
        """Note that the result is complete."""

    @abstractmethod
    async def wait_until_read(self) -> None:
        """Return when the result does not need the task any more."""

    @abstractmethod
    def ended(self, state: TaskExecutionState) -> None:
        """Keep or remove the result after the attempt has ended with *state*."""


class _Channels(_Output):
    def __init__(
        self, partitions: ResultPartitions, main: MainLoop, produced: ProducedPartition
    ) -> None:
        self._partitions = partitions
        self._main = main
        self._produced = produced
        self._result = HeldPartition(produced.subpartitions, is_pipelined=produced.is_pipelined)
        partitions.add(produced.partition_id, self._result)

    @property
    def partition(self) -> OutputPartition:
        return OutputPartition(self._result, self._main)

    async def finish(self) -> None:
        self._result.finish()

    async def wait_until_read(self) -> None:
        await self._result.wait_until_read()

    def ended(self, state: TaskExecutionState) -> None:
        if self._produced.is_pipelined or state.state is not ExecutionState.FINISHED:
            self._partitions.remove(self._produced.partition_id)


class _Files(_Output):
    def __init__(self, output: FileOutput) -> None:
        self.output = output

    async def finish(self) -> None:
        await self.output.finish()

    async def wait_until_read(self) -> None:
        """Do nothing: files do not need the task that has written them."""

    def ended(self, state: TaskExecutionState) -> None:
        self.output.ended(state)


class FunctionTaskResources:
    """Inputs and outputs of one attempt of a function task."""

    def __init__(
        self,
        tasks: FunctionTasks,
        deployed: DeployedTask,
        channels: list[_Channels],
        files: TaskFiles,
    ) -> None:
        self._tasks = tasks
        self._deployed = deployed
        self._channels = channels
        self._files = files
        self._outputs: list[_Output] = [*channels, *map(_Files, files.outputs.values())]

    @property
    def has_finished(self) -> bool:
        return False

    async def open(self, cancellation: Cancellation) -> TaskContext:
        deployed = self._deployed
        job, vertex = deployed.job, deployed.vertex
        return TaskContext(
            job.job_id,
            job.job_name,
            vertex.name,
            deployed.attempt_id,
            vertex.parallelism,
            vertex.max_parallelism,
            tuple(self._gate(*one) for one in deployed.inputs_of(ResultMedium.CHANNELS)),
            tuple(output.partition for output in self._channels),
            self._files.inputs,
            tuple(self._files.outputs.values()),
            cancellation,
        )

    def _gate(self, information: InputInformation, locations: PartitionLocations) -> TaskInput:
        tasks, deployed = self._tasks, self._deployed
        return TaskInput(
            deployed.job.job_id,
            tasks.reader,
            information,
            locations,
            deployed.task.subtask_index,
            deployed.vertex.parallelism,
            tasks.main,
        )

    async def finish(self) -> None:
        """Finish the outputs, and wait until pipelined results are read to their end."""
        for output in self._outputs:
            await output.finish()
        for output in self._outputs:
            await output.wait_until_read()

    async def settle(self) -> None:
        """Do nothing: nothing works for the task except its code."""

    def io_metrics(self) -> IOMetrics | None:
        return None

    def ended(self, state: TaskExecutionState) -> None:
        for output in self._outputs:
            output.ended(state)
