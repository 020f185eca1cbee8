"""How often the JobMasters of a job may die, and when the job has restarted with them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.dispatcher.managed_job import JobMasterDeaths
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import JobExecutionError
from flinkray.core.ids import JobID
from flinkray.ha import EmbeddedHaServices
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.function_jobs import python_job
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import NODE, RUNS, dispatcher_is_back, on_cluster, until_executing
from tests.actors.chaos_cluster import ChaosCluster
from tests.actors.dispatcher.test_past_dispatchers import LostDirectory

PULSE = {"heartbeat.interval": "1 s", "heartbeat.timeout": "5 s"}
HEARTBEATS = 3.0
"""Seconds in which the Dispatcher hears of a JobMaster, and has stored what it has heard."""


def deaths(most: int, interval: str = "100 s") -> JobMasterDeaths:
    values = {"jobmaster.max-failovers": most, "jobmaster.failover-validity-interval": interval}
    return JobMasterDeaths(ReadableConfig(values))


def test_job_ends_only_after_too_many_job_master_deaths_in_the_interval() -> None:
    few = deaths(2)
    for number in range(1000):
        assert few.one_more("killed", 0.0, 51.0 * number) is None
    assert few.one_more("out of memory", 0.0, 51.0 * 999 + 40) is not None
    assert few.count == 1001
    assert [entry.text for entry in few.last][-2:] == [
        "the JobMaster died: killed",
        "the JobMaster died: out of memory",
    ]
    assert len(few.last) == 16


@pytest.mark.parametrize(("most", "how_often"), [(0, "once"), (1, "2 times within 100 s")])
def test_error_of_a_job_whose_job_master_died_too_often_names_count_and_options(
    most: int, how_often: str
) -> None:
    none = deaths(most)
    for _ in range(most):
        assert none.one_more("killed", 0.0, 1.0) is None
    text = none.one_more("out of memory", 0.0, 2.0)
    assert text is not None
    assert text.startswith(f"its JobMaster died {how_often}, the last time: out of memory. ")
    assert "jobmaster.max-failovers" in text
    assert "jobmaster.failover-validity-interval" in text


# --- in a cluster ---------------------------------------------------------------------------------


async def take_over(cluster: ChaosCluster, job_id: JobID, *victims: str) -> None:
    """Processes of these kinds die together, and the next JobMaster has decided what goes on."""
    for kind in victims:
        cluster.crash(kind)
    await dispatcher_is_back(cluster)

    async def is_decided() -> bool:
        details = await cluster.details(job_id)
        return bool(details.vertices) and details.status is JobStatus.RUNNING

    await eventually(is_decided, 150, "another JobMaster")


@pytest.mark.parametrize("others", [(), ("Dispatcher",)], ids=["", "with the Dispatcher"])
@on_cluster(NODE, configuration=PULSE)
async def test_restart_is_counted_when_all_masters_of_a_job_without_checkpoints_die(
    cluster: ChaosCluster, others: tuple[str, ...]
) -> None:
    """The job begins again with attempt number 1."""
    job_id = await cluster.submit(scripted_job(RUNS, RUNS))
    await until_executing(cluster, job_id)
    await asyncio.sleep(HEARTBEATS)

    await take_over(cluster, job_id, *others, "JobMaster", "SlotPool")
    await until_executing(cluster, job_id)

    details = await cluster.details(job_id)
    assert details.restarts == 1
    assert [e.attempt_number for v in details.vertices for e in v.executions] == [1, 1]


@on_cluster(configuration=PULSE)
async def test_death_of_job_master_and_slot_pool_before_slots_counts_no_restart(
    cluster: ChaosCluster,
) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await asyncio.sleep(HEARTBEATS)
    await take_over(cluster, job_id, "JobMaster", "SlotPool")
    details = await cluster.details(job_id)
    assert (details.restarts, details.failovers) == (0, 1)


@on_virtual_time
async def test_job_that_ends_while_being_stored_as_running_is_not_stored_again_afterwards(
    tmp_path: Path,
) -> None:
    """Otherwise the next Dispatcher would run the job once more."""
    service = LocalRpcService("Dispatcher", LocalNetwork())
    storage = LostDirectory()
    elections = EmbeddedHaServices(storage, service.executor)
    arguments = ClusterArguments("test", {}, str(tmp_path))
    services = replace(ClusterServices.create(service, arguments), high_availability=elections)
    leadership = await Leadership.win(elections.get_dispatcher_leader_election())
    dispatcher = Dispatcher(service, services, leadership)
    await dispatcher.recover()
    job = dispatcher._manage(python_job(lambda context: None), 0.0)

    storage.is_lost = True
    dispatcher._note_that_it_has_run(job)
    await asyncio.sleep(1)
    job.outcome = job.failed(JobExecutionError(job.job_id, "it broke"), 1.0)
    storage.is_lost = False
    await asyncio.sleep(1)

    assert not (await dispatcher._graphs.recover_job_graphs()).records
    await service.network.close()
