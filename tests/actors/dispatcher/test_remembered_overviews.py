"""A JobMaster is asked for the overview of its job when that has changed, and not before."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flinkray.actors.dispatcher.managed_job import RememberedOverview
from flinkray.core.ids import JobID, JobMasterId
from flinkray.rpc.wire.envelope import Envelope
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.reports.job_info import JobOverview, NumberedOverview
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.simulation.link import End
from tests.actors.bad_moments import (
    NODE,
    RUNS,
    dispatcher_is_back,
    losing,
    on_cluster,
    start_slowly,
    until_executing,
)
from tests.actors.chaos_cluster import ChaosCluster
from tests.actors.resource_cluster import number

JOB = number(JobID, 1)
PAST_MASTER = number(JobMasterId, 77)
RUNNING = JobOverview(JOB, "job", JobStatus.RUNNING, 1.0, None, {"RUNNING": 2}, 1.0)
CANCELLING = replace(RUNNING, status=JobStatus.CANCELLING)
A_WHILE = 1.0
"""Seconds: what is told is heard."""


def test_cached_job_overview_is_valid_until_a_greater_overview_number_arrives() -> None:
    remembered = RememberedOverview(20.0, 0.0)
    assert remembered.get(0.0) is None
    remembered.answered(NumberedOverview(0, RUNNING))
    assert remembered.get(1.0) == RUNNING
    remembered.heard(0, 2.0)
    assert remembered.get(2.0) == RUNNING
    remembered.heard(1, 3.0)
    assert remembered.get(3.0) is None
    remembered.answered(NumberedOverview(1, CANCELLING))
    assert remembered.get(4.0) == CANCELLING


def test_job_overview_that_arrives_after_a_newer_overview_number_is_not_cached() -> None:
    remembered = RememberedOverview(20.0, 0.0)
    remembered.heard(1, 1.0)
    remembered.answered(NumberedOverview(0, RUNNING))
    assert remembered.get(1.0) is None


def test_job_overview_that_arrives_after_a_newer_overview_is_not_cached() -> None:
    remembered = RememberedOverview(20.0, 0.0)
    remembered.answered(NumberedOverview(1, CANCELLING))
    remembered.answered(NumberedOverview(0, RUNNING))
    assert remembered.get(1.0) == CANCELLING


def test_cached_job_overview_expires_when_its_job_master_is_silent() -> None:
    remembered = RememberedOverview(20.0, 0.0)
    remembered.answered(NumberedOverview(0, RUNNING))
    assert remembered.get(20.0) == RUNNING
    assert remembered.get(20.5) is None
    remembered.heard(0, 21.0)
    assert remembered.get(40.0) == RUNNING


# --- in a cluster ---------------------------------------------------------------------------------


class Asked:
    """How often JobMasters are asked, and how often they tell of a change."""

    def __init__(self, cluster: ChaosCluster) -> None:
        self.questions = self.changes = 0

        def note(end: End, envelope: Envelope) -> bool:
            self.questions += envelope.method == "request_job_overview"
            self.changes += envelope.method == "job_overview_changed"
            return False

        cluster.network.intercept, cluster.network.is_faulty = note, True


async def running_job(cluster: ChaosCluster) -> JobID:
    restarts = FixedDelayRestart(attempts=10, delay=0.1)
    job_id = await cluster.submit(scripted_job(RUNS, restart_strategy=restarts))
    await until_executing(cluster, job_id)
    return job_id


async def listed(cluster: ChaosCluster) -> JobOverview:
    (line,) = await (await cluster.dispatcher()).list_jobs()
    return line


@on_cluster(NODE)
async def test_job_master_of_an_unchanged_job_is_asked_for_its_overview_once_in_many_lists(
    cluster: ChaosCluster,
) -> None:
    await running_job(cluster)
    asked = Asked(cluster)
    for _ in range(20):
        line = await listed(cluster)
        assert (line.status, line.tasks) == (JobStatus.RUNNING, {"RUNNING": 2})
        await asyncio.sleep(5)
    assert (asked.questions, asked.changes) == (1, 0)


@on_cluster(NODE)
async def test_job_change_is_reported_to_the_dispatcher_once_if_jobs_were_listed_before(
    cluster: ChaosCluster,
) -> None:
    asked = Asked(cluster)
    job_id = await running_job(cluster)
    assert (asked.questions, asked.changes) == (0, 0)
    assert (await listed(cluster)).status is JobStatus.RUNNING
    await (await cluster.dispatcher()).cancel_job(job_id)
    assert (await cluster.result(job_id)).status is JobStatus.CANCELED
    assert (asked.questions, asked.changes) == (1, 1)
    assert (await listed(cluster)).status is JobStatus.CANCELED


@on_cluster(NODE)
async def test_next_job_list_after_a_change_of_a_job_shows_the_changed_overview(
    cluster: ChaosCluster,
) -> None:
    await running_job(cluster)
    before = await listed(cluster)
    cluster.crash("TaskExecutor")
    await asyncio.sleep(A_WHILE)
    assert await listed(cluster) != before


@on_cluster(NODE)
async def test_job_list_shows_a_change_after_a_heartbeat_if_the_report_of_it_is_lost(
    cluster: ChaosCluster,
) -> None:
    await running_job(cluster)
    before = await listed(cluster)
    with losing(cluster, "job_overview_changed") as lost:
        cluster.crash("TaskExecutor")
        await asyncio.sleep(A_WHILE)
    assert lost
    assert await listed(cluster) == before
    await asyncio.sleep(11)
    assert await listed(cluster) != before


@on_cluster(NODE)
async def test_job_list_shows_running_tasks_after_dispatcher_and_job_master_are_replaced(
    cluster: ChaosCluster,
) -> None:
    job_id = await running_job(cluster)
    started = (await listed(cluster)).start_time
    for kind in ("Dispatcher", "JobMaster"):
        cluster.crash(kind)
        await dispatcher_is_back(cluster)
        await until_executing(cluster, job_id)
        await asyncio.sleep(A_WHILE)
        line = await listed(cluster)
        assert (line.status, line.tasks) == (JobStatus.RUNNING, {"RUNNING": 2})
        assert line.start_time == started


@on_cluster(NODE)
async def test_job_list_shows_a_job_as_restarting_after_the_death_of_its_job_master(
    cluster: ChaosCluster,
) -> None:
    await running_job(cluster)
    assert (await listed(cluster)).status is JobStatus.RUNNING
    start_slowly(cluster, "JobMaster", 10.0)
    cluster.crash("JobMaster")
    await asyncio.sleep(A_WHILE)
    assert (await listed(cluster)).status is JobStatus.RESTARTING


@on_cluster(NODE)
async def test_report_of_a_past_job_master_that_its_job_changed_is_ignored(
    cluster: ChaosCluster,
) -> None:
    job_id = await running_job(cluster)
    await listed(cluster)
    asked = Asked(cluster)
    dispatcher = await cluster.dispatcher()
    await dispatcher.job_overview_changed(job_id, PAST_MASTER, 99)
    await dispatcher.heartbeat_from_job_master(job_id, PAST_MASTER, 99)
    await asyncio.sleep(A_WHILE)
    await listed(cluster)
    assert asked.questions == 0
