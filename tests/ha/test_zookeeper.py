"""Elections, retrievals and fenced stores on a real ZooKeeper server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss

from flinkray.core.errors import UnreadableRecordError
from flinkray.core.ids import JobID, LeaderSessionID
from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.ha import (
    CompletedCheckpointPointer,
    JobStoreStateError,
    LeaderElection,
    LeaderElectionError,
    StoreError,
    open_directory,
)
from flinkray.ha.zookeeper import ZooKeeperClient, ZooKeeperError, ZooKeeperHaServices
from flinkray.ha.zookeeper.client import Watching
from flinkray.ha.zookeeper.leader_drivers import _Latch
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.testing.waiting import eventually
from tests.ha.conftest import on_zookeeper
from tests.ha.recorders import (
    Leader,
    RecordingContender,
    RecordingListener,
    callbacks_delivered,
    place_taken,
)
from tests.rpc.test_patience import SteppedLoop
from tests.zookeeper_server import ZooKeeperEnsemble, ZooKeeperServer

pytestmark = pytest.mark.timeout(600)

JOB = JobID(b"a job of a test.")
SESSION = LeaderSessionID.generate()
NO_LEADER: Leader = (None, None)
SESSION_TIMEOUT = 4.0
"""Seconds; of tests that do not wait for a session to expire."""


@stored("tests.ZooKeeperGraph")
@message
class Graph:
    """Stands for a job graph."""

    job_id: JobID
    text: str = ""


MakeServices = Callable[..., Awaitable[ZooKeeperHaServices]]


@pytest.fixture
async def make_services(
    zookeeper: ZooKeeperServer, root: str, tmp_path: Path, executor: Executor
) -> AsyncIterator[MakeServices]:
    """Services of one cluster, each with a session of its own, as in processes of their own."""
    async with AsyncExitStack() as stack:

        async def make(
            hosts: str = zookeeper.hosts, timeout: float = SESSION_TIMEOUT
        ) -> ZooKeeperHaServices:
            client = ZooKeeperClient(hosts, root, timeout)
            await client.connect(60)
            storage = open_directory(str(tmp_path / "storage"))
            services = ZooKeeperHaServices(client, storage, executor)
            stack.push_async_callback(services.close)
            return services

        yield make


async def contend(election: LeaderElection) -> RecordingContender:
    contender = RecordingContender()
    await election.start_leader_election(contender)
    return contender


async def lead(election: LeaderElection, address: str = "here") -> RecordingContender:
    """Granted and confirmed."""
    contender = await contend(election)
    await granted(contender)
    await election.confirm_leadership(contender.session_id, address)
    return contender


async def granted(contender: RecordingContender, times: int = 1) -> None:
    def are() -> bool:
        return sum(isinstance(event, LeaderSessionID) for event in contender.story) >= times

    await eventually(are, 300, "a grant")


async def listen(services: ZooKeeperHaServices) -> RecordingListener:
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    return listener


async def told(listener: RecordingListener, leader: Leader, times: int = 1) -> None:
    await eventually(lambda: listener.leaders.count(leader) >= times, 300, f"{leader} to be told")


def expire(services: ZooKeeperHaServices, server: ZooKeeperServer) -> None:
    """The server ends its session as if it had been silent for too long."""
    client = services._client.blocking(lambda zk: zk)
    is_over = threading.Event()

    def stay_away(_: str) -> None:
        """In the thread that would connect again, and have the session back."""
        is_over.wait(300)

    client.add_listener(stay_away)
    other = KazooClient(server.hosts, client_id=client.client_id)
    other.start()
    other.stop()
    other.close()
    is_over.set()
    client.remove_listener(stay_away)


async def test_second_of_two_contenders_is_granted_leadership_when_the_first_leaves(
    make_services: MakeServices,
) -> None:
    """SPEC HA-01, HA-02, HA-05, HA-10."""
    services, others = await make_services(), await make_services()
    listener = await listen(others)
    first = services.get_dispatcher_leader_election()
    one = await contend(first)
    await granted(one)
    second = others.get_dispatcher_leader_election()
    other = await contend(second)
    another_job = await contend(others.get_job_master_leader_election(JOB, SESSION))
    await granted(another_job)
    assert (other.story, listener.leaders) == ([], [])

    await first.confirm_leadership(one.session_id, "one")
    await told(listener, ("one", one.session_id))
    later = await listen(services)
    await told(later, ("one", one.session_id))
    await first.close()
    assert one.story == [one.session_id, "revoked"]
    await told(listener, NO_LEADER)
    await granted(other)
    await second.confirm_leadership(other.session_id, "other")
    await told(listener, ("other", other.session_id))
    assert listener.leaders == [
        ("one", one.session_id),
        NO_LEADER,
        ("other", other.session_id),
    ]
    await second.close()
    await told(listener, NO_LEADER, 2)


async def test_leader_whose_zookeeper_session_expires_is_revoked_and_granted_a_new_session(
    make_services: MakeServices, zookeeper: ZooKeeperServer, root: str
) -> None:
    """SPEC HA-03, HA-12, HA-14."""
    services, others = await make_services(), await make_services()
    listener = await listen(others)
    election = services.get_dispatcher_leader_election()
    contender = await lead(election, "first")
    old = contender.session_id
    await told(listener, ("first", old))
    assert await election.has_leadership(old)
    assert not await election.has_leadership(LeaderSessionID.generate())

    expire(services, zookeeper)  # blocks the loop: nothing has been told yet
    await election.confirm_leadership(old, "late")
    await granted(contender, 2)
    new = contender.session_id
    assert contender.story == [old, "revoked", new]
    assert new != old
    await election.confirm_leadership(old, "later still")
    information = f"/{root}/leader/dispatcher/connection_info"
    assert not others._client.blocking(lambda zk: zk.exists(information))
    await election.confirm_leadership(new, "second")
    await told(listener, ("second", new))
    assert not await election.has_leadership(old)
    assert listener.leaders[0] == ("first", old)
    assert {address for address, _ in listener.leaders} == {"first", "second", None}


async def test_has_leadership_asks_the_zookeeper_server(
    make_services: MakeServices, zookeeper: ZooKeeperServer
) -> None:
    """SPEC HA-12: a leader that wakes up may not have heard of its loss yet."""
    services, others = await make_services(), await make_services()
    election = services.get_dispatcher_leader_election()
    contender = await lead(election)
    fence = services._drivers["leader/dispatcher"].fence
    assert fence is not None
    others._client.blocking(lambda zk: zk.delete(fence))  # blocks the loop: nothing has been told
    assert services._drivers["leader/dispatcher"].has_leadership()
    assert not await election.has_leadership(contender.session_id)


async def test_has_leadership_is_false_after_a_session_loss_before_the_event_is_handled(
    make_services: MakeServices, zookeeper: ZooKeeperServer
) -> None:
    """SPEC HA-12: the event loop is busy meanwhile."""
    services = await make_services()
    election = services.get_dispatcher_leader_election()
    contender = await lead(election)
    connection_lost = False

    def changed(is_connected: bool) -> None:
        nonlocal connection_lost
        connection_lost |= not is_connected

    services._client.add_listener(changed)
    expire(services, zookeeper)
    while not connection_lost:  # without a turn of the loop
        services._client.blocking(lambda zk: zk.handler.sleep_func(0.001))
    assert not await election.has_leadership(contender.session_id)
    assert contender.story == [contender.session_id]
    await granted(contender, 2)


async def test_past_leader_does_not_change_the_address_published_by_its_successor(
    make_services: MakeServices, zookeeper: ZooKeeperServer
) -> None:
    """SPEC HA-09, HA-10."""
    services, others = await make_services(), await make_services()
    first, second = (it.get_dispatcher_leader_election() for it in (services, others))
    one = await lead(first, "one")
    other = await contend(second)
    await place_taken(others, "dispatcher", 2)  # or else the first may be there before it again
    expire(services, zookeeper)
    await granted(other)
    await second.confirm_leadership(other.session_id, "other")
    await eventually(lambda: "revoked" in one.story, 300, "the loss")
    await first.confirm_leadership(one.session_id, "one again")
    await first.close()
    assert one.story.count("revoked") == 1
    listener = await listen(services)
    await told(listener, ("other", other.session_id))
    assert len(listener.leaders) == 1
    assert await second.has_leadership(other.session_id)


async def test_zookeeper_election_closed_during_a_grant_drops_it_and_another_one_can_lead(
    make_services: MakeServices,
) -> None:
    """SPEC HA-04, HA-11, HA-15."""
    services = await make_services()
    early = services.get_dispatcher_leader_election()
    contender = await contend(early)
    await early.close()
    await early.close()
    assert contender.story == []
    with pytest.raises(LeaderElectionError, match="one contender"):
        await early.start_leader_election(contender)
    unused = services.get_dispatcher_leader_election()
    await unused.close()
    again = services.get_dispatcher_leader_election()
    await lead(again)
    with pytest.raises(LeaderElectionError, match="one contender"):
        await again.start_leader_election(RecordingContender())


async def test_published_leader_address_is_removed_with_its_zookeeper_session(
    make_services: MakeServices,
) -> None:
    """SPEC HA-19."""
    services, others = await make_services(), await make_services()
    await lead(services.get_dispatcher_leader_election())
    first = await listen(others)
    await eventually(lambda: len(first.leaders) == 1, 300, "a leader")
    await services.close()
    await told(first, NO_LEADER)
    later = await listen(others)
    # another znode's change is told after all that was known before
    other = await lead(others.get_resource_manager_leader_election())
    resource_managers = RecordingListener()
    await others.get_resource_manager_leader_retriever().start(resource_managers)
    await told(resource_managers, ("here", other.session_id))
    assert later.leaders == []


async def test_listener_is_told_of_the_same_leader_once_and_of_no_leader_after_its_stop(
    make_services: MakeServices,
) -> None:
    """SPEC HA-16."""
    services, others = await make_services(), await make_services()
    election = services.get_dispatcher_leader_election()
    contender = await lead(election)
    listener, stopped = RecordingListener(), RecordingListener()
    retriever = others.get_dispatcher_leader_retriever()
    await retriever.start(stopped)
    await others.get_dispatcher_leader_retriever().start(listener)
    await told(stopped, ("here", contender.session_id))
    await retriever.stop()
    await election.confirm_leadership(contender.session_id, "here")
    await election.confirm_leadership(contender.session_id, "there")
    await told(listener, ("there", contender.session_id))
    await election.close()
    await told(listener, NO_LEADER)
    here, there = (("here", contender.session_id), ("there", contender.session_id))
    assert listener.leaders == [here, there, NO_LEADER]
    assert stopped.leaders == [here]


async def test_leader_publishes_its_address_again_if_the_address_is_deleted(
    make_services: MakeServices, root: str
) -> None:
    services = await make_services()
    contender = await lead(services.get_dispatcher_leader_election())
    listener = await listen(services)
    await told(listener, ("here", contender.session_id))
    path = f"/{root}/leader/dispatcher/connection_info"
    services._client.blocking(lambda zk: zk.delete(path))
    await told(listener, ("here", contender.session_id), 2)
    assert contender.story == [contender.session_id]


async def test_leader_publishes_its_address_although_the_connection_breaks_meanwhile(
    make_services: MakeServices, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the confirmation and with it the process of the leader would fail."""
    services, others = await make_services(), await make_services()
    election = services.get_dispatcher_leader_election()
    contender = await contend(election)
    await granted(contender)
    client, path = services._client, f"/{root}/leader/dispatcher/connection_info"
    do, happened = client.do, list[str]()

    async def do_in_a_bad_moment(begin: Callable[[KazooClient], Any]) -> Any:
        if begin.__qualname__.endswith("_put.<locals>.begin") and not happened:
            happened.append("somebody was quicker")
            others._client.blocking(lambda zk: zk.create(path, b"somebody"))
        elif "_is_there" in begin.__qualname__ and len(happened) == 1:
            happened.append("the connection broke")
            raise ConnectionLoss
        return await do(begin)

    monkeypatch.setattr(client, "do", do_in_a_bad_moment)
    await election.confirm_leadership(contender.session_id, "here")
    assert happened == ["somebody was quicker", "the connection broke"]
    listener = await listen(others)
    await told(listener, ("here", contender.session_id))
    assert contender.story == [contender.session_id]


