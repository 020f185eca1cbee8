"""A connection that follows a leader: whom it tells of what, and why it is not registered."""

from __future__ import annotations

import asyncio
from typing import NoReturn

from flinkray.actors.gateways import ResourceManagerGateway
from flinkray.actors.shared.leader_connection import LeaderConnection
from flinkray.core.ids import LeaderSessionID, ResourceManagerId
from flinkray.ha import LeaderRetrievalListener, LeaderRetrievalService
from flinkray.rpc import LocalNetwork, LocalRpcService, RegistrationSettings, RpcEndpoint
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway


class Retriever(LeaderRetrievalService):
    """Says what it is told to say."""

    away: str | None = None

    @property
    def outage(self) -> str | None:
        return self.away

    async def start(self, listener: LeaderRetrievalListener) -> None: ...

    async def stop(self) -> None: ...


async def never(*_: object) -> NoReturn:
    raise AssertionError("nobody is there")


@on_virtual_time
async def test_leader_connection_reports_why_it_is_not_registered() -> None:
    service = LocalRpcService("TaskExecutor-1")
    endpoint = RpcEndpoint(service, "taskexecutor")
    endpoint.start()
    connection: LeaderConnection[ResourceManagerGateway, None] = LeaderConnection(
        endpoint,
        target_name="ResourceManager",
        gateway=ResourceManagerGateway,
        token_type=ResourceManagerId,
        register=never,
        on_connected=never,
        on_lost=never,
        on_rejection=never,
        settings=RegistrationSettings(),
    )
    retriever = Retriever()
    await connection.start(retriever)
    assert connection.obstacle == "no ResourceManager is known to lead"

    connection.notify_leader_address("manager/rm", LeaderSessionID.generate())
    assert connection.obstacle == "the ResourceManager at manager/rm has not registered it"

    retriever.away = "ZooKeeper at zk:2181 does not answer since 3 s"
    assert connection.obstacle == retriever.away

    retriever.away = None
    connection.notify_leader_address(None, None)
    assert connection.obstacle == "no ResourceManager is known to lead"
    await connection.stop()
    await service.close()


class Follower:
    """Follows the leader at ``host/echo``, which takes everybody, and notes what it is told."""

    def __init__(self) -> None:
        network = LocalNetwork()
        self.host = LocalRpcService("host", network)
        self.service = LocalRpcService("TaskExecutor-1", network)
        EchoEndpoint(self.host).start()
        endpoint = RpcEndpoint(self.service, "taskexecutor")
        endpoint.start()
        self.story: list[str] = []
        self.connection: LeaderConnection[EchoGateway, object] = LeaderConnection(
            endpoint,
            target_name="leader",
            gateway=EchoGateway,
            token_type=ResourceManagerId,
            register=lambda echo: echo.echo("welcome"),
            on_connected=lambda echo, answer: self.story.append(str(answer)),
            on_lost=self.story.append,
            on_rejection=never,
            settings=RegistrationSettings(),
        )

    def leads(self, address: str | None = "host/echo") -> None:
        session = None if address is None else LeaderSessionID.generate()
        self.connection.notify_leader_address(address, session)

    async def until_answered(self) -> None:
        """Until the answer is here, of which nobody has been told yet."""
        while self.connection.target_gateway is None:  # noqa: ASYNC110 - nobody is told yet
            await asyncio.sleep(0)
        assert self.story == []

    async def close(self) -> None:
        await self.connection.stop()
        await self.service.close()
        await self.host.close()


@on_virtual_time
async def test_reconnecting_to_a_leader_reports_it_lost_once_and_found_if_it_still_leads() -> None:
    follower = Follower()
    follower.leads()
    await asyncio.sleep(1)
    follower.connection.reconnect("it is deaf")
    follower.connection.reconnect("it is deaf, says another")
    await asyncio.sleep(1)
    follower.leads()
    await asyncio.sleep(1)
    follower.leads(None)
    follower.connection.reconnect("nobody leads")
    await asyncio.sleep(1)
    assert follower.story == [
        "welcome", "it is deaf", "welcome", "leader changed", "welcome", "leader changed"
    ]  # fmt: skip
    await follower.close()


@on_virtual_time
async def test_leader_that_was_never_reported_found_is_not_reported_lost() -> None:
    """The leader changes after its answer has arrived and before the listener hears of the
    answer."""
    follower = Follower()
    follower.leads()
    await follower.until_answered()
    follower.leads(None)
    await asyncio.sleep(1)
    assert follower.story == []
    await follower.close()


@on_virtual_time
async def test_leader_answer_that_arrives_after_a_reconnect_is_dropped() -> None:
    follower = Follower()
    follower.leads()
    await follower.until_answered()
    follower.connection.reconnect("it has forgotten us")
    await asyncio.sleep(1)
    assert follower.story == ["welcome"]
    await follower.close()


@on_virtual_time
async def test_leader_answer_that_arrives_while_the_leader_connection_stops_is_dropped() -> None:
    """Otherwise heartbeats would begin after everything was stopped."""

    class Slow(Retriever):
        async def stop(self) -> None:
            await asyncio.sleep(1)

    follower = Follower()
    await follower.connection.start(Slow())
    follower.leads()
    await follower.connection.stop()
    assert follower.story == []
    assert follower.connection.target_gateway is None
    await follower.close()


@on_virtual_time
async def test_death_of_a_leader_that_lost_and_regained_leadership_is_reported_once() -> None:
    follower = Follower()
    follower.leads()
    await asyncio.sleep(1)
    follower.leads(None)
    await asyncio.sleep(1)
    follower.leads()
    await asyncio.sleep(1)
    await follower.host.close()
    await asyncio.sleep(1)
    *before, last = follower.story
    assert before == ["welcome", "leader changed", "welcome"]
    assert "terminated" in last
    await follower.close()
