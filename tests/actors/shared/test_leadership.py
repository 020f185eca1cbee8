"""An endpoint is made for one grant of leadership, and ends with it, whenever that is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from flinkray.actors.shared.cluster_services import Leadership
from flinkray.ha import EmbeddedHaServices, LeaderElectionError, MemoryDirectory
from flinkray.rpc import LocalNetwork, LocalRpcService, RpcEndpoint
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


async def test_an_endpoint_is_found_from_its_confirmation_to_the_loss(
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
    await endpoint.terminated
    assert listener.leaders[1:] == [(None, None)]


async def test_a_loss_between_grant_and_confirmation_ends_the_endpoint(
    services: EmbeddedHaServices, endpoint: RpcEndpoint
) -> None:
    """It went on, and led nobody."""
    service = services.dispatcher_leader_service
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    await service.revoke_leadership()
    await callbacks_delivered()
    await leadership.confirm(endpoint)
    await endpoint.terminated


async def test_an_endpoint_does_not_lead_in_the_session_after_its_own(
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
    await endpoint.terminated
    assert listener.leaders == []


async def test_a_grant_that_is_lost_before_anybody_hears_of_it_is_none(
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


async def test_an_election_that_fails_is_told_to_who_waits_and_to_the_endpoint(
    services: EmbeddedHaServices, endpoint: RpcEndpoint
) -> None:
    leadership = await Leadership.win(services.get_dispatcher_leader_election())
    waiting = asyncio.ensure_future(Leadership.win(services.get_dispatcher_leader_election()))
    await callbacks_delivered()
    await leadership.confirm(endpoint)
    services.dispatcher_leader_service.close()
    with pytest.raises(LeaderElectionError, match="was closed"):
        await waiting
    with pytest.raises(LeaderElectionError, match="was closed"):
        await endpoint.terminated
