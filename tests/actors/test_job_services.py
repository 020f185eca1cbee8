"""Requests of tasks to their JobMaster: input splits, and the state of a producer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.actors.task_process.job_services import JobServices
from flinkray.client.python_job import PythonJobBuilder, PythonVertex
from flinkray.core.errors import (
    FlinkRayError,
    PartitionProducerDisposedError,
    RpcTimeoutError,
)
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionVertexID,
    FencingToken,
    IntermediateDataSetID,
    JobID,
    JobVertexID,
    ResultPartitionID,
)
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobGraph,
    JobType,
    MasterFormat,
    NoRestart,
    ResultPartitionType,
)
from flinkray.scheduler.job.input_splits import InputSplit
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing import TestingGateway
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from flinkray.user_code import dump_function
from tests.actors.conftest import QUICK
from tests.actors.resource_cluster import GRAPH, number

TWO_SLOTS = {**QUICK, "taskmanager.numberOfTaskSlots": "2", "taskmanager.cpu.cores": "1"}
ATTEMPT = ExecutionAttemptID(GRAPH, ExecutionVertexID(number(JobVertexID, 1), 0), 0)


@pytest.fixture
async def two_slots(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    async with MiniCluster(str(tmp_path / "cluster"), configuration=TWO_SLOTS) as cluster:
        yield cluster


async def finished(cluster: MiniCluster, graph: JobGraph) -> JobID:
    job_id = await cluster.submit(graph)
    result = await asyncio.wait_for(cluster.result(job_id), 60)
    assert result.status is JobStatus.FINISHED, result.failure
    return job_id


def note(path: str, numbers: list[int]) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(numbers) + "\n")


def lines(path: Path) -> list[list[int]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class TenNumbers:
    """An input format."""

    def create_input_splits(self, minimum: int) -> list[InputSplit]:
        return [InputSplit(i, b"%d" % i) for i in range(10)]


def reading_splits(builder: PythonJobBuilder, function: Any) -> PythonVertex:
    return builder.add(
        function,
        parallelism=2,
        master_format=MasterFormat(dump_function(lambda: TenNumbers()), makes_splits=True),
    )


async def test_each_input_split_is_read_once_by_a_task_that_asks_for_it(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    """JM-12."""
    path = str(tmp_path / "read")

    def reads(context: Any) -> None:
        while (split := context.wait_for(context.next_input_split())) is not None:
            note(path, [split.number, int(split.data)])

    builder = PythonJobBuilder("splits", restart_strategy=NoRestart())
    reading_splits(builder, reads)
    await finished(two_slots, builder.build())

    assert sorted(lines(Path(path))) == [[i, i] for i in range(10)]


async def test_only_the_splits_of_a_task_that_failed_are_handed_out_again(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    """JM-12: after a local failover."""
    path = str(tmp_path / "read")
    failed = str(tmp_path / "failed")

    def reads(context: Any) -> None:
        me, attempt = context.subtask_index, context.attempt_number
        fails = me == 0 and attempt == 0
        while me == 1 and not Path(failed).exists():  # which it is to read from others
            assert not context.wait_until_cancelled(0.01)
        read = 0
        while (split := context.wait_for(context.next_input_split())) is not None:
            read += 1
            note(path, [me, attempt, split.number])
            if fails and read == 3:
                Path(failed).touch()
                raise ValueError("after three of them")

    builder = PythonJobBuilder("splits", restart_strategy=FixedDelayRestart(1, 0.0))
    reading_splits(builder, reads)
    await finished(two_slots, builder.build())

    read = lines(Path(path))
    lost = [n for me, attempt, n in read if (me, attempt) == (0, 0)]
    kept = [n for me, attempt, n in read if (me, attempt) != (0, 0)]
    assert lost == [0, 1, 2]
    assert sorted(kept) == list(range(10)), "each once by those that finished"


@pytest.mark.parametrize("error", [RpcTimeoutError("no answer"), JobMasterAwayError("it died")])
@on_virtual_time
async def test_input_split_request_whose_answer_is_lost_repeats_its_number(
    error: FlinkRayError,
) -> None:
    """JM-12: otherwise nobody would read the splits of the lost answer."""
    network = LocalNetwork()
    executor = TestingGateway(TaskProcessListenerGateway)
    executor.start(LocalRpcService("executor", network), "taskexecutor")
    asked = []

    def answer(attempt_id: ExecutionAttemptID, number: int) -> InputSplit | None:
        asked.append(number)
        if len(asked) == 1:
            raise error
        return InputSplit(number, b"") if number < 2 else None

    executor.on(TaskProcessListenerGateway.request_next_input_split).calling(answer)
    process = LocalRpcService("process", network)
    gateway = await process.connect(executor.address, TaskProcessListenerGateway)
    services = JobServices(ATTEMPT, gateway, MainLoop(process.loop))

    splits = [await services.next_input_split() for _ in range(3)]

    assert asked == [0, 0, 1, 2]
    assert [split and split.number for split in splits] == [0, 1, None]


def tells_its_id(folder: Path) -> Any:
    """A task that writes its attempt's id there; its first attempt fails when it is to."""
    path = str(folder)

    async def tells(context: Any) -> None:
        ids = Path(path, f"attempt-{context.attempt_number}")
        ids.with_suffix(".new").write_bytes(context.attempt_id.to_bytes())
        ids.with_suffix(".new").rename(ids)
        await eventually(Path(path, "fail").exists, 300, "the order to fail")
        if context.attempt_number > 0:
            await asyncio.get_running_loop().create_future()
        raise ValueError("as it was told")

    return tells


