"""Asks a cluster's Dispatcher, and repeats unanswered questions to its successor.

The connection follows the leader. When a call fails because the Dispatcher died, was replaced or
cannot be reached, the question is repeated to the present leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from flinkray.actors.gateways import DispatcherGateway
from flinkray.core.durations import format_duration
from flinkray.core.errors import (
    FencingTokenError,
    RpcConnectionError,
    RpcError,
    RpcTimeoutError,
)
from flinkray.core.ids import DispatcherId, LeaderSessionID
from flinkray.ha import LeaderRetrievalListener, LeaderRetrievalService
from flinkray.rpc import RpcService
from flinkray.rpc.time_limit import within

T = TypeVar("T")

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 1.0
"""Longest delay in seconds between two attempts; the delay is doubled each time."""
_STABLE = 5.0
"""Seconds that an attempt must last for its failure to count as the first of a new series."""
_LONGEST_SEARCH = 10.0
"""Most seconds for one attempt to connect."""
UNREACHABLE_LIMIT = 60.0
"""Seconds without any Dispatcher after which even a question without a timeout fails.

Ray restarts a dead Dispatcher within 2 s (FACTS), later on a busy machine.
"""


class DispatcherConnection(LeaderRetrievalListener):
    """Connection that follows the Dispatcher of one cluster. Used on the service's event loop."""

    def __init__(
        self,
        rpc_service: RpcService,
        retriever: LeaderRetrievalService,
        cluster_id: str,
        *,
        unreachable_limit: float = UNREACHABLE_LIMIT,
    ) -> None:
        """Create a connection that does not look for the leader before :meth:`open`."""
        self._rpc_service = rpc_service
        self._retriever = retriever
        self._cluster_id = cluster_id
        self._unreachable_limit = unreachable_limit
        self._leader: tuple[str, LeaderSessionID] | None = None
        self._gateway: DispatcherGateway | None = None
        self._error: Exception | None = None
        self._told = asyncio.Event()
        """Set when a leader was announced since the last attempt began."""

    @property
    def rpc_service(self) -> RpcService:
        """The RPC service that makes the calls of this connection."""
        return self._rpc_service

    async def open(self) -> None:
        """Begin to follow the leader. Returns at once, even if no leader is known yet."""
        await self._retriever.start(self)

    async def close(self) -> None:
        await self._retriever.stop()

    def notify_leader_address(
        self, address: str | None, session_id: LeaderSessionID | None
    ) -> None:
        known = address is not None and session_id is not None
        self._leader = (address, session_id) if known else None  # type: ignore[assignment]
        self._gateway = None
        if known:
            self._told.set()

    def handle_error(self, error: Exception) -> None:
        self._error = error
        self._told.set()

    async def ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None,
    ) -> T:
        """Return the answer of the leading Dispatcher; the call is repeated after failures.

        Args:
            question: name of the call in error messages, such as "list the jobs".
            call: may be made several times and must be idempotent.
            timeout: seconds; None: as long as there is a Dispatcher.

        Raises:
            RpcTimeoutError: no answer within the timeout.
            RpcConnectionError: no Dispatcher for too long.
            Exception: the error that the Dispatcher answered with.
        """
        failures: list[RpcError] = []
        try:
            asking = self._ask(question, call, failures)
            return await self._rpc_service.deadlines.within(timeout, asking)
        except asyncio.TimeoutError:
            if timeout is None:
                raise
            raise RpcTimeoutError(
                f"could not {question}: no answer from the Dispatcher of cluster "
                f"{self._cluster_id!r} within {format_duration(timeout)}"
                f"{self._because() or _at_last(failures)}"
            ) from None

    async def _ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        failures: list[RpcError],
    ) -> T:
        """Call the leading Dispatcher until it answers, and return its answer. After each failure
        *failures* holds only this failure, for the caller's error text. Raises RpcConnectionError:
        no Dispatcher was reached for too long."""
        counted_time = self._rpc_service.deadlines.time
        delay, failing_since = _FIRST_DELAY, counted_time()
        while True:
            started = counted_time()
            self._told.clear()
            try:
                return await call(await self._connect())
            except RpcError as error:
                if not (error.retryable or isinstance(error, FencingTokenError)):
                    raise
                self._gateway = None
                failures[:] = [error]
                now = counted_time()
                if now - started > _STABLE and not isinstance(error, RpcTimeoutError):
                    delay, failing_since = _FIRST_DELAY, now
                if now - failing_since > self._unreachable_limit:
                    raise RpcConnectionError(
                        f"could not {question}: the Dispatcher of cluster {self._cluster_id!r} "
                        f"cannot be reached since {now - failing_since:.0f} s ({error}); "
                        "look with: flinkray cluster status"
                    ) from error
            with suppress(asyncio.TimeoutError):
                await within(self._rpc_service.jittered(delay), self._told.wait())
            delay = min(2 * delay, _LONGEST_DELAY)

    def _because(self) -> str:
        outages = [
            it for it in (self._rpc_service.outage, self._retriever.outage) if it is not None
        ]
        return f" ({'; '.join(outages)})" if outages else ""

    async def _connect(self) -> DispatcherGateway:
        try:  # the election service may be away, and the search would wait for it
            search = self._connect_to_leader()
            return await self._rpc_service.deadlines.within(_LONGEST_SEARCH, search)
        except asyncio.TimeoutError:
            raise RpcTimeoutError(
                f"the Dispatcher was not found within {_LONGEST_SEARCH:g} s{self._because()}"
            ) from None

    async def _connect_to_leader(self) -> DispatcherGateway:
        if self._error is not None:
            raise self._error
        if self._gateway is None:
            if self._leader is None:
                raise RpcConnectionError(f"no Dispatcher leads at present{self._because()}")
            address, session_id = self._leader
            gateway = await self._rpc_service.connect(
                address, DispatcherGateway, DispatcherId.of(session_id)
            )
            if self._leader != (address, session_id):
                raise RpcConnectionError(f"the Dispatcher at {address} does not lead any more")
            self._gateway = gateway
        return self._gateway


def _at_last(failures: list[RpcError]) -> str:
    return f" ({failures[-1]})" if failures else ""
