"""Jobs that run replicas of models: one for each model, until no job uses the model."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.dispatcher.job_blobs import JobBlobs
from flinkray.actors.dispatcher.model_jobs import PATIENCE
from flinkray.core.errors import JobNotFoundError
from flinkray.core.ids import JobID
from flinkray.scheduler.graph.job_graph import HELD_MODEL, JobGraph
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.cluster_under_test import scripted_job
from flinkray.testing.mini_cluster import MiniCluster
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.actors.conftest import QUICK


def model(name: str) -> JobGraph:
    """The test needs no replicas: a job that waits stands in for them."""
    job = scripted_job(["register", "wait"])
    (vertex,) = job.vertices
    invokable = replace(vertex.invokable, configuration={HELD_MODEL: name})
    return replace(job, vertices=(replace(vertex, invokable=invokable),))


async def user(cluster: MiniCluster) -> JobID:
    return await cluster.submit(scripted_job(["register", "wait"]))


async def ensured(cluster: MiniCluster, user: JobID, name: str) -> JobID:
    return await (await cluster.dispatcher()).ensure_model(user, model(name))


async def end(cluster: MiniCluster, job_id: JobID) -> None:
    dispatcher = await cluster.dispatcher()
    await dispatcher.cancel_job(job_id)
    assert (await dispatcher.request_job_result(job_id)).status is JobStatus.CANCELED


async def status(cluster: MiniCluster, job_id: JobID) -> JobStatus:
    return await (await cluster.dispatcher()).request_job_status(job_id)


async def has_ended(cluster: MiniCluster, job_id: JobID) -> None:
    async def is_cancelled() -> bool:
        return await status(cluster, job_id) is JobStatus.CANCELED

    await eventually(is_cancelled, 60, "the end of the job")


async def test_jobs_that_name_the_same_model_share_one_job_of_replicas(
    cluster: MiniCluster,
) -> None:
    users = [await user(cluster) for _ in range(3)]
    found = await asyncio.gather(*(ensured(cluster, one, "shared") for one in users))
    assert len(set(found)) == 1
    assert await ensured(cluster, users[0], "other") not in found


async def test_model_ends_with_the_last_job_that_uses_it(cluster: MiniCluster) -> None:
    first, second = await user(cluster), await user(cluster)
    shared = await ensured(cluster, first, "shared")
    own = await ensured(cluster, first, "own")
    await ensured(cluster, second, "shared")
    models = await (await cluster.dispatcher()).list_models()
    assert {model.job_id: model.users for model in models} == {
        shared: tuple(sorted((first, second))),
        own: (first,),
    }

    await end(cluster, first)
    await has_ended(cluster, own)
    assert not (await status(cluster, shared)).is_terminal
    await end(cluster, second)
    await has_ended(cluster, shared)

    (cause,) = await (await cluster.dispatcher()).request_job_exceptions(shared)
    assert cause.text == "no job uses the model any more"


async def test_ended_job_neither_starts_nor_keeps_a_model(cluster: MiniCluster) -> None:
    """Its last task may ask after its end."""
    first, second = await user(cluster), await user(cluster)
    shared = await ensured(cluster, first, "shared")
    await ensured(cluster, second, "shared")
    await end(cluster, first)
    dispatcher = await cluster.dispatcher()
    with pytest.raises(JobNotFoundError, match=str(first)):
        await dispatcher.ensure_model(first, model("another"))
    with pytest.raises(JobNotFoundError, match=str(first)):
        await dispatcher.find_replicas(first, shared)
    await end(cluster, second)
    await has_ended(cluster, shared)
    with pytest.raises(JobNotFoundError):
        await dispatcher.find_replicas(second, shared)


async def replace_dispatcher(cluster: MiniCluster) -> None:
    cluster.crash("Dispatcher")

    async def answers() -> bool:
        return bool(await (await cluster.dispatcher()).list_jobs())

    await eventually(answers, 150, "the next Dispatcher")


async def asks(cluster: MiniCluster, user: JobID, model: JobID) -> None:
    """As the tasks of the job do again and again."""
    assert await (await cluster.dispatcher()).find_replicas(user, model) == ()


@on_virtual_time
async def test_next_dispatcher_ends_only_models_that_no_job_asks_for(tmp_path: Path) -> None:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        first, second = await user(cluster), await user(cluster)
        used = await ensured(cluster, first, "used")
        unused = await ensured(cluster, second, "unused")
        await replace_dispatcher(cluster)
        await asks(cluster, first, used)
        await asyncio.sleep(PATIENCE / 2)
        assert not (await status(cluster, unused)).is_terminal
        await asyncio.sleep(PATIENCE)
        assert await status(cluster, unused) is JobStatus.CANCELED
        assert not (await status(cluster, used)).is_terminal
        await end(cluster, first)
        await has_ended(cluster, used)


@on_virtual_time
async def test_next_dispatcher_keeps_a_model_until_all_its_users_had_time_to_ask(
    tmp_path: Path,
) -> None:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        first, second = await user(cluster), await user(cluster)
        shared = await ensured(cluster, first, "shared")
        await ensured(cluster, second, "shared")
        await replace_dispatcher(cluster)
        await asks(cluster, first, shared)
        await end(cluster, first)
        await asks(cluster, second, shared)
        await asyncio.sleep(2 * PATIENCE)
        assert not (await status(cluster, shared)).is_terminal
        await end(cluster, second)
        await has_ended(cluster, shared)


async def test_model_of_a_job_that_ends_while_the_model_is_stored_ends_too(
    cluster: MiniCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, retain = await user(cluster), JobBlobs.retain

    async def ends_meanwhile(blobs: JobBlobs, graph: JobGraph) -> None:
        await retain(blobs, graph)
        await end(cluster, first)

    monkeypatch.setattr(JobBlobs, "retain", ends_meanwhile)
    of_model = model("late")
    with pytest.raises(JobNotFoundError, match=str(first)):
        await (await cluster.dispatcher()).ensure_model(first, of_model)
    await has_ended(cluster, of_model.job_id)