async def test_leader_whose_latch_node_is_deleted_is_revoked_and_the_next_one_leads(
    make_services: MakeServices, root: str
) -> None:
    """The successor is found, although the address published by the first leader still exists."""
    services, others = await make_services(), await make_services()
    contender = await lead(services.get_dispatcher_leader_election(), "first")
    election = others.get_dispatcher_leader_election()
    next_one = await contend(election)
    path = f"/{root}/leader/dispatcher/latch"
    await eventually(lambda: len(latches(services, path)) == 2, 300, "two contenders")
    first, _ = sorted(latches(services, path), key=lambda name: name[-10:])
    services._client.blocking(lambda zk: zk.delete(f"{path}/{first}"))
    await granted(next_one)
    await election.confirm_leadership(next_one.session_id, "second")
    await eventually(lambda: "revoked" in contender.story, 300, "the loss")
    assert contender.story == [contender.session_id, "revoked"]
    listener = await listen(services)
    await told(listener, ("second", next_one.session_id))


def latches(services: ZooKeeperHaServices, path: str) -> list[str]:
    return services._client.blocking(lambda zk: list(zk.get_children(path)))


async def test_connection_break_while_a_grant_is_confirmed_postpones_the_leadership(
    make_services: MakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = await make_services()
    client = services._client
    watch = _Latch._watch
    answered = asyncio.Event()

    async def watch_and_lose(latch: _Latch, path: str) -> bool:
        monkeypatch.undo()
        answer = await watch(latch, path)
        client._state_changed(KazooState.SUSPENDED)
        answered.set()
        return answer

    monkeypatch.setattr(_Latch, "_watch", watch_and_lose)
    contender = await contend(services.get_dispatcher_leader_election())
    await answered.wait()
    await callbacks_delivered()
    driver = services._drivers["leader/dispatcher"]
    assert (driver.fence, contender.story) == (None, [])
    client._state_changed(KazooState.CONNECTED)
    await granted(contender)


@pytest.mark.smoke
async def test_ten_zookeeper_contenders_lead_one_after_the_other(
    make_services: MakeServices,
) -> None:
    """SPEC HA-18."""
    watching = await make_services()
    listener = await listen(watching)
    left = [await make_services() for _ in range(10)]
    contenders: dict[str, tuple[ZooKeeperHaServices, RecordingContender]] = {}
    for number, services in enumerate(left):
        election = services.get_dispatcher_leader_election()
        contenders[str(number)] = (services, await contend(election))

        async def confirm(
            election: LeaderElection, contender: RecordingContender, address: str
        ) -> None:
            await granted(contender)
            await election.confirm_leadership(contender.session_id, address)

        task = asyncio.ensure_future(confirm(election, contenders[str(number)][1], str(number)))
        services.confirming = task  # type: ignore[attr-defined]
    leaders: list[str] = []
    for _ in range(10):
        await eventually(lambda: listener.leaders and listener.leaders[-1][0], 300, "a leader")
        address, session_id = listener.leaders[-1]
        assert address is not None
        services, contender = contenders[address]
        assert contender.session_id == session_id
        leaders.append(address)
        told_so_far = len(listener.leaders)
        await services.close()
        await eventually(
            lambda so_far=told_so_far: len(listener.leaders) > so_far,  # type: ignore[misc]
            300,
            "the next leader, or none",
        )
    assert sorted(leaders) == sorted(contenders)


@pytest.fixture
async def own_server() -> AsyncIterator[ZooKeeperServer]:
    """One that may be stopped."""
    server = ZooKeeperServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


async def test_leader_and_listener_recover_after_the_zookeeper_server_was_away(
    zookeeper: ZooKeeperServer, own_server: ZooKeeperServer, make_services: MakeServices
) -> None:
    """SPEC HA-17: a listener whose connection is suspended is told of no leader; a listener that
    never knew a leader is told nothing. The new grant has a new fence."""
    leading = await make_services(own_server.hosts)
    watching = await make_services(own_server.hosts)
    election = leading.get_dispatcher_leader_election()
    contender = await lead(election, "first")
    listener = await listen(watching)
    of_nobody = RecordingListener()
    await watching.get_resource_manager_leader_retriever().start(of_nobody)
    await told(listener, ("first", contender.session_id))
    driver = leading._drivers["leader/dispatcher"]
    fence = driver.fence
    assert fence is not None

    retrieval = watching.get_dispatcher_leader_retriever()
    await retrieval.start(RecordingListener())
    assert retrieval.outage is None
    own_server.stop()
    await told(listener, NO_LEADER)
    assert f"ZooKeeper, which says who leads, has not answered at {own_server.hosts} since" in (
        retrieval.outage or ""
    )
    await eventually(lambda: "revoked" in contender.story, 300, "the loss")
    own_server.start()
    await granted(contender, 2)
    await election.confirm_leadership(contender.session_id, "second")
    await told(listener, ("second", contender.session_id))
    assert of_nobody.leaders == []
    assert retrieval.outage is None
    assert driver.fence not in (None, fence)
    assert not leading._client.blocking(lambda zk: zk.exists(fence))


async def test_tolerated_connection_break_costs_the_leadership_only_if_it_lasts(
    zookeeper: ZooKeeperServer, root: str, tmp_path: Path, executor: Executor
) -> None:
    tolerance = PatientDeadlines(asyncio.get_running_loop())
    client = ZooKeeperClient(zookeeper.hosts, root, SESSION_TIMEOUT, tolerance=tolerance)
    await client.connect(60)
    services = ZooKeeperHaServices(client, open_directory(str(tmp_path)), executor)
    election = services.get_dispatcher_leader_election()
    contender = await lead(election)
    listener = await listen(services)
    leader = ("here", contender.session_id)
    await told(listener, leader)
    fence = services._drivers["leader/dispatcher"].fence

    client._state_changed(KazooState.SUSPENDED)
    await callbacks_delivered()
    client._state_changed(KazooState.CONNECTED)
    await eventually(lambda: election.has_leadership(contender.session_id), 300, "certainty")
    assert services._drivers["leader/dispatcher"].fence == fence

    client._patience = 0.0
    client._state_changed(KazooState.SUSPENDED)
    await told(listener, NO_LEADER)
    await eventually(lambda: "revoked" in contender.story, 300, "the loss")
    assert contender.story == [leader[1], "revoked"]
    assert listener.leaders == [leader, NO_LEADER]
    await services.close()
    tolerance.close()


class LoopOfOneThread(SteppedLoop):
    """What other threads hand over is done at once."""

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        callback()


def test_suspended_time_of_a_process_does_not_count_as_connection_loss() -> None:
    """The session may be alive: the machine, and ZooKeeper with it, may have been suspended."""
    loop: Any = LoopOfOneThread()
    client = ZooKeeperClient(
        "127.0.0.1:1", "root", SESSION_TIMEOUT, tolerance=PatientDeadlines(loop)
    )
    client._loop = loop
    told: list[bool] = []
    client.add_listener(told.append)

    client._state_changed(KazooState.SUSPENDED)
    loop.serve(1)
    loop.stand_still(60)
    loop.serve(0.5)
    assert told == []
    client._state_changed(KazooState.CONNECTED)
    assert told == [True]

    client._state_changed(KazooState.SUSPENDED)
    loop.serve(SESSION_TIMEOUT - 0.1)
    assert told == [True]
    loop.serve(0.2)
    assert told == [True, False]


@pytest.fixture
async def ensemble() -> AsyncIterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble()
    try:
        ensemble.start()
        yield ensemble
    finally:
        ensemble.close()


async def test_leadership_and_stores_work_on_after_a_zookeeper_ensemble_loses_its_leader(
    zookeeper: ZooKeeperServer, ensemble: ZooKeeperEnsemble, make_services: MakeServices
) -> None:
    services = await make_services(ensemble.hosts)
    election = services.get_dispatcher_leader_election()
    contender = await lead(election, "first")
    store = services.get_job_graph_store(Graph)
    await store.put_job_graph(Graph(JOB, "before"))
    ensemble.leader().stop()
    await granted(contender, 2)
    assert contender.story[1] == "revoked"
    await election.confirm_leadership(contender.session_id, "second")
    assert await store.recover_job_graph(JOB) == Graph(JOB, "before")
    await store.put_job_graph(Graph(JOB, "after"))
    listener = await listen(await make_services(ensemble.hosts))
    await told(listener, ("second", contender.session_id))


async def test_connecting_without_a_zookeeper_server_raises_an_error_with_the_address(
    root: str,
) -> None:
    client = ZooKeeperClient("127.0.0.1:1", root, SESSION_TIMEOUT)
    with pytest.raises(ZooKeeperError, match=r"no ZooKeeper server answers at 127\.0\.0\.1:1"):
        await client.connect(0.2)


# --- stores


async def test_only_the_leading_dispatcher_may_write_job_graphs_to_zookeeper(
    make_services: MakeServices,
) -> None:
    services = await make_services()
    store = services.get_job_graph_store(Graph)
    with pytest.raises(StoreError, match="only a leader"):
        await store.put_job_graph(Graph(JOB))
    await lead(services.get_resource_manager_leader_election())
    with pytest.raises(StoreError, match="only a leader"):
        await store.put_job_graph(Graph(JOB))
    await lead(services.get_dispatcher_leader_election())
    await store.put_job_graph(Graph(JOB, "mine"))
    others = await make_services()
    assert await others.get_job_graph_store(Graph).recover_job_graph(JOB) == Graph(JOB, "mine")


async def test_write_begun_by_a_leader_changes_nothing_after_its_session_expired(
    make_services: MakeServices,
    zookeeper: ZooKeeperServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader is paused between two steps of the write for longer than its session."""
    services, others = await make_services(), await make_services()
    one = await lead(services.get_dispatcher_leader_election())
    store = services.get_job_graph_store(Graph)
    await store.put_job_graph(Graph(JOB, "first"))
    other = await contend(others.get_dispatcher_leader_election())
    taken = others.get_job_graph_store(Graph)
    directory = store._entries._directory  # type: ignore[attr-defined]
    write = directory._storage.write

    def write_and_pause(name: str, data: bytes) -> None:
        write(name, data)
        expire(services, zookeeper)

    monkeypatch.setattr(directory._storage, "write", write_and_pause)
    with pytest.raises(StoreError, match="another leader has taken over"):
        await store.put_job_graph(Graph(JOB, "late"))
    await granted(other)
    assert "revoked" in one.story
    assert await taken.recover_job_graph(JOB) == Graph(JOB, "first")
    await taken.put_job_graph(Graph(JOB, "second"))
    with pytest.raises(StoreError):
        await store.remove_job_graph(JOB)
    assert await taken.recover_job_graph(JOB) == Graph(JOB, "second")
    assert len(list((tmp_path / "storage" / "job-graphs").iterdir())) == 1


def answers_are_lost(
    services: ZooKeeperHaServices, monkeypatch: pytest.MonkeyPatch, also: Callable[[], None]
) -> None:
    """What ZooKeeper is told next is done, and then, before anybody hears of it, *also*."""
    blocking = services._client.blocking

    def lose(work: Callable[[KazooClient], Any]) -> Any:
        blocking(work)
        monkeypatch.setattr(services._client, "blocking", blocking)
        also()
        raise ConnectionLoss

    monkeypatch.setattr(services._client, "blocking", lose)


async def test_entry_whose_write_was_committed_without_an_answer_is_recovered(
    make_services: MakeServices,
    zookeeper: ZooKeeperServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection breaks before the answer, and the session ends before the next one. Otherwise
    the content is deleted as that of a past leader, and no Dispatcher can read its jobs."""
    services, others = await make_services(), await make_services()
    await lead(services.get_dispatcher_leader_election())
    store = services.get_job_graph_store(Graph)
    await store.put_job_graph(Graph(JOB, "first"))
    other = await contend(others.get_dispatcher_leader_election())
    answers_are_lost(services, monkeypatch, lambda: expire(services, zookeeper))
    await store.put_job_graph(Graph(JOB, "second"))
    await granted(other)
    taken = others.get_job_graph_store(Graph)
    assert (await taken.recover_job_graphs()).records == (Graph(JOB, "second"),)
    assert len(list((tmp_path / "storage" / "job-graphs").iterdir())) == 1


async def test_job_graph_replaced_or_removed_without_an_answer_leaves_no_old_content(
    make_services: MakeServices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = await make_services()
    await lead(services.get_dispatcher_leader_election())
    store = services.get_job_graph_store(Graph)
    contents = tmp_path / "storage" / "job-graphs"
    await store.put_job_graph(Graph(JOB, "first"))
    answers_are_lost(services, monkeypatch, lambda: None)
    await store.put_job_graph(Graph(JOB, "second"))
    assert len(list(contents.iterdir())) == 1
    answers_are_lost(services, monkeypatch, lambda: None)
    await store.remove_job_graph(JOB)
    assert list(contents.iterdir()) == []


async def test_zookeeper_entry_without_content_is_unreadable_and_others_are_recovered(
    make_services: MakeServices, tmp_path: Path
) -> None:
    """Otherwise no Dispatcher can start, and a JobMaster waits for ever for its checkpoints."""
    services = await make_services()
    await lead(services.get_dispatcher_leader_election())
    graphs, results = (
        services.get_job_graph_store(Graph),
        services.get_job_result_store(Graph),
    )
    other = JobID(b"0" * 16)
    await graphs.put_job_graph(Graph(other))
    (kept,) = (tmp_path / "storage" / "job-graphs").iterdir()
    await graphs.put_job_graph(Graph(JOB))
    await results.create_dirty_result(Graph(JOB))
    for path in (tmp_path / "storage").glob(f"job-*/{JOB.hex()}*"):
        path.unlink()

    recovered = await graphs.recover_job_graphs()
    assert recovered.records == (Graph(other),)
    (unreadable,) = recovered.unreadable
    assert unreadable.job_id == JOB
    assert "is gone, and ZooKeeper points to it" in unreadable.reason
    assert [error.job_id for error in (await results.get_dirty_results()).unreadable] == [JOB]
    with pytest.raises(UnreadableRecordError):
        await graphs.recover_job_graph(JOB)
    assert await results.has_dirty_result(JOB)
    with pytest.raises(JobStoreStateError, match="is gone"):
        await results.mark_result_as_clean(JOB)

    kept.unlink()
    kept.parent.rmdir()  # as where it is not mounted
    with pytest.raises(StoreError, match="is its storage mounted"):
        await graphs.recover_job_graphs()


async def test_checkpoint_pointers_whose_contents_are_gone_are_reported_as_unreadable(
    make_services: MakeServices, tmp_path: Path
) -> None:
    services = await make_services()
    await lead(services.get_job_master_leader_election(JOB, SESSION))
    store = services.get_completed_checkpoint_store(JOB, "owner")
    counter = services.get_checkpoint_id_counter(JOB, "owner")
    await store.recover()
    await counter.start()
    await counter.get_and_increment()
    await store.add(CompletedCheckpointPointer(JOB, 1, "/1/_metadata"))
    for path in (tmp_path / "storage" / "checkpoint-pointers" / JOB.hex()).iterdir():
        path.unlink()
    recovered = await store.recover()
    assert recovered.records == ()
    assert len(recovered.unreadable) == 1
    with pytest.raises(UnreadableRecordError, match="is gone"):
        await services.get_checkpoint_id_counter(JOB, "next").start()


async def test_replaced_and_removed_contents_are_deleted_and_referenced_contents_are_kept(
    make_services: MakeServices, tmp_path: Path
) -> None:
    """SPEC HA-25."""
    services = await make_services()
    await lead(services.get_dispatcher_leader_election())
    store = services.get_job_graph_store(Graph)
    contents = tmp_path / "storage" / "job-graphs"
    for text in ("one", "two", "three"):
        await store.put_job_graph(Graph(JOB, text))
        assert len(list(contents.iterdir())) == 1
    other = JobID(b"0" * 16)
    await store.put_job_graph(Graph(other))
    assert await store.get_job_ids() == tuple(sorted((JOB, other)))
    await store.remove_job_graph(JOB)
    await store.remove_job_graph(JOB)
    assert await store.get_job_ids() == (other,)
    assert len(list(contents.iterdir())) == 1


async def test_writes_fail_while_the_zookeeper_server_is_away_and_stored_data_survive(
    own_server: ZooKeeperServer, make_services: MakeServices
) -> None:
    services = await make_services(own_server.hosts)
    contender = await lead(services.get_dispatcher_leader_election())
    store = services.get_job_graph_store(Graph)
    await store.put_job_graph(Graph(JOB, "before"))
    own_server.stop()
    await eventually(lambda: "revoked" in contender.story, 300, "the loss")
    with pytest.raises(StoreError):
        await store.put_job_graph(Graph(JOB, "meanwhile"))
    own_server.start()
    await granted(contender, 2)
    assert await store.recover_job_graph(JOB) == Graph(JOB, "before")
    await store.put_job_graph(Graph(JOB, "after"))
    assert await store.recover_job_graph(JOB) == Graph(JOB, "after")


async def test_all_job_results_are_read_with_few_requests_to_zookeeper(
    make_services: MakeServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Dispatcher that takes over waits for them."""
    services = await make_services()
    await lead(services.get_dispatcher_leader_election())
    results = services.get_job_result_store(Graph)
    jobs = {JobID.generate() for _ in range(6)}
    for job_id in jobs:
        await results.create_dirty_result(Graph(job_id))
        await results.mark_result_as_clean(job_id)
    asked = 0
    ask = services._client.ask

    def counted(question: Callable[[KazooClient], Any]) -> Any:
        nonlocal asked
        asked += 1
        return ask(question)

    monkeypatch.setattr(services._client, "ask", counted)
    recovered = await results.get_clean_results()
    assert {graph.job_id for graph in recovered.records} == jobs
    assert asked <= 3


def test_entry_replaced_during_a_bulk_read_is_read_with_its_new_content(
    zookeeper: ZooKeeperServer, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_zookeeper(zookeeper, root, tmp_path) as directory:
        for name in ("one", "two", "three"):
            directory.write(name, b"before")
        read = directory._storage.read

        def read_late(pointer: str) -> bytes | None:
            if pointer.startswith("two"):
                monkeypatch.undo()
                directory.write("two", b"after")
            return read(pointer)

        monkeypatch.setattr(directory._storage, "read", read_late)
        assert list(directory.read_many(("one", "two", "four", "three"))) == [
            ("one", b"before"),
            ("two", b"after"),
            ("four", None),
            ("three", b"before"),
        ]


async def test_cleanup_removes_only_the_zookeeper_nodes_and_files_of_the_cluster(
    make_services: MakeServices, zookeeper: ZooKeeperServer, root: str, tmp_path: Path
) -> None:
    """SPEC HA-21."""
    services = await make_services()
    await lead(services.get_dispatcher_leader_election())
    await lead(services.get_job_master_leader_election(JOB, SESSION))
    await services.get_job_graph_store(Graph).put_job_graph(Graph(JOB))
    (tmp_path / "storage" / "somebody else's").write_text("stays")
    other = ZooKeeperClient(zookeeper.hosts, f"{root}-2", SESSION_TIMEOUT)
    await other.connect(60)
    try:
        other.blocking(lambda zk: zk.create(other.path("kept"), makepath=True))
        assert other.blocking(lambda zk: zk.exists(f"/{root}/leader/{JOB.hex()}"))
        await services.cleanup_job(JOB)
        assert not other.blocking(lambda zk: zk.exists(f"/{root}/leader/{JOB.hex()}"))
        await services.close_and_cleanup_all_data()
        assert not other.blocking(lambda zk: zk.exists(f"/{root}"))
        assert other.blocking(lambda zk: zk.exists(other.path("kept")))
    finally:
        await other.close()
    left = {path.name for path in (tmp_path / "storage").rglob("*") if path.is_file()}
    assert left == {"somebody else's"}


async def test_foreign_node_among_the_latches_does_not_prevent_leadership(
    make_services: MakeServices,
) -> None:
    services = await make_services()
    latches = services._client.path("leader/dispatcher/latch")
    await services._client.do(lambda zk: zk.create_async(f"{latches}/note", makepath=True))
    await lead(services.get_dispatcher_leader_election())


class _Broken(Watching):
    """Fails by an error that is none of ZooKeeper's."""

    async def look(self) -> None:
        raise ValueError("what was read is no number")

    def connection_changed(self, is_connected: bool) -> None:
        """Nothing is kept of it."""


async def test_error_that_ends_a_zookeeper_watch_is_reported_to_its_owner(
    make_services: MakeServices,
) -> None:
    errors: list[str] = []
    watching = _Broken((await make_services())._client, lambda error: errors.append(str(error)))
    watching.start()
    await eventually(lambda: errors == ["what was read is no number"], 300, "the error")
    await watching.close()
