"""A task process with tasks of one vertex; what they read and who reads them is the test's.

Threads, sockets and files are real.  The TaskExecutor only records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from flinkray.actors.gateways.stream_coordinator import (
    STREAM_COORDINATOR_ENDPOINT,
    StreamCoordinatorGateway,
    stream_coordinator_process,
)
from flinkray.actors.gateways.task_process import (
    ChannelPlaces,
    JobPartition,
    TaskProcessListenerGateway,
)
from flinkray.actors.gateways.task_reports import TaskReport, is_end
from flinkray.actors.task_process.endpoint import TaskProcess
from flinkray.checkpoint.handles import TaskState
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    IntermediateDataSetID,
    JobID,
    JobMasterId,
    JobVertexID,
    ResourceID,
    ResultPartitionID,
    WorkerGroupId,
)
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    CheckpointOrder,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.graph.job_graph import (
    DistributionPattern,
    Invokable,
    JobVertex,
    ResultPartitionType,
)
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import (
    ConsumerInformation,
    InputInformation,
    JobInformation,
    PartitionLocations,
    RestoredTask,
    ResultInformation,
    SharedPart,
    TaskDeployment,
    TaskDeployments,
    TaskExecutionState,
    VertexInformation,
    attempt_of,
    pack_numbers,
)
from flinkray.streaming.network import (
    ChannelSource,
    NetworkEnvironment,
    ResultPartition,
)
from flinkray.streaming.records.elements import Barrier, Block, Element
from flinkray.testing import TestingGateway
from tests.streaming.network.networks import Reading

JOB = JobID(b"j" * 16)
GRAPH = ExecutionGraphID(b"g" * 16)
MASTER = JobMasterId(b"m" * 16)
VERTEX = JobVertexID(b"v" * 16)
_PRODUCER = JobVertexID(b"p" * 16)
_INPUT = IntermediateDataSetID(b"i" * 16)
_RESULT = IntermediateDataSetID(b"r" * 16)
_MOST_SUBTASKS = 2


class ProcessUnderTest:
    """See the module.  An asynchronous context.

    Args:
        vertex: with one input and one result at most, by channels.
        producers: how many subtasks the vertex reads.
        options: of the cluster.
    """

    def __init__(
        self,
        directory: Path,
        vertex: JobVertex,
        *,
        producers: int = 1,
        max_parallelism: int = 128,
        is_exactly_once: bool = True,
        inline_threshold: int | None = None,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.directory = directory
        self._options = options
        self._vertex = vertex
        self._producers = producers if vertex.inputs else 0
        self._max_parallelism = max_parallelism
        self._is_exactly_once = is_exactly_once
        self._inline_threshold = inline_threshold
        self.coordinator = TestingGateway(StreamCoordinatorGateway)
        """Of the sources; a test says what it answers."""
        self.reports: list[TaskReport] = []
        self._reported = asyncio.Event()
        self._attempts = 0

    async def __aenter__(self) -> ProcessUnderTest:
        network = LocalNetwork()
        self.executor = TestingGateway(TaskProcessListenerGateway)
        self.executor.on(TaskProcessListenerGateway.tasks_reported).calling(self._report)
        self.executor.on(TaskProcessListenerGateway.find_channels).calling(self._places)
        self.executor.start(LocalRpcService("executor", network), "executor")
        coordinator = LocalRpcService(stream_coordinator_process(JOB, MASTER), network)
        self.coordinator.start(coordinator, STREAM_COORDINATOR_ENDPOINT)
        service = LocalRpcService("process", network)
        access = service.socket_access
        self._environment = NetworkEnvironment(
            "test", access.secret, host=access.host, node_id=access.node_id
        )
        self.process = TaskProcess(
            service,
            "cluster",
            ReadableConfig(
                {"execution.checkpointing.data-inline-threshold": "0b", **self._options}
            ),
            await service.connect(self.executor.address, TaskProcessListenerGateway),
            str(self.directory),
        )
        self.process.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process._tasks:
            await self.process.cancel_tasks((self.attempt_id,))
            await self.ended()
        self.process.close()
        await self.process.terminated
        await asyncio.to_thread(self._environment.close)

    def _partition(self, number: int) -> ResultPartition:
        return self._environment.create_partition(
            JobPartition(JOB, self._input(number)),
            f"producer {number}",
            _MOST_SUBTASKS,
            buffer_timeout=0,
        )

    def _input(self, number: int) -> ResultPartitionID:
        return ResultPartitionID(GRAPH, _INPUT, number, self._attempts)

    def _places(self, job_id: JobID, data_set_id: IntermediateDataSetID) -> ChannelPlaces:
        partitions = tuple(map(self._input, range(self._producers)))
        return ChannelPlaces((self._environment.address,), (partitions,))

    def _report(self, process_name: str, reports: tuple[TaskReport, ...]) -> None:
        self.reports += reports
        self._reported.set()

    # --- the task -----------------------------------------------------------------------------

    async def run(
        self,
        restored: RestoredTask | None = None,
        subtask: int = 0,
        parallelism: int = 1,
        *,
        job_master_id: JobMasterId = MASTER,
    ) -> ExecutionAttemptID:
        """One more attempt; returns when it is RUNNING.  What it reads begins anew.  MASTER has
        started the coordinator, whoever deploys the task."""
        self._attempts += 1
        self.inputs = [self._partition(number) for number in range(self._producers)]
        information = self._information(parallelism)
        task = TaskDeployment(
            1,
            subtask,
            self._attempts,
            AllocationID(b"a" * 16),
            (2,) if self._producers else (),
            restored,
        )
        job = JobInformation(
            JOB,
            "job",
            is_exactly_once=self._is_exactly_once,
            inline_threshold=self._inline_threshold,
        )
        version = self._attempts
        parts = [SharedPart(0, version, job), SharedPart(1, version, information)]
        if self._producers:
            parts.append(SharedPart(2, version, self._locations()))
        owner = None if job_master_id == MASTER else MASTER
        deployments = TaskDeployments(JOB, GRAPH, 0, tuple(parts), (task,), owner)
        self.attempt_id = attempt_of(GRAPH, information, task)
        await self.process.run_tasks(deployments, job_master_id, None)
        running = await self.next_report()
        assert running == TaskExecutionState(JOB, self.attempt_id, ExecutionState.RUNNING)
        return self.attempt_id

    def _information(self, parallelism: int) -> VertexInformation:
        vertex = self._vertex
        pattern = DistributionPattern.ALL_TO_ALL
        inputs = InputInformation(
            _INPUT, ResultPartitionType.PIPELINED_BOUNDED, pattern, _PRODUCER, self._producers
        )
        results = ResultInformation(
            _RESULT,
            ResultPartitionType.PIPELINED_BOUNDED,
            (ConsumerInformation(pattern, 1, self._max_parallelism),),
        )
        return VertexInformation(
            VERTEX,
            vertex.name,
            parallelism,
            self._max_parallelism,
            vertex.invokable,
            (inputs,) if vertex.inputs else (),
            (results,) if vertex.results else (),
        )

    def _locations(self) -> PartitionLocations:
        location = WorkerLocation(
            ResourceID("e"), self.executor.address, "node", "ip", 1, WorkerGroupId("g"), 0
        )
        places = pack_numbers([0] * self._producers)
        attempts = pack_numbers([self._attempts] * self._producers)
        return PartitionLocations(GRAPH, _INPUT, 0, (location,), places, attempts)

    def put(self, producer: int, *elements: Element) -> None:
        subtask = self.attempt_id.vertex.subtask_index
        for element in elements:
            self.inputs[producer].subpartitions[subtask].put(element)

    def result_partitions(self) -> list[ResultPartition]:
        """Of the latest attempt."""
        resources = self.process._streams._running[self.attempt_id]
        return [partition for _, partition in resources._partitions]

    async def read_results(self) -> None:
        """Begin to read what the latest attempt puts out."""
        subtask = self.attempt_id.vertex.subtask_index
        partition_id = ResultPartitionID(GRAPH, _RESULT, subtask, self._attempts)
        address = await self.process.data_address()
        source = ChannelSource(JobPartition(JOB, partition_id), 0, address)
        gate = self._environment.create_gate("consumer", [source])
        self._reading = await asyncio.to_thread(Reading, gate)

    async def next_result(self) -> Any:
        """The values of a block; or another element."""
        _, element = await asyncio.to_thread(self._reading.next)
        return list(element.values) if isinstance(element, Block) else element

    async def results(self, number: int) -> list[Any]:
        """So many values."""
        found: list[Any] = []
        while len(found) < number:
            found += await self.next_result()
        return found

    def data_processed(self) -> None:
        """Tell the writing task that the reading task has processed all its data."""
        self._reading.gate.end_data(0)

    async def rest_of_results(self) -> list[Element]:
        return await asyncio.to_thread(self._reading.rest)

    # --- what it reports ----------------------------------------------------------------------

    async def next_report(self, wanted: Callable[[TaskReport], bool] = lambda _: True) -> Any:
        """The first that has not been taken yet, of those that are wanted."""
        while True:
            for report in self.reports:
                if wanted(report):
                    self.reports.remove(report)
                    return report
            self._reported.clear()
            await asyncio.wait_for(self._reported.wait(), 30)

    async def answer(self) -> AcknowledgeCheckpoint | DeclineCheckpoint:
        found: AcknowledgeCheckpoint | DeclineCheckpoint = await self.next_report(
            lambda report: not isinstance(report, TaskExecutionState)
        )
        return found

    async def state(self, checkpoint_id: int) -> TaskState | None:
        """What it acknowledges that checkpoint with."""
        answer = await self.answer()
        assert isinstance(answer, AcknowledgeCheckpoint), answer
        assert answer.checkpoint_id == checkpoint_id
        assert answer.attempt_id == self.attempt_id
        return answer.state

    async def ended(self) -> TaskExecutionState:
        found: TaskExecutionState = await self.next_report(is_end)
        return found

    async def cancel(self) -> None:
        """And wait for its end."""
        await self.process.cancel_tasks((self.attempt_id,))
        assert (await self.ended()).state is ExecutionState.CANCELED

    async def thread_ended(self) -> None:
        """Wait until the task's thread has returned, whatever goes on beside it."""
        thread = self.process._tasks[self.attempt_id]._code
        if thread is not None:
            await asyncio.wait([thread.returned])

    # --- checkpoints --------------------------------------------------------------------------

    async def order(self, order: CheckpointOrder) -> None:
        await self.process.order_checkpoint(order, (self.attempt_id,))

    def barrier(self, checkpoint_id: int, latest_completed: int = 0, **kind: Any) -> Barrier:
        return Barrier(
            checkpoint_id,
            0,
            directory=self._checkpoint(checkpoint_id),
            latest_completed=latest_completed,
            **kind,
        )

    def trigger(
        self,
        checkpoint_id: int,
        properties: CheckpointProperties | None = None,
        latest_completed: int = 0,
    ) -> TriggerCheckpoint:
        return TriggerCheckpoint(
            checkpoint_id,
            0,
            properties or CheckpointProperties(SnapshotKind.CHECKPOINT),
            self._checkpoint(checkpoint_id),
            latest_completed,
            is_whole=False,
        )

    def _checkpoint(self, checkpoint_id: int) -> str:
        return str(self.directory / JOB.hex() / f"chk-{checkpoint_id}")

    def files(self) -> list[Path]:
        """Of all checkpoints."""
        return sorted(path for path in self.directory.rglob("*") if path.is_file())


def without_code(vertex: JobVertex) -> JobVertex:
    """The same, and what is unpickled of it fails."""
    invokable = vertex.invokable
    return replace(vertex, invokable=Invokable(invokable.kind, b"", invokable.configuration))
