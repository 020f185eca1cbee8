"""An endpoint is made for one grant of leadership, and ends with it, whenever that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.shared.cluster_services import ClusterServices
from flinkray.actors.shared.leadership import Leadership, LeadershipLostError, StandbyMaster
from flinkray.core.config import ReadableConfig
from flinkray.core.ids import LeaderSessionID
from flinkray.ha import (
    EmbeddedHaServices,
    LeaderContender,
    LeaderElection,
    LeaderElectionError,
    MemoryDirectory,
)
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint, RpcService
from flinkray.testing.waiting import eventually
from tests.ha.recorders import RecordingListener, callbacks_delivered


@pytest.fixture
async def services() -> AsyncIterator[EmbeddedHaServices]:
    with ThreadPoolExecutor(1) as executor:
        services = EmbeddedHaServices(MemoryDirectory(), executor)
        yield services
        await services.close()


@pytest.fixture
async def endpoint() -> AsyncIterator[RpcEndpoint]:
    endpoint = RpcEndpoint(LocalRpcService("dispatcher", LocalNetwork()), "dispatcher")
    endpoint.start()
    yield endpoint
    endpoint.close()
    await asyncio.wait([endpoint.terminated])


async def test_leader_can_be_found_from_its_confirmation_to_the_loss_of_leadership(
    services: EmbeddedHaServices, endpoint: RpcEndpoint
) -> None:
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    await leadership.confirm(endpoint)
    await callbacks_delivered()
    assert listener.leaders == [(endpoint.address, leadership.session_id)]
    assert endpoint.is_running
    await services.dispatcher_leader_service.revoke_leadership()
    with pytest.raises(LeadershipLostError, match="dispatcher leads no more"):
        await endpoint.terminated
    assert listener.leaders[1:] == [(None, None)]


async def test_endpoint_ends_when_leadership_is_lost_before_the_confirmation(
    services: EmbeddedHaServices, endpoint: RpcEndpoint
) -> None:
    """Otherwise the endpoint would run on without leading."""
    service = services.dispatcher_leader_service
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    await service.revoke_leadership()
    await callbacks_delivered()
    await leadership.confirm(endpoint)
    with pytest.raises(LeadershipLostError):
        await endpoint.terminated


async def test_endpoint_ends_when_another_session_begins_before_the_confirmation(
    services: EmbeddedHaServices, endpoint: RpcEndpoint
) -> None:
    service = services.dispatcher_leader_service
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    await service.revoke_leadership()
    await service.grant_leadership()
    await callbacks_delivered()
    await leadership.confirm(endpoint)
    with pytest.raises(LeadershipLostError):
        await endpoint.terminated
    assert listener.leaders == []


async def test_leadership_that_is_revoked_before_its_grant_is_delivered_is_not_won(
    services: EmbeddedHaServices,
) -> None:
    service = services.dispatcher_leader_service
    winning = asyncio.ensure_future(Leadership.win(services.get_dispatcher_leader_election()))
    await asyncio.sleep(0)  # it takes part, and has not been told
    await service.revoke_leadership()
    await callbacks_delivered()
    assert not winning.done()
    await service.grant_leadership()
    leadership = await winning
    assert await leadership._election.has_leadership(leadership.session_id)


async def test_failed_election_reaches_waiting_callers_and_ends_the_endpoint(
    services: EmbeddedHaServices, endpoint: RpcEndpoint
) -> None:
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    waiting = asyncio.ensure_future(Leadership.win(services.get_dispatcher_leader_election()))
    await callbacks_delivered()
    await leadership.confirm(endpoint)
    services.dispatcher_leader_service.close()
    with pytest.raises(LeaderElectionError, match="was closed"):
        await waiting
    with pytest.raises((LeaderElectionError, LeadershipLostError)):
        await endpoint.terminated


class _FailingElection(LeaderElection):
    """Grants, and then fails by itself: it says nothing of the leadership any more."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self._contender: LeaderContender | None = None

    async def start_leader_election(self, contender: LeaderContender) -> None:
        self._contender = contender
        contender.grant_leadership(LeaderSessionID.generate())

    def fail(self) -> None:
        assert self._contender is not None
        self._contender.handle_error(LeaderElectionError("access was taken away"))

    async def confirm_leadership(self, session_id: LeaderSessionID, address: str) -> None:
        self.confirmed.append(address)

    async def has_leadership(self, session_id: LeaderSessionID) -> bool:
        return True

    async def close(self) -> None: ...


