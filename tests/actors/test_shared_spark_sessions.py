"""Spark sessions that jobs share, as jobs of a local cluster with scripted Spark drivers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import JobGraph, NoRestart
from flinkray.scheduler.shared.states import JobStatus
from flinkray.spark.session_requests import GUEST_PROFILE, HELD_SESSION, guest_configuration
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.mini_cluster import MiniCluster
from tests.actors.bad_moments import NODE, on_cluster
from tests.actors.chaos_cluster import ChaosCluster


def configured(job: JobGraph, configuration: dict[str, str]) -> JobGraph:
    (vertex,) = job.vertices
    invokable = replace(vertex.invokable, configuration=configuration)
    return replace(job, vertices=(replace(vertex, invokable=invokable),))


def session(name: str) -> JobGraph:
    return configured(scripted_job(["register", "wait"]), {HELD_SESSION: name})


async def ensured(cluster: MiniCluster | ChaosCluster, name: str) -> JobID:
    return await (await cluster.dispatcher()).ensure_spark_session(session(name))


async def test_simultaneous_requests_start_one_shared_session(cluster: MiniCluster) -> None:
    found = await asyncio.gather(*(ensured(cluster, "shared") for _ in range(4)))
    assert len(set(found)) == 1
    assert await ensured(cluster, "other") not in found


@on_cluster(NODE)
async def test_shared_spark_session_that_cannot_be_stored_is_given_to_no_job(
    cluster: ChaosCluster,
) -> None:
    """Other requests wait until the session is stored or refused."""
    cluster.fail_storage(7)
    asked = (ensured(cluster, "shared") for _ in range(3))
    found = await asyncio.gather(*asked, return_exceptions=True)

    assert [type(one) for one in found] == 3 * [JobSubmissionError]
    assert isinstance(await ensured(cluster, "shared"), JobID), "the next one begins another"


async def test_request_after_the_cancel_of_a_session_gets_a_new_session(
    cluster: MiniCluster,
) -> None:
    first = await ensured(cluster, "shared")
    await (await cluster.dispatcher()).cancel_job(first)
    assert await ensured(cluster, "shared") != first


async def test_job_fails_with_the_reason_why_its_shared_session_could_not_be_opened(
    cluster: MiniCluster,
) -> None:
    """The scripted driver does not know the function of a session."""
    job = replace(scripted_job(["register", "finish"]), restart_strategy=NoRestart())
    slot = ResourceProfile(1.0, 2**30)
    job = configured(job, guest_configuration("shared", 1, slot, {}))
    (vertex,) = job.vertices
    job = replace(job, vertices=(replace(vertex, slot_profile=GUEST_PROFILE),))
    job_id = await cluster.submit(job)

    result = await (await cluster.dispatcher()).request_job_result(job_id)

    assert result.status is JobStatus.FAILED
    assert "the Spark session 'shared' (job" in (result.failure or "")
