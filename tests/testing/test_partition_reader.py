"""How long a reader looks for a partition that is not there."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_process import (
    JobPartition,
    PartitionData,
    PartitionPlaces,
    ResultPartitionNotFoundError,
    TaskProcessGateway,
    TaskProcessListenerGateway,
)
from flinkray.actors.task_process.channel_finder import ProducerStates
from flinkray.core.errors import (
    FlinkRayError,
    PartitionProducerDisposedError,
    RecipientUnreachableError,
)
from flinkray.core.ids import (
    IntermediateDataSetID,
    JobID,
    ResourceID,
    ResultPartitionID,
    WorkerGroupId,
)
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.shared.slots import WorkerLocation
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import PartitionLocations, pack_numbers
from flinkray.testing import TestingGateway
from flinkray.testing.partition_reader import PartitionReader
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.resource_cluster import GRAPH, number

JOB, DATA_SET = number(JobID, 1), number(IntermediateDataSetID, 1)
PARTITION = ResultPartitionID(GRAPH, DATA_SET, 0, 0)


class Surroundings:
    """A reader, and a TaskExecutor that has its partition after a number of seconds."""

    def __init__(self, *, there_after: float, states: list[ExecutionState | Exception]) -> None:
        network = LocalNetwork()
        self._begin = asyncio.get_running_loop().time()
        self._there_after = there_after
        self._states = states
        self.questions: list[tuple[JobID, ResultPartitionID]] = []
        self._process = TestingGateway(TaskProcessGateway)
        self._process.on(TaskProcessGateway.read_partition).calling(self._read)
        self._process.start(LocalRpcService("process", network), "taskprocess")
        executor = TestingGateway(TaskProcessListenerGateway)
        executor.on(TaskProcessListenerGateway.find_partitions).calling(self._find)
        executor.start(LocalRpcService("executor", network), "taskexecutor")
        location = WorkerLocation(
            ResourceID("executor"), executor.address, "n", "127.0.0.1", 1, WorkerGroupId("g"), 0
        )
        self.locations = PartitionLocations(
            GRAPH, DATA_SET, 0, (location,), pack_numbers([0]), pack_numbers([0])
        )
        service = LocalRpcService("reader", network)
        producers = ProducerStates(service, self._state)
        self.reader = PartitionReader(service, 0.1, 10.0, producers.is_to_come)

    @property
    def seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._begin

    def _find(self, job_id: JobID, data_set_id: IntermediateDataSetID) -> PartitionPlaces:
        if self.seconds < self._there_after:
            return PartitionPlaces((), ())
        return PartitionPlaces((self._process.address,), ((PARTITION,),))

    def _read(
        self, wanted: JobPartition, subpartition: int, position: int, _: int
    ) -> PartitionData:
        return PartitionData((b"data",) if position == 0 else (), is_end=True)

    async def _state(self, job_id: JobID, partition: ResultPartitionID) -> ExecutionState:
        self.questions.append((job_id, partition))
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        if isinstance(state, Exception):
            raise state
        return state

    async def read(self) -> list[bytes]:
        pieces = self.reader.pieces(JOB, self.locations, 0, 0)
        return [data async for piece in pieces for data in piece]


@on_virtual_time
async def test_reader_waits_for_a_partition_while_its_producer_is_being_deployed() -> None:
    """JM-13, TM-26: however long its process takes to start."""
    around = Surroundings(there_after=300.0, states=[ExecutionState.DEPLOYING])
    assert await around.read() == [b"data"]
    assert around.seconds >= 300
    assert set(around.questions) == {(JOB, PARTITION)}


@on_virtual_time
async def test_reader_gives_up_a_partition_that_its_running_producer_does_not_have() -> None:
    """TM-26, JM-13."""
    around = Surroundings(there_after=300.0, states=[ExecutionState.RUNNING])
    with pytest.raises(ResultPartitionNotFoundError):
        await around.read()
    assert 10 <= around.seconds <= 21
    assert len(around.questions) == 1


@on_virtual_time
async def test_reader_gives_up_a_partition_whose_producer_was_replaced() -> None:
    """JM-13."""
    around = Surroundings(
        there_after=300.0,
        states=[
            ExecutionState.SCHEDULED,
            PartitionProducerDisposedError(str(PARTITION), "its second"),
        ],
    )
    with pytest.raises(ResultPartitionNotFoundError):
        await around.read()
    assert len(around.questions) == 2


@pytest.mark.parametrize(
    "error", [JobMasterAwayError("it died"), RecipientUnreachableError("it died just now")]
)
@on_virtual_time
async def test_unanswered_question_for_the_producer_state_of_a_partition_is_repeated(
    error: FlinkRayError,
) -> None:
    """Otherwise the reader would fail its job, of which only the JobMaster has died."""
    around = Surroundings(there_after=40.0, states=[error, error, ExecutionState.DEPLOYING])
    assert await around.read() == [b"data"]
    assert len(around.questions) > 3


@on_virtual_time
async def test_partition_that_is_available_in_time_is_read_without_asking_for_its_producer() -> (
    None
):
    around = Surroundings(there_after=3.0, states=[ExecutionState.RUNNING])
    assert await around.read() == [b"data"]
    assert around.questions == []


@on_virtual_time
async def test_many_readers_of_a_partition_ask_for_its_producer_state_one_at_a_time() -> None:
    around = Surroundings(there_after=30.0, states=[ExecutionState.DEPLOYING])
    await asyncio.gather(*(around.read() for _ in range(50)))
    assert len(around.questions) < 5
