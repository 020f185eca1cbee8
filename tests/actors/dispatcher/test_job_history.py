"""Which ended jobs are remembered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from flinkray.actors.dispatcher.job_history import JobHistory
from flinkray.actors.gateways.messages import ArchivedJob
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import JobID
from flinkray.file_results import data_of_job, results_of_job
from flinkray.ha import EmbeddedHaServices, MemoryDirectory
from flinkray.ha.directory import LocalDirectory
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint
from flinkray.scheduler.reports.job_info import JobDetails, JobResult
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually

FINISHED = JobStatus.FINISHED


def ended(end_time: float) -> ArchivedJob:
    job_id = JobID.generate()
    result = JobResult(job_id, "a job", FINISHED, 1.0)
    return ArchivedJob(result, JobDetails(job_id, "a job", FINISHED, 0.0, end_time, {}, 0))


@on_virtual_time
async def test_jobs_that_expired_while_no_dispatcher_ran_are_not_listed_by_the_next(
    tmp_path: Path,
) -> None:
    """The ids of the expired jobs stay taken until the jobs are deleted."""
    network = LocalNetwork()
    service = LocalRpcService("Dispatcher", network)
    stores = EmbeddedHaServices(MemoryDirectory(), service.executor)
    store = stores.get_job_result_store(ArchivedJob)
    endpoint = RpcEndpoint(service, "dispatcher")
    endpoint.start()
    now = endpoint.clock.time()
    jobs = [ended(now - seconds) for seconds in (90, 61, 59, 30, 1)]
    for job in jobs:
        await store.create_dirty_result(job)
        await store.mark_result_as_clean(job.job_id)
    options = {"jobstore.expiration-time": "1 min", "jobstore.max-capacity": "2"}
    history = JobHistory(endpoint, store, ReadableConfig(options), str(tmp_path))

    history.recover((await store.get_clean_results()).records)

    assert list(history) == jobs[3:]
    assert [history.get(job.job_id) for job in jobs[:3]] == [None] * 3
    assert all(job.job_id in history for job in jobs)

    history.start()

    async def are_deleted() -> bool:
        return len((await store.get_clean_results()).records) == 2

    await eventually(are_deleted, 1, "what is forgotten to be deleted")
    assert [job.job_id in history for job in jobs] == [False] * 3 + [True] * 2
    history.stop()
    await network.close()


@on_virtual_time
async def test_ended_job_expires_although_another_one_cannot_be_deleted(
    tmp_path: Path,
) -> None:
    """The data of one job cannot be deleted; the other job ended while a clock was years ahead."""
    network = LocalNetwork()
    service = LocalRpcService("Dispatcher", network)
    endpoint = RpcEndpoint(service, "dispatcher")
    endpoint.start()
    now = endpoint.clock.time()
    undeletable, early, late = ended(now), ended(now + 1e8), ended(now)
    stores = EmbeddedHaServices(MemoryDirectory(), service.executor)
    store = stores.get_job_result_store(ArchivedJob)
    somebody_s = LocalDirectory(tmp_path / "data")
    somebody_s.write(str(undeletable.job_id), b"where a directory would have to be")
    options = ReadableConfig({"jobstore.expiration-time": "100 s"})
    history = JobHistory(endpoint, store, options, str(tmp_path))
    for job in (undeletable, early, late):
        await store.create_dirty_result(job)
        await store.mark_result_as_clean(job.job_id)
        history.add(job)

    history.start()
    await asyncio.sleep(300)
    assert list(history) == [early]
    assert (await store.get_clean_results()).records == (undeletable, early)

    somebody_s.delete(str(undeletable.job_id))
    await asyncio.sleep(100)
    assert (await store.get_clean_results()).records == (early,)
    history.stop()
    await network.close()


@on_virtual_time
@pytest.mark.parametrize("has_successor", [False, True])
async def test_result_that_a_task_writes_after_its_jobs_clean_up_is_deleted_in_a_minute(
    tmp_path: Path, has_successor: bool
) -> None:
    """The task's TaskExecutor stood still while the job was cancelled (seed 3100039). A Dispatcher
    that takes over in between deletes the result, too. Other data stays until the job is forgotten.
    """
    network = LocalNetwork()
    service = LocalRpcService("Dispatcher", network)
    endpoint = RpcEndpoint(service, "dispatcher")
    endpoint.start()
    stores = EmbeddedHaServices(MemoryDirectory(), service.executor)
    store = stores.get_job_result_store(ArchivedJob)
    job = ended(endpoint.clock.time())
    await store.create_dirty_result(job)
    await store.mark_result_as_clean(job.job_id)
    history = JobHistory(endpoint, store, ReadableConfig({}), str(tmp_path))
    history.start()
    history.add(job)

    data = LocalDirectory(Path(data_of_job(str(tmp_path), job.job_id)))
    data.write("the user's result", b"rows")
    late = Path(results_of_job(str(tmp_path), job.job_id))
    LocalDirectory(late / "data set").write("part-00000.parquet", b"rows")
    if has_successor:
        history.stop()
        history = JobHistory(endpoint, store, ReadableConfig({}), str(tmp_path))
        history.recover((await store.get_clean_results()).records)
        history.start()
    await asyncio.sleep(61)

    assert LocalDirectory(late / "data set").read("part-00000.parquet") is None
    assert data.read("the user's result") == b"rows"
    assert list(history) == [job]
    history.stop()
    await network.close()


@on_virtual_time
async def test_late_result_whose_deletion_failed_is_deleted_once_the_storage_works_again(
    tmp_path: Path,
) -> None:
    network = LocalNetwork()
    service = LocalRpcService("Dispatcher", network)
    endpoint = RpcEndpoint(service, "dispatcher")
    endpoint.start()
    stores = EmbeddedHaServices(MemoryDirectory(), service.executor)
    store = stores.get_job_result_store(ArchivedJob)
    job = ended(endpoint.clock.time())
    history = JobHistory(endpoint, store, ReadableConfig({}), str(tmp_path))
    history.start()
    history.add(job)
    late = Path(results_of_job(str(tmp_path), job.job_id))
    blocking = LocalDirectory(late.parent)
    blocking.write("results", b"where a directory would have to be")
    await asyncio.sleep(90)

    blocking.delete("results")
    LocalDirectory(late / "data set").write("part-00000.parquet", b"rows")
    await asyncio.sleep(2)

    assert LocalDirectory(late / "data set").read("part-00000.parquet") is None
    history.stop()
    await network.close()
