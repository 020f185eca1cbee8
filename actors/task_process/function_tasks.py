"""Tasks that run a plain Python function, and exchange bytes by calls."""

from __future__ import annotations

from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.shared.produced_partitions import ProducedPartition, produced_partitions
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.actors.task_process.context import (
    Cancellation,
    OutputPartition,
    TaskContext,
    TaskInput,
)
from flinkray.actors.task_process.deployed_task import DeployedTask
from flinkray.actors.task_process.job_services import JobServices
from flinkray.actors.task_process.partition_reader import PartitionReader
from flinkray.actors.task_process.partitions import HeldPartition, ResultPartitions
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState


class FunctionTasks:
    """Of one process."""

    def __init__(
        self,
        reader: PartitionReader,
        partitions: ResultPartitions,
        task_executor: TaskProcessListenerGateway,
        main: MainLoop,
    ) -> None:
        self.main = main
        self.reader = reader
        self.partitions = partitions
        self.task_executor = task_executor

    def prepare(self, deployed: DeployedTask) -> FunctionTaskResources:
        """What a task needs; its results can be read from now on."""
        produced = produced_partitions(
            deployed.job.job_id, deployed.graph_id, deployed.vertex, deployed.task
        )
        partitions = [
            (one, HeldPartition(one.subpartitions, is_pipelined=one.is_pipelined))
            for one in produced
        ]
        for one, partition in partitions:
            self.partitions.add(one.partition_id, partition)
        return FunctionTaskResources(self, deployed, partitions)


class FunctionTaskResources:
    """Of one attempt."""

    def __init__(
        self,
        tasks: FunctionTasks,
        deployed: DeployedTask,
        partitions: list[tuple[ProducedPartition, HeldPartition]],
    ) -> None:
        self._tasks = tasks
        self._deployed = deployed
        self._partitions = partitions

    async def open(self, cancellation: Cancellation) -> TaskContext:
        deployed = self._deployed
        job, vertex, task = deployed.job, deployed.vertex, deployed.task
        return TaskContext(
            job.job_id,
            job.job_name,
            vertex.name,
            deployed.attempt_id,
            vertex.parallelism,
            vertex.max_parallelism,
            tuple(
                TaskInput(
                    job.job_id,
                    self._tasks.reader,
                    information,
                    locations,
                    task.subtask_index,
                    vertex.parallelism,
                    self._tasks.main,
                )
                for information, locations in zip(vertex.inputs, deployed.inputs, strict=True)
            ),
            tuple(
                OutputPartition(partition, self._tasks.main) for _, partition in self._partitions
            ),
            task.restored_state,
            cancellation,
            JobServices(deployed.attempt_id, self._tasks.task_executor, self._tasks.main),
        )

    async def finish(self) -> None:
        """Pipelined results are read to their end."""
        for _, partition in self._partitions:
            partition.finish()
        for _, partition in self._partitions:
            await partition.wait_until_read()

    def io_metrics(self) -> IOMetrics | None:
        return None

    def ended(self, state: TaskExecutionState) -> None:
        for one, _ in self._partitions:
            if one.is_pipelined or state.state is not ExecutionState.FINISHED:
                self._tasks.partitions.remove(one.partition_id)