async def test_an_election_that_fails_between_grant_and_confirmation_ends_the_endpoint(
    endpoint: RpcEndpoint,
) -> None:
    """Otherwise the endpoint would lead for ever, because nobody reports the loss of leadership."""
    election = _FailingElection()
    leadership = await Leadership.win(election)
    election.fail()
    await leadership.confirm(endpoint)
    with pytest.raises(LeaderElectionError, match="access was taken away"):
        await endpoint.terminated
    assert election.confirmed == []


async def test_leadership_is_certain_from_winning_the_election_until_it_is_revoked(
    services: EmbeddedHaServices,
) -> None:
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    assert await leadership.is_certain()
    await services.dispatcher_leader_service.revoke_leadership()
    await callbacks_delivered()
    assert not await leadership.is_certain()


# --- those that stand by --------------------------------------------------------------------------


class Master:
    """The process of a master: what it makes of its turn is written down."""

    def __init__(self, name: str, services: EmbeddedHaServices, network: LocalNetwork) -> None:
        self.rpc_service = LocalRpcService(name, network)
        self.story: list[str] = []
        self.may_recover = asyncio.Event()
        cluster = ClusterServices(
            self.rpc_service,
            ClusterArguments("test", {}, "nowhere"),
            ReadableConfig(),
            _Shared(services),
        )
        election = services.get_dispatcher_leader_election()
        self.endpoint = StandbyMaster(cluster, election, self._make_leader)

    async def _make_leader(self, leadership: Leadership) -> RpcEndpoint:
        self.story.append("recovers")
        await self.may_recover.wait()
        self.story.append("is made")
        return _Leader(self.rpc_service, leadership)


class _Shared(EmbeddedHaServices):
    """Of a process whose end does not end the elections of others."""

    def __init__(self, services: EmbeddedHaServices) -> None:
        super().__init__(MemoryDirectory(), services._executor)


class _Leader(RpcEndpoint):
    def __init__(self, rpc_service: RpcService, leadership: Leadership) -> None:
        super().__init__(rpc_service, "dispatcher")
        self._leadership = leadership

    async def on_start(self) -> None:
        await self._leadership.confirm(self)

    async def on_stop(self) -> None:
        await self._leadership.give_up()


async def test_standby_master_recovers_then_starts_then_is_found(
    services: EmbeddedHaServices,
) -> None:
    """DI-16, DI-17: the standby does so when the first master has lost leadership. The first master
    ends with an error, so that its process is restarted."""
    network = LocalNetwork()
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    first, second = (Master(name, services, network) for name in ("one", "two"))
    first.endpoint.start()
    await eventually(lambda: first.story == ["recovers"], 50, "the first one")
    second.endpoint.start()
    assert listener.leaders == []
    first.may_recover.set()
    await eventually(lambda: len(listener.leaders) == 1, 50, "the first one to be found")
    assert listener.leaders[0][0] == "one/dispatcher"
    assert (first.story, second.story) == (["recovers", "is made"], [])
    second.may_recover.set()
    service = services.dispatcher_leader_service
    await service.revoke_leadership()
    with pytest.raises(LeadershipLostError):
        await first.endpoint.terminated
    await service.grant_leadership()
    await eventually(lambda: listener.leaders[-1][0] == "two/dispatcher", 50, "the second one")
    second.endpoint.close()
    await second.endpoint.terminated
    assert listener.leaders[-1] == (None, None)
    await network.close()


async def test_master_closed_while_recovering_creates_no_leader(
    services: EmbeddedHaServices,
) -> None:
    """DI-16."""
    network = LocalNetwork()
    listener = RecordingListener()
    await services.get_dispatcher_leader_retriever().start(listener)
    master = Master("one", services, network)
    master.endpoint.start()
    await eventually(lambda: master.story == ["recovers"], 50, "its turn")
    master.endpoint.close()
    await master.endpoint.terminated
    master.may_recover.set()
    await callbacks_delivered()
    assert (master.story, listener.leaders) == (["recovers"], [])
    await network.close()
