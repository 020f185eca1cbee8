"""A registered connection that follows the leader of a component from one leader to the next."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from flinkray.core.ids import FencingToken, LeaderSessionID
from flinkray.ha import LeaderRetrievalListener, LeaderRetrievalService
from flinkray.rpc import (
    RegisteredRpcConnection,
    RegistrationFailure,
    RegistrationRejection,
    RegistrationSettings,
    RpcEndpoint,
    RpcGateway,
    TerminationWatch,
)

log = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)
S = TypeVar("S")


class LeaderConnection(LeaderRetrievalListener, Generic[G, S]):
    """Keeps *endpoint* registered with the leader of one component.

    The leader is watched. When the leader dies, the registration is repeated at the same address
    until another leader is announced. All callbacks run on the endpoint's main thread.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        *,
        target_name: str,
        gateway: type[G],
        token_type: type[FencingToken],
        register: Callable[[G], Awaitable[S | RegistrationFailure | RegistrationRejection]],
        on_connected: Callable[[G, S], Awaitable[None] | None],
        on_lost: Callable[[str], Awaitable[None] | None],
        on_rejection: Callable[[RegistrationRejection], Awaitable[None] | None],
        settings: RegistrationSettings,
    ) -> None:
        """Create a connection that does nothing before :meth:`start`.
        *on_lost* is called once for each call of *on_connected*, when the connection to this leader
        is lost.
        """
        self._endpoint = endpoint
        self._target_name = target_name
        self._gateway = gateway
        self._token_type = token_type
        self._register = register
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._on_rejection = on_rejection
        self._settings = settings
        self._connection: RegisteredRpcConnection[G, S] | None = None
        self._watch: TerminationWatch | None = None
        self._is_told = False
        """Whether *on_connected* was called, so that *on_lost* must follow."""
        self._retriever: LeaderRetrievalService | None = None
        self.leader_address: str | None = None
        """Address of the last announced leader, even if it has lost leadership since.
        None before the first announcement.
        """
        self.last_leader_id: FencingToken | None = None
        """Fencing token of the leader at :attr:`leader_address`.
        None before the first announcement.
        """

    async def start(self, retriever: LeaderRetrievalService) -> None:
        """Begin to register at each leader that *retriever* announces."""
        self._retriever = retriever
        await retriever.start(self)

    async def stop(self) -> None:
        """Stop following leaders: no callback runs after this. Idempotent."""
        retriever, self._retriever = self._retriever, None
        self._drop()  # before any await: a registration answer may be under way
        if retriever is not None:
            await retriever.stop()

    @property
    def target_gateway(self) -> G | None:
        """The leader's gateway while registered with the leader; otherwise None."""
        return None if self._connection is None else self._connection.target_gateway

    @property
    def leader_id(self) -> FencingToken | None:
        """The fencing token of the followed leader, registered or not.
        None if no leader is known.
        """
        return None if self._connection is None else self._connection.target_fencing_token

    @property
    def obstacle(self) -> str:
        """A text for people: why the endpoint is not registered, as far as this process knows."""
        retriever, service = self._retriever, self._endpoint.rpc_service
        outages = (None if retriever is None else retriever.outage, service.outage)
        if any(outages):
            return "; ".join(outage for outage in outages if outage is not None)
        if self._connection is None:
            return f"no {self._target_name} is known to lead"
        return f"the {self._target_name} at {self._connection.target_address} has not registered it"

    def reconnect(self, reason: str) -> None:
        """Register again at the leader, at the same address. Called if the leader has ended the
        registration or does not answer. The answer to a registration that is under way is
        discarded, because the leader may have sent newer messages before it."""
        connection = self._connection
        if connection is None:
            return
        if self._is_told:
            self._lost(connection, reason)
        else:
            connection.try_reconnect()

    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        was_told = self._is_told
        self._drop()
        if was_told:
            self._endpoint.run_async(lambda: self._on_lost(f"{self._target_name} changed"))
        if address is None or session_id is None:
            return
        self.leader_address = address
        token = self.last_leader_id = self._token_type.of(session_id)
        self._connection = RegisteredRpcConnection(
            self._endpoint,
            target_name=self._target_name,
            address=address,
            gateway=self._gateway,
            fencing_token=token,
            register=self._register,
            on_success=self._connected,
            on_rejection=self._on_rejection,
            settings=self._settings,
        )
        self._connection.start()

    def handle_error(self, error: Exception) -> None:
        self._endpoint.on_fatal_error(error)

    async def _connected(self, gateway: G, response: S) -> None:
        connection = self._connection
        assert connection is not None
        log.info("%s: registered at %s", self._endpoint.address, connection.target_address)
        self._is_told = True
        # watch this gateway, not the address, which may belong to a successor by now
        self._watch = self._endpoint.watch(gateway, lambda reason: self._lost(connection, reason))
        result = self._on_connected(gateway, response)
        if result is not None:
            await result

    def _lost(self, connection: RegisteredRpcConnection[G, S], reason: str) -> None:
        if connection is not self._connection:
            return
        log.info("%s: lost %s: %s", self._endpoint.address, connection.target_address, reason)
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._is_told = False
        self._endpoint.run_async(lambda: self._on_lost(reason))
        connection.try_reconnect()

    def _drop(self) -> None:
        self._is_told = False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
