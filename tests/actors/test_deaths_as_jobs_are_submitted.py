"""What random deaths have brought to light while jobs are submitted, listed and forgotten."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.core.errors import JobSubmissionError
from flinkray.core.ids import (
    JobID,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.waiting import eventually
from tests.actors.bad_moments import (
    NODE,
    RUNS,
    dispatcher_is_back,
    on_cluster,
    until_executing,
)
from tests.actors.chaos_cluster import ChaosCluster


@on_cluster(NODE)
async def test_caller_waiting_for_a_refused_job_gets_the_error(cluster: ChaosCluster) -> None:
    job = scripted_job(RUNS)
    gateway = await cluster.dispatcher()
    cluster.fail_storage(1)

    answers = await asyncio.gather(
        gateway.submit_job(job),
        gateway.request_job_result(job.job_id),
        return_exceptions=True,
    )

    assert [type(answer) for answer in answers] == [JobSubmissionError, JobSubmissionError]
    await asyncio.sleep(1)
    await gateway.submit_job(job)


@on_cluster(NODE)
async def test_second_submission_of_a_job_that_is_being_stored_is_refused_with_the_first(
    cluster: ChaosCluster,
) -> None:
    """Otherwise the second caller would hear that the job was submitted before, and then the job
    could not be stored."""
    job = scripted_job(RUNS)
    gateway = await cluster.dispatcher()
    cluster.fail_storage(1)

    answers = await asyncio.gather(
        gateway.submit_job(job), gateway.submit_job(job), return_exceptions=True
    )

    assert [type(answer) for answer in answers] == [JobSubmissionError, JobSubmissionError]


@on_cluster(NODE)
async def test_job_that_was_refused_is_not_run_by_a_later_dispatcher(
    cluster: ChaosCluster,
) -> None:
    """The graph was written, but could not be made durable."""
    job = scripted_job(RUNS)
    disk = cluster.simulation.disk()
    disk.intercept = lambda what, path: what == "sync" and path.endswith("job-graphs")
    with pytest.raises(JobSubmissionError, match="could not be stored"):
        await cluster.submit(job)
    disk.intercept = None
    assert cluster.stored_jobs.graph(job.job_id) is None
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)

    assert await (await cluster.dispatcher()).list_jobs() == ()


@on_cluster(NODE)
async def test_submission_with_an_unknown_outcome_raises_an_error_that_asks_to_repeat_it(
    cluster: ChaosCluster,
) -> None:
    job = scripted_job(["register", "finish"])
    cluster.fail_storage(30)
    with pytest.raises(JobSubmissionError, match="submit it again under this id"):
        await cluster.submit(job)

    async def submitted() -> bool:
        await cluster.submit(job)
        return True

    await eventually(submitted, 300, "the submission")
    assert (await cluster.result(job.job_id)).status is JobStatus.FINISHED


@on_cluster(NODE, configuration={"jobstore.expiration-time": "100 s", "jobstore.max-capacity": "2"})
async def test_ended_jobs_are_forgotten_when_they_are_old_or_too_many(
    cluster: ChaosCluster,
) -> None:
    jobs = [scripted_job(["register", "finish"]) for _ in range(3)]
    for job in jobs:
        await cluster.submit(job)
        await cluster.result(job.job_id)

    async def listed() -> set[JobID]:
        return {job.job_id for job in await (await cluster.dispatcher()).list_jobs()}

    async def newest_are_listed() -> bool:
        return await listed() == {job.job_id for job in jobs[1:]}

    await eventually(newest_are_listed, 50, "the last two")
    cluster.crash("Dispatcher")
    await dispatcher_is_back(cluster)
    assert await newest_are_listed()
    await asyncio.sleep(120)
    assert await listed() == set()
    assert not any(cluster.has_result(job.job_id.hex()) for job in jobs)


@on_cluster(NODE)
async def test_jobs_can_be_listed_while_others_are_submitted(cluster: ChaosCluster) -> None:
    job_id = await cluster.submit(scripted_job(RUNS))
    await until_executing(cluster, job_id)
    gateway = await cluster.dispatcher()

    listing = asyncio.ensure_future(gateway.list_jobs())
    await asyncio.gather(*(gateway.submit_job(scripted_job(RUNS)) for _ in range(3)))

    assert job_id in {job.job_id for job in await listing}
