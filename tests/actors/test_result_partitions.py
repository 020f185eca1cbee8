"""Results that stay after their tasks, until the job needs them no more."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.core.ids import JobID, ResourceID
from flinkray.scheduler.graph.job_graph import JobType, NoRestart, ResultPartitionType
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.conftest import QUICK
from tests.actors.test_python_jobs import cancelled, executions, finishing, until, waiting

ONE_SLOT = {**QUICK, "taskmanager.cpu.cores": "1", "taskmanager.memory": "1g"}
BLOCKING = ResultPartitionType.BLOCKING


def job_master(cluster: MiniCluster) -> JobMaster:
    (name,) = cluster.processes("JobMaster")
    (endpoint,) = cluster.network.services[name].endpoints()
    assert isinstance(endpoint, JobMaster)
    return endpoint


async def until_third_runs(cluster: MiniCluster, job_id: JobID) -> None:
    async def third_runs() -> bool:
        found = await executions(cluster, job_id)
        return len(found) == 4 and found[3].state is ExecutionState.RUNNING

    await until(third_runs, "the third RUNNING")


@on_virtual_time
async def test_task_executor_without_slots_is_kept_while_its_results_are_needed(
    tmp_path: Path,
) -> None:
    """JM-15."""

    async def reads_when_told(context: Any) -> None:
        await asyncio.sleep(60)
        assert await context.inputs[0].read_all() == []

    configuration = {**ONE_SLOT, "slot.idle.timeout": "1 s"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        builder = PythonJobBuilder("chain", job_type=JobType.BATCH, restart_strategy=NoRestart())
        vertices = [
            builder.add(function, parallelism=parallelism, cpu=1, slot_sharing_group=group)
            for function, parallelism, group in (
                (finishing(), 2, "a"),
                (reads_when_told, 1, "b"),
                (waiting(), 1, "c"),
            )
        ]
        builder.connect(vertices[0], vertices[1], result_type=BLOCKING)
        builder.connect(vertices[1], vertices[2], result_type=BLOCKING)
        job_id = await cluster.submit(builder.build())

        async def second_runs() -> bool:
            found = await executions(cluster, job_id)
            return len(found) == 4 and found[2].state is ExecutionState.RUNNING

        await until(second_runs, "the second RUNNING")
        await asyncio.sleep(50)
        slots, connections = job_master(cluster)._slots, job_master(cluster)._task_executors
        *first, second, _ = [
            ResourceID((e.location or "-").split()[0]) for e in await executions(cluster, job_id)
        ]
        (where,) = [executor for executor in first if executor != second]
        assert slots.ledger.on(where) == ()
        assert connections.is_connected(where), "its result is still to be read"

        await until_third_runs(cluster, job_id)
        assert not connections.is_connected(where), "it was read"
        deployments = job_master(cluster)._scheduler._outbox.bulk
        assert where not in deployments.task_executors, "what it was sent is forgotten"
        assert second in deployments.task_executors
        assert not slots._letting_go
        assert await cancelled(cluster, job_id) is JobStatus.CANCELED
