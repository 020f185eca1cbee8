"""Spark stages whose JobMaster dies, with scripted drivers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flinkray.actors.coordinators.spark_driver_process import SparkDriverProcess
from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.core.errors import CoordinatorReplacedError
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc import EndpointSpec, FencedRpcEndpoint, LocalRpcService
from flinkray.scheduler.job.coordinator_events import SparkExecutors
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.spark.gateway import SparkDriverGateway
from flinkray.testing import TestingGateway
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.scripted_spark_driver import ScriptedSparkDriver
from tests.actors.conftest import QUICK
from tests.actors.test_jobs_on_a_local_cluster import RUNS, end, eventually, until_executing
from tests.spark.test_driver import LEADER, stage_of


async def until_taken_over(cluster: MiniCluster, job_id: JobID, failovers: int = 1) -> None:
    async def is_taken_over() -> bool:
        details = await cluster.details(job_id)
        return details.failovers == failovers and bool(details.vertices)

    await eventually(is_taken_over, "the next JobMaster's details")
    await until_executing(cluster, job_id)


async def attempts(cluster: MiniCluster, job_id: JobID) -> list[int]:
    """None while there is no JobMaster."""
    vertices = (await cluster.details(job_id)).vertices
    return [execution.attempt_number for vertex in vertices for execution in vertex.executions]


async def test_spark_driver_and_executors_live_on_when_job_masters_die(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(["register", "progress 3", "wait"]))
    await until_executing(cluster, job_id)
    drivers, task_executors = cluster.processes("SparkDriver"), cluster.processes("TaskExecutor")

    for death in (1, 2, 3):
        cluster.crash("JobMaster")
        await until_taken_over(cluster, job_id, death)

        assert cluster.processes("SparkDriver") == drivers
        assert cluster.processes("TaskExecutor") == task_executors
        assert await attempts(cluster, job_id) == [0, 0]
        (vertex,) = (await cluster.details(job_id)).vertices
        assert vertex.completed_tasks == 3
    await (await cluster.dispatcher()).cancel_job(job_id)
    assert (await end(cluster, job_id)).status is JobStatus.CANCELED


async def test_spark_stage_that_ends_without_a_job_master_is_reported_to_the_next_one(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(["register", "row a", "pause 0.3", "finish"]))
    await until_executing(cluster, job_id)

    cluster.crash("JobMaster")

    result = await end(cluster, job_id)
    assert (result.status, result.num_rows) == (JobStatus.FINISHED, 1)
    details = await cluster.details(job_id)
    assert (details.restarts, details.failovers) == (0, 1)


async def test_spark_stage_that_fails_while_no_job_master_leads_is_restarted(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(["register", "pause 0.3", "fail it broke"], RUNS))
    await until_executing(cluster, job_id)

    cluster.crash("JobMaster")

    async def is_restarted() -> bool:
        details = await cluster.details(job_id)
        running = [e.state for v in details.vertices for e in v.executions]
        return details.restarts == 1 and running == [ExecutionState.RUNNING] * 2

    await eventually(is_restarted, "the restart")
    assert await attempts(cluster, job_id) == [1, 1]
    assert any("it broke" in each.text for each in (await cluster.details(job_id)).exceptions)
    assert len(cluster.processes("SparkDriver")) == 1


@pytest.mark.parametrize("victim", ["SparkDriver", "TaskExecutor"])
async def test_spark_process_that_dies_together_with_the_job_master_is_restarted(
    cluster: MiniCluster, victim: str
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)

    cluster.crash(victim)
    cluster.crash("JobMaster")
    await until_taken_over(cluster, job_id)

    async def is_restarted() -> bool:
        return await attempts(cluster, job_id) == [1, 1]

    await eventually(is_restarted, "the next attempts")
    await until_executing(cluster, job_id)
    assert len(cluster.processes("SparkDriver")) == 1


async def test_spark_driver_whose_job_lost_its_recovery_notes_ends_and_the_job_starts_anew(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    (past,) = cluster.processes("SparkDriver")

    cluster.crash("SlotPool")
    cluster.crash("JobMaster")
    await until_taken_over(cluster, job_id)

    async def has_another_driver() -> bool:
        drivers = cluster.processes("SparkDriver")
        return len(drivers) == 1 and past not in drivers

    await eventually(has_another_driver, "the end of the past driver")
    await until_executing(cluster, job_id)
    assert await attempts(cluster, job_id) == [0, 0]
    await (await cluster.dispatcher()).cancel_job(job_id)
    await end(cluster, job_id)


async def test_executor_lost_while_no_job_master_leads_gets_another_attempt(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted = ScriptedSparkDriver.adopt

    async def adopt(self: ScriptedSparkDriver, job_master_id: JobMasterId, address: str) -> None:
        async def has_lost_one() -> bool:
            event = self._leader._last[SparkExecutors]
            return isinstance(event, SparkExecutors) and event.missing == (1,)

        await eventually(has_lost_one, "the loss of an executor")
        await adopted(self, job_master_id, address)

    monkeypatch.setattr(ScriptedSparkDriver, "adopt", adopt)
    steps = ["register", "pause 0.3", "lose 1", "pause 1", "register", "wait"]
    job_id = await cluster.submit(scripted_job(steps))
    await until_executing(cluster, job_id)

    cluster.crash("JobMaster")

    async def is_replaced() -> bool:
        return await attempts(cluster, job_id) == [0, 1]

    await eventually(is_replaced, "the next attempt of subtask 1")
    await until_executing(cluster, job_id)
    details = await cluster.details(job_id)
    assert (details.restarts, details.failovers) == (0, 1)


async def test_spark_driver_counted_as_dead_is_killed_before_the_next_starts(
    cluster: MiniCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    (past,) = cluster.processes("SparkDriver")
    (name,) = cluster.processes("JobMaster")
    (job_master,) = (
        it for it in cluster.network.services[name].endpoints() if isinstance(it, JobMaster)
    )
    (running,) = job_master._coordinators._running.values()
    assert running.watch is not None

    running.watch.fire("the connection was lost")

    async def is_restarted() -> bool:
        return await attempts(cluster, job_id) == [1, 1]

    await eventually(is_restarted, "the next attempts")
    assert past not in cluster.processes("SparkDriver")


async def test_spark_driver_that_stays_silent_after_a_take_over_is_replaced_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: ScriptedSparkDriver, job_master_id: JobMasterId, address: str) -> None:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(ScriptedSparkDriver, "adopt", never)
    configuration = {**QUICK, "jobmaster.takeover-report-timeout": "0.3 s"}
    async with MiniCluster(str(tmp_path), configuration=configuration) as cluster:
        job_id = await cluster.submit(scripted_job(RUNS))
        await until_executing(cluster, job_id)
        (past,) = cluster.processes("SparkDriver")

        cluster.crash("JobMaster")
        await until_taken_over(cluster, job_id)

        assert await attempts(cluster, job_id) == [1, 1]
        assert past not in cluster.processes("SparkDriver")


async def test_spark_driver_starts_and_stops_only_once_the_recovery_notes_are_durable() -> None:
    service, noted, replaced = LocalRpcService("JobMaster-1"), asyncio.Event(), list[str]()

    async def wait() -> None:
        await noted.wait()

    job_master: FencedRpcEndpoint[JobMasterId] = FencedRpcEndpoint(service, "jobmaster", LEADER)
    services: Any = None
    process = SparkDriverProcess(
        job_master, scripted_job(RUNS), services, "no:driver", wait, replaced.append
    )
    spec = EndpointSpec("SparkDriver", "SparkDriver-1", "no:driver", stage_of(LEADER))
    preparing = asyncio.ensure_future(process.prepared(spec))
    driver = TestingGateway(SparkDriverGateway).lenient()
    driver.start(service, "sparkdriver")
    connected = await process.connect(service, "JobMaster-1/sparkdriver")
    stopping = asyncio.ensure_future(connected.stop())
    await connected.request_heartbeat()
    assert driver.calls == [("request_heartbeat", (LEADER,))]
    assert not preparing.done()

    noted.set()
    assert await preparing == spec
    await stopping
    assert driver.calls_of(SparkDriverGateway.stop) == [(LEADER,)]

    driver.on(SparkDriverGateway.request_heartbeat).raising(CoordinatorReplacedError("another's"))
    await connected.request_heartbeat()
    assert replaced == ["another's"]
    await service.close()