async def attempt_of(folder: Path, number: int) -> ExecutionAttemptID:
    path = folder / f"attempt-{number}"
    await eventually(path.exists, 150, f"attempt {number}")
    return ExecutionAttemptID.from_bytes(path.read_bytes())


async def job_master(cluster: MiniCluster) -> JobMasterGateway:
    """The only one."""
    await eventually(lambda: cluster.processes("SlotPool"), 50, "a SlotPool")
    (name,) = cluster.processes("JobMaster")
    (endpoint,) = cluster.network.services[name].endpoints()
    token = getattr(endpoint, "fencing_token", None)
    assert isinstance(token, FencingToken)
    return await cluster.client.connect(endpoint.address, JobMasterGateway, token)


@on_virtual_time
async def test_state_of_a_producer_is_returned_only_for_its_current_attempt(
    tmp_path: Path,
) -> None:
    """JM-13."""

    async def produces(context: Any) -> None:
        if context.attempt_number == 0:
            raise ValueError("once more")

    tells = tells_its_id(tmp_path)

    async def reads(context: Any) -> None:
        await tells(context)

    async with MiniCluster(str(tmp_path), configuration=TWO_SLOTS) as cluster:
        builder = PythonJobBuilder(
            "two", job_type=JobType.BATCH, restart_strategy=FixedDelayRestart(1, 0.0)
        )
        producer, reader = builder.add(produces), builder.add(reads)
        builder.connect(producer, reader, result_type=ResultPartitionType.BLOCKING)
        graph = builder.build()
        job_id = await cluster.submit(graph)
        while True:
            vertices = (await cluster.details(job_id)).vertices
            if vertices and vertices[1].executions[0].state is ExecutionState.RUNNING:
                break
            await asyncio.sleep(0.01)  # virtual
        master = await job_master(cluster)
        data_set = graph.vertices[0].results[0].data_set_id

        graph_id = (await attempt_of(tmp_path, 0)).graph_id
        state = await master.request_partition_state(ResultPartitionID(graph_id, data_set, 0, 1))

        assert state is ExecutionState.FINISHED
        with pytest.raises(ValueError, match="no partition"):
            await master.request_partition_state(
                ResultPartitionID(GRAPH, number(IntermediateDataSetID, 9), 0, 0)
            )
        with pytest.raises(PartitionProducerDisposedError):
            await master.request_partition_state(ResultPartitionID(graph_id, data_set, 0, 0))
