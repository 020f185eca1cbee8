"""What every master process of a cluster has at hand: configuration, HA services, leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from flinkray.actors.gateways import DispatcherGateway, ResourceManagerGateway
from flinkray.actors.gateways.messages import ClusterArguments
from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.core.config import Configuration
from flinkray.core.errors import FencingTokenError
from flinkray.core.ids import DispatcherId, FencingToken, LeaderSessionID, ResourceManagerId
from flinkray.ha import (
    HighAvailabilityServices,
    LeaderContender,
    LeaderElection,
    LeaderRetrievalListener,
    LeaderRetrievalService,
    StandaloneHaServices,
    absolute_location,
    open_directory,
)
from flinkray.rpc import RpcEndpoint, RpcService


@dataclass(frozen=True)
class ClusterServices:
    """Made once in each process, from the arguments that it was started with."""

    rpc_service: RpcService
    arguments: ClusterArguments
    configuration: Configuration
    high_availability: HighAvailabilityServices

    @classmethod
    def create(cls, rpc_service: RpcService, arguments: ClusterArguments) -> ClusterServices:
        # what is passed on to other nodes and to users must not depend on where it is read
        arguments = replace(arguments, storage_dir=absolute_location(arguments.storage_dir))
        storage = open_directory(arguments.storage_dir)
        configuration = Configuration(arguments.configuration)
        apply_rpc_settings(rpc_service, configuration)
        return cls(
            rpc_service,
            arguments,
            configuration,
            StandaloneHaServices(storage, rpc_service.executor),
        )

    async def connect_to_resource_manager(self) -> ResourceManagerGateway:
        """The present leader.

        Raises:
            RpcConnectionError: it cannot be reached now.
        """
        retriever = self.high_availability.get_resource_manager_leader_retriever()
        address, session = await find_leader(retriever)
        return await self.rpc_service.connect(
            address, ResourceManagerGateway, ResourceManagerId.of(session)
        )

    async def connect_to_dispatcher(self) -> DispatcherGateway:
        """The present leader.

        Raises:
            RpcConnectionError: it cannot be reached now.
        """
        retriever = self.high_availability.get_dispatcher_leader_retriever()
        address, session = await find_leader(retriever)
        return await self.rpc_service.connect(address, DispatcherGateway, DispatcherId.of(session))


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
    """Knows who leads a component whose calls are fenced and that is not called itself."""

    def __init__(self, token_type: type[TokenT], endpoint: RpcEndpoint) -> None:
        self._token_type = token_type
        self._endpoint = endpoint
        self._retriever: LeaderRetrievalService | None = None
        self._leader: TokenT | None = None

    async def start(self, retriever: LeaderRetrievalService) -> None:
        """Follow the leader that *retriever* tells."""
        self._retriever = retriever
        await retriever.start(self)

    async def stop(self) -> None:
        """Idempotent."""
        retriever, self._retriever = self._retriever, None
        if retriever is not None:
            await retriever.stop()

    def check(self, leader_id: TokenT, method: str) -> None:
        """Refuse what another one than the present leader says.

        Raises:
            FencingTokenError.
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


async def find_leader(retriever: LeaderRetrievalService) -> tuple[str, LeaderSessionID]:
    """Address and session of the first leader that *retriever* tells; the retriever is used up."""
    listener = _FirstLeader()
    await retriever.start(listener)
    try:
        return await listener.leader
    finally:
        await retriever.stop()


class _Contender(LeaderContender):
    """Waits for the grant; a process that loses its leadership afterwards ends its endpoint."""

    def __init__(self) -> None:
        self.session_id: LeaderSessionID | None = None
        """In which it leads now."""
        self.on_revoked: Callable[[], object] | None = None
        self.on_error: Callable[[Exception], None] = self._failed
        self._error: Exception | None = None
        self._changed = asyncio.Event()

    async def until_granted(self) -> LeaderSessionID:
        """The session; one that was over before anybody heard of it is none."""
        while self.session_id is None:
            await self._changed.wait()
            self._changed.clear()
            if self._error is not None:
                raise self._error
        return self.session_id

    def grant_leadership(self, session_id: LeaderSessionID) -> None:
        self.session_id = session_id
        self._changed.set()

    def revoke_leadership(self) -> None:
        self.session_id = None
        if self.on_revoked is not None:
            self.on_revoked()

    def handle_error(self, error: Exception) -> None:
        self.on_error(error)

    def _failed(self, error: Exception) -> None:
        self._error = error
        self._changed.set()


class Leadership:
    """Won leadership of one component: the session, and the way to be found."""

    def __init__(
        self, election: LeaderElection, contender: _Contender, session_id: LeaderSessionID
    ) -> None:
        self.session_id = session_id
        self._election = election
        self._contender = contender

    @classmethod
    async def win(cls, election: LeaderElection) -> Leadership:
        """Take part and wait until leadership is granted, however long that takes."""
        contender = _Contender()
        await election.start_leader_election(contender)
        return cls(election, contender, await contender.until_granted())

    async def confirm(self, endpoint: RpcEndpoint) -> None:
        """Let others find *endpoint*; it is closed when the leadership is lost, or was lost since
        it was won: an endpoint leads in one session.  It fails when the election does."""
        if self._contender.session_id != self.session_id:
            endpoint.close()
            return
        self._contender.on_revoked = endpoint.close
        self._contender.on_error = endpoint.on_fatal_error
        await self._election.confirm_leadership(self.session_id, endpoint.address)

    async def give_up(self) -> None:
        self._contender.on_revoked = None
        await self._election.close()
