"""Tasks ask their JobMaster for the state of a producer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways import JobMasterGateway
from flinkray.core.errors import (
    PartitionProducerDisposedError,
)
from flinkray.core.ids import (
    ExecutionAttemptID,
    FencingToken,
    IntermediateDataSetID,
    ResultPartitionID,
)
from flinkray.scheduler.graph.job_graph import (
    FixedDelayRestart,
    JobType,
    ResultPartitionType,
)
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.conftest import QUICK
from tests.actors.resource_cluster import GRAPH, number

TWO_SLOTS = {**QUICK, "taskmanager.numberOfTaskSlots": "2", "taskmanager.cpu.cores": "1"}


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
