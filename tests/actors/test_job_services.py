"""What tasks ask of their JobMaster: inputs, global aggregates, the state of a producer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.actors.gateways.task_errors import JobMasterAwayError
from flinkray.actors.gateways.task_process import TaskProcessListenerGateway
from flinkray.actors.task_process.code_loop import MainLoop
from flinkray.actors.task_process.job_services import JobServices
from flinkray.client.python_job import PythonJobBuilder, PythonVertex, python_job
from flinkray.core import cloud_pickle
from flinkray.core.errors import (
    AttemptDisposedError,
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
from flinkray.streaming.functions.functions import AggregateFunction
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


class Total(AggregateFunction[int, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


async def test_global_aggregate_update_returns_the_running_value_of_its_name(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    """JM-16."""
    path = str(tmp_path / "seen")

    async def adds(context: Any) -> None:
        total = Total()
        seen = [await context.update_global_aggregate("a", value, total) for value in (1, 2, 3, 4)]
        seen.append(await context.update_global_aggregate("b", 7, total))
        note(path, seen)

    await finished(two_slots, python_job(adds, restart_strategy=NoRestart()))

    assert lines(Path(path)) == [[1, 3, 6, 10, 7]]


async def test_global_aggregates_are_shared_by_all_tasks_and_outlive_their_attempts(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    """JM-16."""
    path = str(tmp_path / "seen")

    async def adds(context: Any) -> None:
        seen = await context.update_global_aggregate("all", 1, Total())
        note(path, [seen])
        if context.attempt_number == 0:
            raise ValueError("once more")

    graph = python_job(adds, parallelism=2, restart_strategy=FixedDelayRestart(2, 0.0))
    await finished(two_slots, graph)

    assert sorted(lines(Path(path))) == [[1], [2], [3], [4]]


async def test_aggregate_function_error_is_raised_in_the_task_and_adds_nothing(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    path = str(tmp_path / "seen")

    async def adds(context: Any) -> None:
        with pytest.raises(ValueError, match="negative"):
            await context.update_global_aggregate("a", -1, Total())
        seen = await context.update_global_aggregate("a", 5, Total())
        note(path, [seen])

    await finished(two_slots, python_job(adds, restart_strategy=NoRestart()))

    assert lines(Path(path)) == [[5]]


async def test_aggregate_update_repeated_after_a_lost_answer_counts_once(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    """JM-16: the JobMaster knows the numbers of an attempt's updates."""
    await two_slots.submit(python_job(tells_its_id(tmp_path)))
    update = (await job_master(two_slots)).update_global_aggregate
    function, one = dump_function(lambda _: Total()), dumps(1)
    attempt = await attempt_of(tmp_path, 0)

    first = await update(attempt, 0, "a", one, function)
    again = await update(attempt, 0, "a", one, function)
    second = await update(attempt, 1, "a", one, function)

    assert (first, again, second) == (one, one, dumps(2))


async def test_late_duplicate_of_an_aggregate_update_is_refused(
    two_slots: MiniCluster, tmp_path: Path
) -> None:
    """JM-16: the update arrives twice, the second time by a slow connection."""
    await two_slots.submit(
        python_job(tells_its_id(tmp_path), restart_strategy=FixedDelayRestart(1, 0.0))
    )
    update = (await job_master(two_slots)).update_global_aggregate
    function, one = dump_function(lambda _: Total()), dumps(1)
    attempt = await attempt_of(tmp_path, 0)

    assert await update(attempt, 0, "a", one, function) == one
    assert await update(attempt, 1, "a", one, function) == dumps(2)
    with pytest.raises(FlinkRayError, match="too late"):
        await update(attempt, 0, "a", one, function)
    (tmp_path / "fail").touch()
    again = await attempt_of(tmp_path, 1)
    assert await update(again, 0, "a", one, function) == dumps(3)
    with pytest.raises(AttemptDisposedError):
        await update(attempt, 2, "a", one, function)
    of_another_job_master = replace(again, graph_id=GRAPH)
    with pytest.raises(AttemptDisposedError):
        await update(of_another_job_master, 1, "a", one, function)


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


def dumps(value: int) -> bytes:
    return cloud_pickle.dumps(value)


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
