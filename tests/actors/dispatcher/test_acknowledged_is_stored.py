"""What a Dispatcher has acknowledged is stored: it counts whoever dies next."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.core.errors import FlinkRayError
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from tests.actors.bad_moments import (
    NODE,
    RUNS,
    dispatcher_is_back,
    on_cluster,
    starts_of,
    until_executing,
)
from tests.actors.chaos_cluster import ChaosCluster


@on_cluster(NODE)
async def test_cancel_that_cannot_be_stored_fails_and_the_job_runs_on(
    cluster: ChaosCluster,
) -> None:
    """DI-06: the job runs on after the death of its JobMaster, too."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.fail_storage(5)
    with pytest.raises(FlinkRayError):
        await (await cluster.dispatcher()).cancel_job(job_id)
    await asyncio.sleep(10)
    assert await cluster.status(job_id) is JobStatus.RUNNING

    cluster.crash("JobMaster")
    await asyncio.sleep(5)
    await until_executing(cluster, job_id)
    assert await cluster.status(job_id) is JobStatus.RUNNING


@on_cluster(NODE)
async def test_cancel_that_was_stored_though_its_write_reported_a_failure_is_undone(
    cluster: ChaosCluster,
) -> None:
    """DI-06: otherwise the next Dispatcher would cancel a job after its user was told that the
    cancel had failed."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    disk = cluster.simulation.disk()
    disk.intercept = lambda what, path: what == "sync" and path.endswith("job-graphs")
    with pytest.raises(FlinkRayError):
        await (await cluster.dispatcher()).cancel_job(job_id)
    disk.intercept = None
    await asyncio.sleep(5)

    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    await asyncio.sleep(10)
    assert await cluster.status(job_id) is JobStatus.RUNNING


@on_cluster(NODE)
async def test_second_cancel_is_stored_though_the_first_could_not_be(
    cluster: ChaosCluster,
) -> None:
    """DI-06: a cancel that could not be stored must not make the second cancel superfluous."""
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    cluster.fail_storage(5)
    dispatcher = await cluster.dispatcher()
    with pytest.raises(FlinkRayError):
        await dispatcher.cancel_job(job_id)
    await asyncio.sleep(6)

    cluster.crash("JobMaster")  # so that nobody hears of it but the Dispatcher
    await dispatcher.cancel_job(job_id)
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert (await cluster.result(job_id)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_job_master_lives_while_the_result_of_its_job_cannot_be_stored(
    cluster: ChaosCluster,
) -> None:
    """DI-13: the JobMaster keeps the result until the Dispatcher has stored it."""
    job_id = await cluster.submit(scripted_job(["register", "pause 2", "finish"]))
    await until_executing(cluster, job_id)
    cluster.fail_storage(60)
    await asyncio.sleep(50)
    assert cluster.processes("JobMaster"), "it waits to be told that the result is stored"

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "JobMaster") == 1


@on_cluster(NODE)
async def test_result_outlives_the_dispatcher_that_could_not_store_it(
    cluster: ChaosCluster,
) -> None:
    """DI-13: with a result that is acknowledged but not stored, the job would run again."""
    job_id = await cluster.submit(scripted_job(["register", "pause 2", "finish"]))
    await until_executing(cluster, job_id)
    cluster.fail_storage(20)
    await asyncio.sleep(15)
    cluster.crash("Dispatcher")
    await asyncio.sleep(10)
    await dispatcher_is_back(cluster)

    assert (await cluster.result(job_id)).status is JobStatus.FINISHED
    assert starts_of(cluster, "SparkDriver") == 1
