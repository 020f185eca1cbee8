"""Contenders that have died do not keep their place until their session ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha import LeaderElection, StoreError, open_directory
from flinkray.ha.zookeeper import ZooKeeperClient, ZooKeeperHaServices
from flinkray.ha.zookeeper.dead_contenders import DeadContenders
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.testing.virtual_time import on_virtual_time
from flinkray.testing.waiting import eventually
from tests.ha.recorders import RecordingContender, place_taken
from tests.zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.timeout(600)

JOB = JobID(b"a job of a test.")


@stored("tests.DeadContendersGraph")
@message
class Graph:
    """Stands for a job graph."""

    job_id: JobID


Process = tuple[LocalRpcService, ZooKeeperHaServices]
MakeProcess = Callable[[str], Awaitable[Process]]


@pytest.fixture
async def make_process(
    zookeeper: ZooKeeperServer, root: str, tmp_path: Path, executor: Executor
) -> AsyncIterator[MakeProcess]:
    """A pretended process and its services, whose session lives on when the process dies."""
    network = LocalNetwork()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(network.close)

        async def make(name: str) -> Process:
            client = ZooKeeperClient(zookeeper.hosts, root, 4.0)
            await client.connect(60)
            storage = open_directory(str(tmp_path / "storage"))
            rpc_service = LocalRpcService(name, network)
            services = ZooKeeperHaServices(client, storage, executor, rpc_service)
            stack.push_async_callback(services.close)
            return rpc_service, services

        yield make


async def contend(election: LeaderElection) -> RecordingContender:
    contender = RecordingContender()
    await election.start_leader_election(contender)
    return contender


async def granted(contender: RecordingContender) -> LeaderSessionID:
    await eventually(
        lambda: bool(contender.story) and isinstance(contender.story[-1], LeaderSessionID),
        300,
        "a grant",
    )
    return contender.session_id


def stop_looking(services: ZooKeeperHaServices) -> None:
    """Of a process that is dead: it looks at no other one any more."""
    for driver in services._drivers.values():
        latch = driver._latch
        assert latch is not None
        assert latch._dead is not None
        latch._dead.stop()


async def test_third_contender_leads_when_the_first_two_died_although_their_sessions_live(
    make_process: MakeProcess,
) -> None:
    processes = {name: await make_process(name) for name in ("one", "two", "three")}
    contenders = {}
    for place, (name, (_, services)) in enumerate(processes.items()):
        contenders[name] = await contend(services.get_dispatcher_leader_election())
        await place_taken(services, "dispatcher", place + 1)
    await granted(contenders["one"])
    network = processes["three"][0].network
    for name in ("two", "one"):
        network.crash(name)
        stop_looking(processes[name][1])
    await granted(contenders["three"])
    assert contenders["two"].story == []


async def test_leader_believed_dead_is_revoked_and_its_writes_are_refused(
    make_process: MakeProcess,
) -> None:
    process, services = await make_process("one")
    election = services.get_dispatcher_leader_election()
    taken_for_dead = await contend(election)
    session = await granted(taken_for_dead)
    await election.confirm_leadership(session, "one/dispatcher")
    assert await election.has_leadership(session)
    _, others = await make_process("two")
    contender = await contend(others.get_dispatcher_leader_election())
    process.network.crash("one")  # and its threads do not know
    await granted(contender)
    published = services._client.path("leader", "dispatcher", "connection_info")
    assert not others._client.blocking(lambda zk: zk.exists(published)), "it could be found"
    assert not await election.has_leadership(session)
    with pytest.raises(StoreError, match="lead"):
        await services.get_job_graph_store(Graph).put_job_graph(Graph(JOB))
    await eventually(lambda: "revoked" in taken_for_dead.story, 300, "the loss to be told")


async def test_restarted_process_leads_without_waiting_for_its_predecessors_session(
    make_process: MakeProcess,
) -> None:
    """HA-28: the JobMasters of a job have one process name, and each leads in a session of its
    own."""
    process, services = await make_process("JobMaster")
    first, second = LeaderSessionID.generate(), LeaderSessionID.generate()
    contender = await contend(services.get_job_master_leader_election(JOB, first))
    assert await granted(contender) == first
    process.network.crash("JobMaster")
    _, successor = await make_process("JobMaster")
    contender = await contend(successor.get_job_master_leader_election(JOB, second))
    assert await granted(contender) == second


@on_virtual_time
async def test_death_of_a_leader_reported_while_its_watch_is_stopped_raises_no_error() -> None:
    """The death comes after the waiter was cancelled and before the watch is."""
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["message"]))
    for turns in range(12):
        network = LocalNetwork()
        service = LocalRpcService("standby", network)
        LocalRpcService("leader", network)
        nobody: Any = None
        dead = DeadContenders(nobody, "connection_info", service)
        dead.watch("latch", "leader#2")
        await asyncio.sleep(1)
        network.crash("leader")
        for _ in range(turns):
            await asyncio.sleep(0)
        dead.stop()
        await asyncio.sleep(1)
        await network.close()
    assert errors == []
