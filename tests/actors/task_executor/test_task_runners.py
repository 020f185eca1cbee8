"""What the guard of a Spark executor ends, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from flinkray.actors.gateways.task_executor import NodeAddress
from flinkray.actors.task_executor.host import TaskExecutorHost
from flinkray.actors.task_executor.task_runners import RunnerTask, SparkExecutorTasks
from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobVertexID,
)
from flinkray.rpc import LocalRpcService
from flinkray.spark.environment import RAYDP
from flinkray.spark.gateway import attempt_name
from flinkray.spark.processes import marker_environment, stage_name
from flinkray.testing.waiting import eventually
from tests.actors.resource_cluster import GRAPH

Start = Callable[[JobID, str], subprocess.Popen[bytes]]

VERTEX = JobVertexID(b"v" * 16)
EARLIER_GRAPH = ExecutionGraphID(b"e" * 16)


def attempt(number: int, graph: ExecutionGraphID = GRAPH, vertex: JobVertexID = VERTEX) -> str:
    return attempt_name(vertex, graph, number)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that carries the marker of a job's stage attempt, as a Spark worker does."""
    started: list[subprocess.Popen[bytes]] = []

    def start(job_id: JobID, attempt: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", "print('here', flush=True); input()"],
            env={**os.environ, **marker_environment(job_id, attempt)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
async def guard(tmp_path: Path) -> AsyncIterator[SparkExecutorTasks]:
    service = LocalRpcService("TaskExecutor")
    host = TaskExecutorHost(NodeAddress("node", "127.0.0.1"), os.getpid(), str(tmp_path))
    yield SparkExecutorTasks(service, host, 0, RAYDP)
    await service.close()


def descriptor(job_id: JobID, coordinator_attempt: int) -> RunnerTask:
    attempt_id = ExecutionAttemptID(GRAPH, ExecutionVertexID(VERTEX, 0), 5)
    return RunnerTask(job_id, attempt_id, "spark", AllocationID.generate(), coordinator_attempt)


async def test_spark_task_ends_processes_left_over_by_earlier_stages_and_then_runs(
    guard: SparkExecutorTasks, start: Start, tmp_path: Path
) -> None:
    job, other = JobID.generate(), JobID.generate()
    past = [start(job, attempt(0)), start(job, attempt(9)), start(job, attempt(4, EARLIER_GRAPH))]
    others = [
        start(job, attempt(10)),
        start(job, attempt(3, vertex=JobVertexID(b"w" * 16))),
        start(other, attempt(0)),
    ]
    scratch = [tmp_path / stage_name(job, attempt(number)) for number in (9, 10)]
    for directory in scratch:
        directory.mkdir()
    run = asyncio.ensure_future(guard.run(descriptor(job, 10)))
    await eventually(lambda: all(p.poll() is not None for p in past), 50, "the leftovers' end")
    await eventually(lambda: not scratch[0].exists(), 50, "the removal of their files")
    assert not run.done()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert all(process.poll() is None for process in others), "cancelling alone ends no process"
    assert scratch[1].exists()


async def run_for_a_moment(guard: SparkExecutorTasks, task: RunnerTask) -> None:
    """As a task that is cancelled while it runs."""
    run = asyncio.ensure_future(guard.run(task))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_clean_up_of_a_job_ends_the_processes_of_attempts_that_ran_on_this_node(
    guard: SparkExecutorTasks, start: Start, tmp_path: Path
) -> None:
    job, other = JobID.generate(), JobID.generate()
    for number in (2, 3):
        await run_for_a_moment(guard, descriptor(job, number))
    mine, foreign = [start(job, attempt(2)), start(job, attempt(3))], start(other, attempt(3))
    scratch = tmp_path / stage_name(job, attempt(3))
    scratch.mkdir()
    await guard.clean_up(job)
    assert all(process.poll() is not None for process in mine)
    assert not scratch.exists()
    assert foreign.poll() is None
    await guard.clean_up(job)


async def test_clean_up_after_a_spark_stage_does_not_end_processes_of_a_concurrent_stage(
    guard: SparkExecutorTasks, start: Start, tmp_path: Path
) -> None:
    """Two stages of one job, each in a worker group of its own, with bundles on one node."""
    job = JobID.generate()
    await run_for_a_moment(guard, descriptor(job, 0))
    beside = attempt(0, vertex=JobVertexID(b"w" * 16))
    over, runs = start(job, attempt(0)), start(job, beside)
    scratch = tmp_path / stage_name(job, beside)
    scratch.mkdir()
    await guard.clean_up(job)
    assert over.poll() is not None
    assert runs.poll() is None
    assert scratch.exists()
