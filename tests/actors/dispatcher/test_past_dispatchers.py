"""A Dispatcher that leads no more leaves to its successor what is its successor's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from flinkray.actors.dispatcher.endpoint import Dispatcher
from flinkray.actors.dispatcher.job_blobs import JobBlobs
from flinkray.actors.dispatcher.job_master_supervision import JobMasterSupervision
from flinkray.actors.dispatcher.managed_job import JobMasterDeaths, ManagedJob
from flinkray.actors.gateways.job_processes import KINDS, job_master_process
from flinkray.actors.gateways.messages import ClusterArguments, job_master_resource_id
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership
from flinkray.blob import BlobKey, BlobOwner, BlobServerGateway, blob_server_beside
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import RecipientUnreachableError
from flinkray.core.ids import DispatcherId, JobMasterId
from flinkray.ha import EmbeddedHaServices, MemoryDirectory, StoreError
from flinkray.ha.services import DISPATCHER_ADDRESS
from flinkray.rpc import FencedRpcEndpoint, LocalNetwork, LocalRpcService
from flinkray.scheduler.graph.job_graph import ParallelismRange, SchedulerMode
from flinkray.testing.function_jobs import python_job
from flinkray.testing.virtual_time import on_virtual_time


class LostDirectory(MemoryDirectory):
    """Nobody can write to it any more, once that is said."""

    def __init__(self, path: str = "memory:") -> None:
        super().__init__(path)
        self.is_lost = False

    def write(self, name: str, data: bytes) -> None:
        if self.is_lost:
            raise OSError("ZooKeeper does not answer")
        super().write(name, data)

    def subdirectory(self, name: str) -> MemoryDirectory:
        return self


def parts(storage: Path) -> list[Path]:
    return list(storage.glob("blobs/*"))


@on_virtual_time
async def test_past_dispatcher_deletes_no_blob(tmp_path: Path) -> None:
    """Half of the blob was uploaded to the past Dispatcher, and the whole blob to its successor,
    before the past Dispatcher wakes up and ends."""
    service = LocalRpcService("Dispatcher", LocalNetwork())
    services = ClusterServices.create(service, ClusterArguments("test", {}, str(tmp_path)))
    elections = EmbeddedHaServices(MemoryDirectory(), service.executor)
    leadership = await Leadership.win(elections.get_dispatcher_leader_election())
    blobs = await JobBlobs.create(services, leadership)
    blobs.start()
    server = await service.connect(blob_server_beside(DISPATCHER_ADDRESS), BlobServerGateway)
    await server.put(BlobOwner("a-job"), BlobKey.of(b"two parts"), 0, b"two")
    stored = parts(tmp_path)
    assert stored
    await elections.dispatcher_leader_service.revoke_leadership()
    await asyncio.sleep(0)
    await blobs.close()
    assert parts(tmp_path) == stored
    await service.network.close()


@on_virtual_time
async def test_past_dispatcher_starts_kills_and_replaces_no_job_master() -> None:
    """DI-17: the JobMasters of the successor have the same names as those of the past
    Dispatcher."""
    network = LocalNetwork()
    service = LocalRpcService("Dispatcher", network)
    services = EmbeddedHaServices(MemoryDirectory(), service.executor)
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    dispatcher = FencedRpcEndpoint(service, "dispatcher", DispatcherId.of(leadership.session_id))
    dispatcher.start()

    async def nobody_dies(*_: object) -> None:
        raise AssertionError("it acts on deaths that its successor has seen to")

    supervision = JobMasterSupervision(
        dispatcher,
        ClusterArguments("test", {}, "nowhere"),
        leadership,
        "tests.nowhere:create_job_master",
        job=lambda _: None,
        on_terminated=nobody_dies,
        on_unstartable=nobody_dies,
    )
    loop = asyncio.get_running_loop()
    graph = python_job(lambda context: None)
    job = ManagedJob(
        graph,
        0.0,
        JobMasterDeaths(ReadableConfig()),
        loop.create_future(),
        loop.create_future(),
        loop.create_future(),
        ReadableConfig(),
    )
    left = [LocalRpcService(f"{kind}-{job.job_id}-1", network) for kind in KINDS]
    await supervision.kill(job.job_id)
    assert not any(process.is_up for process in left), "as long as it leads"

    name = job_master_process(job.job_id)
    successors = LocalRpcService(name, network)
    await services.dispatcher_leader_service.revoke_leadership()
    await asyncio.sleep(0)

    await supervision.start(job)
    await supervision.kill(job.job_id)
    supervision._deaf(job_master_resource_id(name, JobMasterId.generate()), "it is silent")
    await asyncio.sleep(10)

    assert successors.is_up
    assert dispatcher.is_running
    await network.close()


@on_virtual_time
async def test_past_dispatcher_does_not_tell_clients_that_their_change_was_not_stored(
    tmp_path: Path,
) -> None:
    """HA-27: a submission that is under way when the Dispatcher loses leadership may be stored, and
    then run. Clients ask the next Dispatcher, which knows."""
    service = LocalRpcService("Dispatcher", LocalNetwork())
    storage = LostDirectory()
    elections = EmbeddedHaServices(storage, service.executor)
    arguments = ClusterArguments("test", {}, str(tmp_path))
    services = replace(ClusterServices.create(service, arguments), high_availability=elections)
    leadership = await Leadership.win(elections.get_dispatcher_leader_election())
    dispatcher = Dispatcher(service, services, leadership)
    await dispatcher.recover()
    running, new, fixed = (python_job(lambda context: None) for _ in range(3))
    elastic = replace(fixed, scheduler_mode=SchedulerMode.ADAPTIVE)
    for job in (running, elastic):
        dispatcher._manage(job, 0.0).accepted.set_result(None)

    storage.is_lost = True
    with pytest.raises(StoreError):
        await dispatcher.cancel_job(running.job_id)
    await elections.dispatcher_leader_service.revoke_leadership()
    for question in (
        dispatcher.submit_job(new),
        dispatcher.cancel_job(running.job_id),
        dispatcher.resize_job(elastic.job_id, (), ParallelismRange(1, 2)),
    ):
        with pytest.raises(RecipientUnreachableError, match=r"leads no more .*does not answer"):
            await question
    await service.network.close()
