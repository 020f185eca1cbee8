"""What a connection that follows a leader says of why it is not registered."""

from __future__ import annotations

from typing import NoReturn

from flinkray.actors.gateways import ResourceManagerGateway
from flinkray.actors.shared.leader_connection import LeaderConnection
from flinkray.core.ids import LeaderSessionID, ResourceManagerId
from flinkray.ha import LeaderRetrievalListener, LeaderRetrievalService
from flinkray.rpc import LocalRpcService, RegistrationSettings, RpcEndpoint
from flinkray.testing.virtual_time import on_virtual_time


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
async def test_it_says_why_it_is_not_registered() -> None:
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
