"""Jobs of Python tasks on real masters, TaskExecutors and task processes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from flinkray.client.python_job import python_job
from flinkray.core.ids import JobID
from flinkray.scheduler.job_info import ExecutionInfo
from flinkray.scheduler.states import ExecutionState, JobStatus
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from tests.actors.conftest import QUICK

SHARED = {**QUICK, "taskmanager.numberOfTaskSlots": "4"}


async def finishes(context: Any) -> None:
    pass


async def waits(context: Any) -> None:
    await asyncio.get_running_loop().create_future()


async def executions(cluster: MiniCluster, job_id: JobID) -> list[ExecutionInfo]:
    return [e for v in (await cluster.details(job_id)).vertices for e in v.executions]


async def until_running(cluster: MiniCluster, job_id: JobID) -> None:
    async def running() -> bool:
        found = await executions(cluster, job_id)
        return bool(found) and all(e.state is ExecutionState.RUNNING for e in found)

    await until(running, "all RUNNING")


async def until(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    for _ in range(1000):
        if await condition():
            return
        await asyncio.sleep(0.01)  # virtual
    raise AssertionError(f"never saw {what}")


@on_virtual_time
async def test_a_function_runs_to_its_end(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        job_id = await cluster.submit(python_job(finishes, cpu=1))
        result = await cluster.result(job_id)
        assert result.status is JobStatus.FINISHED, result.failure
