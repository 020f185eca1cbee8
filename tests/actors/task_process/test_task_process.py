"""Functions that are not async run in threads of their task process; on a real loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.gateways.task_errors import TaskError
from flinkray.core.ids import JobID
from flinkray.scheduler.graph.job_graph import NoRestart
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing.function_jobs import PythonJobBuilder, python_job
from flinkray.testing.mini_cluster import MiniCluster
from tests.actors.conftest import QUICK
from tests.actors.task_process.process_under_test import ProcessUnderTest

INTERRUPTS = {**QUICK, "task.cancellation.interval": "20 ms"}


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    async with MiniCluster(str(tmp_path), configuration=INTERRUPTS) as cluster:
        yield cluster


async def until_running(cluster: MiniCluster, job_id: JobID) -> None:
    async def poll() -> None:
        while True:
            vertices = (await cluster.details(job_id)).vertices
            found = [e.state for v in vertices for e in v.executions]
            if found and all(state is ExecutionState.RUNNING for state in found):
                return
            await asyncio.sleep(0)

    await asyncio.wait_for(poll(), 30)


async def cancel(cluster: MiniCluster, job_id: JobID) -> JobStatus:
    await (await cluster.dispatcher()).cancel_job(job_id)
    return (await asyncio.wait_for(cluster.result(job_id), 30)).status


async def test_plain_function_that_waits_for_cancellation_ends_when_its_task_is_cancelled(
    impatient: MiniCluster,
) -> None:
    def waits(context: Any) -> None:
        assert not context.is_cancelled
        assert context.wait_until_cancelled(60)

    job_id = await impatient.submit(python_job(waits))
    await until_running(impatient, job_id)
    assert await cancel(impatient, job_id) is JobStatus.CANCELED


async def test_a_plain_function_that_ignores_its_cancellation_is_interrupted(
    impatient: MiniCluster,
) -> None:
    def runs_on(context: Any) -> None:
        while True:
            try:
                sum(range(1000))
            except Exception:  # noqa: BLE001 - as users write it: it must not hold the interrupt
                continue

    job_id = await impatient.submit(python_job(runs_on))
    await until_running(impatient, job_id)
    assert await cancel(impatient, job_id) is JobStatus.CANCELED
    assert (await impatient.details(job_id)).exceptions == (), "nobody had to be killed"


async def test_option_of_a_job_sets_how_long_its_cancelled_functions_are_not_interrupted(
    tmp_path: Path,
) -> None:
    def runs_on(context: Any) -> None:
        while True:
            sum(range(1000))

    configuration = {**QUICK, "task.cancellation.interval": "1 h"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        of_job = {"task.cancellation.interval": "20 ms"}
        job_id = await cluster.submit(python_job(runs_on, configuration=of_job))
        await until_running(cluster, job_id)
        assert await cancel(cluster, job_id) is JobStatus.CANCELED
        assert (await cluster.details(job_id)).exceptions == (), "nobody had to be killed"


async def test_failure_of_user_code_during_cancellation_is_logged(
    impatient: MiniCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is CANCELED, and its result is without any failure (JM-22)."""

    async def cannot_leave(context: Any) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            raise OSError("cannot put my things away")

    def is_interrupted(context: Any) -> None:
        while True:
            sum(range(1000))

    builder = PythonJobBuilder("two ways")
    builder.add(cannot_leave)
    builder.add(is_interrupted)
    job_id = await impatient.submit(builder.build())
    await until_running(impatient, job_id)
    assert await cancel(impatient, job_id) is JobStatus.CANCELED
    assert (await impatient.details(job_id)).exceptions == ()
    (record,) = [r for r in caplog.records if "while it was being cancelled" in r.message]
    assert "OSError: cannot put my things away" in record.getMessage()


async def test_system_exit_in_user_code_only_fails_its_task(impatient: MiniCluster) -> None:
    def exits(context: Any) -> None:
        raise SystemExit(3)

    job_id = await impatient.submit(python_job(exits, restart_strategy=NoRestart()))
    result = await asyncio.wait_for(impatient.result(job_id), 30)
    assert (result.status, result.failure) == (JobStatus.FAILED, "SystemExit: 3")


async def test_function_of_a_test_is_refused_by_the_task_process_of_a_real_cluster(
    tmp_path: Path,
) -> None:
    job = python_job(lambda context: None, name="f")
    (vertex,) = job.vertices
    async with ProcessUnderTest(tmp_path, vertex) as process:
        with pytest.raises(TaskError, match=r"f \(1/1\) is of kind 'python', which no task"):
            await process.run()
