"""Services that master processes of a cluster need: configuration, HA services, leaders."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from flinkray.actors.gateways import DispatcherGateway, ResourceManagerGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.shared.high_availability import high_availability_services
from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import FencingTokenError, RpcConnectionError
from flinkray.core.ids import DispatcherId, FencingToken, LeaderSessionID, ResourceManagerId
from flinkray.ha import (
    HighAvailabilityServices,
    LeaderRetrievalListener,
    LeaderRetrievalService,
    absolute_location,
)
from flinkray.rpc import RpcEndpoint, RpcService
from flinkray.rpc.time_limit import within


@dataclass(frozen=True)
class ClusterServices:
    """Holds the cluster id, the configuration, and the services to find leaders, for a master
    process. Created once per process, from the arguments that started the process.
    """

    rpc_service: RpcService
    arguments: ClusterArguments
    configuration: ReadableConfig
    high_availability: HighAvailabilityServices

    @classmethod
    def create(cls, rpc_service: RpcService, arguments: ClusterArguments) -> ClusterServices:
        # Other nodes and users get this path: it must not depend on the working directory.
        arguments = replace(arguments, storage_dir=absolute_location(arguments.storage_dir))
        configuration = ReadableConfig(arguments.configuration)
        apply_rpc_settings(rpc_service, configuration)
        return cls(
            rpc_service,
            arguments,
            configuration,
            high_availability_services(rpc_service, configuration, arguments.storage_dir),
        )

    async def connect_to_resource_manager(self) -> ResourceManagerGateway:
        """Return the gateway of the ResourceManager that leads now.

        Raises:
            RpcConnectionError: no leader is known, or the leader cannot be reached.
        """
        retriever = self.high_availability.get_resource_manager_leader_retriever()
        address, session = await self._leader("ResourceManager", retriever)
        return await self.rpc_service.connect(
            address, ResourceManagerGateway, ResourceManagerId.of(session)
        )

    async def connect_to_dispatcher(self) -> DispatcherGateway:
        """Return the gateway of the Dispatcher that leads now.

        Raises:
            RpcConnectionError: no leader is known, or the leader cannot be reached.
        """
        retriever = self.high_availability.get_dispatcher_leader_retriever()
        address, session = await self._leader("Dispatcher", retriever)
        return await self.rpc_service.connect(address, DispatcherGateway, DispatcherId.of(session))

    async def _leader(
        self, component: str, retriever: LeaderRetrievalService
    ) -> tuple[str, LeaderSessionID]:
        patience = self.rpc_service.ask_timeout
        try:
            return await within(patience, find_leader(retriever))
        except asyncio.TimeoutError:
            because = "" if retriever.outage is None else f" ({retriever.outage})"
            text = f"no {component} leads, for {patience:g} s by now{because}"
            raise RpcConnectionError(text) from None


class _FirstLeader(LeaderRetrievalListener):
    def __init__(self) -> None:
        self.leader: asyncio.Future[tuple[str, LeaderSessionID]] = (
            asyncio.get_running_loop().create_future()
        )

    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        if address is not None and session_id is not None and not self.leader.done():
            self.leader.set_result((address, session_id))

    def handle_error(self, error: Exception) -> None:
        if not self.leader.done():
            self.leader.set_exception(error)


TokenT = TypeVar("TokenT", bound=FencingToken)


class LeaderFollower(LeaderRetrievalListener, Generic[TokenT]):
    """Knows the fencing token of a component's leader, and refuses calls with another token. Used
    by an endpoint that this component calls, but that does not call the component."""

    def __init__(self, token_type: type[TokenT], endpoint: RpcEndpoint) -> None:
        self._token_type = token_type
        self._endpoint = endpoint
        self._retriever: LeaderRetrievalService | None = None
        self._leader: TokenT | None = None

    async def start(self, retriever: LeaderRetrievalService) -> None:
        """Begin to follow the leaders that *retriever* announces."""
        self._retriever = retriever
        await retriever.start(self)

    async def stop(self) -> None:
        """Stop following the leader. Idempotent."""
        retriever, self._retriever = self._retriever, None
        if retriever is not None:
            await retriever.stop()

    def check(self, leader_id: TokenT, method: str) -> None:
        """Refuse a call of *method* that does not come from the present leader.

        Raises:
            FencingTokenError: *leader_id* is not the token of the present leader.
        """
        if leader_id != self._leader:
            raise FencingTokenError(self._endpoint.address, method, self._leader, leader_id)

    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        known = address is not None and session_id is not None
        self._leader = self._token_type.of(session_id) if known and session_id else None

    def handle_error(self, error: Exception) -> None:
        self._endpoint.on_fatal_error(error)


class _SoughtLeader(LeaderRetrievalListener):
    def __init__(self, sought: tuple[str, LeaderSessionID]) -> None:
        self._sought = sought
        self.told: tuple[str, LeaderSessionID] | None = None
        self.found: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        self.told = None if address is None or session_id is None else (address, session_id)
        if self.told == self._sought and not self.found.done():
            self.found.set_result(None)

    def handle_error(self, error: Exception) -> None:
        if not self.found.done():
            self.found.set_exception(error)


async def see_who_leads(
    retriever: LeaderRetrievalService, sought: tuple[str, LeaderSessionID], patience: float
) -> tuple[str, LeaderSessionID] | None:
    """Wait until *retriever* announces the leader *sought*, and return *sought*.
    After *patience* seconds return the last announced leader instead, or None if there was none.
    Earlier announcements are skipped, because they may be outdated. The retriever is closed
    afterwards.
    """
    listener = _SoughtLeader(sought)
    await retriever.start(listener)
    try:
        await within(patience, listener.found)
    except asyncio.TimeoutError:
        return listener.told
    finally:
        await retriever.stop()
    return sought


async def find_leader(retriever: LeaderRetrievalService) -> tuple[str, LeaderSessionID]:
    """Return address and session of the first leader that *retriever* announces.
    The retriever is closed afterwards.
    """
    listener = _FirstLeader()
    await retriever.start(listener)
    try:
        return await listener.leader
    finally:
        await retriever.stop()
