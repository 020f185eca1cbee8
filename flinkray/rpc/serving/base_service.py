"""The common part of all services: registered endpoints, connections by process, watches."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from random import Random
from typing import Any, TypeVar

from flinkray.core.clock import Clock
from flinkray.core.errors import (
    HandshakeError,
    RecipientUnreachableError,
    RpcConnectionError,
    RpcTimeoutError,
)
from flinkray.core.ids import FencingToken
from flinkray.core.message import type_name
from flinkray.rpc.calls.background_tasks import BackgroundTasks, PeriodicTask
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.connection_pool import ConnectionPool, Opened
from flinkray.rpc.calls.deadlines import Deadlines
from flinkray.rpc.calls.metrics import MetricSample, RpcMetrics, RpcRecorder
from flinkray.rpc.calls.peer_deadlines import PatientDeadlines
from flinkray.rpc.calls.proxy import Binding, binding_of, make_proxy
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.endpoint import implemented_gateways
from flinkray.rpc.gateway import RpcGateway
from flinkray.rpc.mailbox import HostedEndpoint
from flinkray.rpc.service import RpcService
from flinkray.rpc.serving.dispatch import MAX_PENDING_BYTES, MAX_PENDING_CALLS, ServerConnection
from flinkray.rpc.spec import ADDRESS_SEPARATOR, WILDCARD, split_address
from flinkray.rpc.wire.envelope import CONTROL_LANE, ENDED, MAX_FRAME_SIZE, remember
from flinkray.rpc.wire.listener import RefusalLog
from flinkray.rpc.wire.transport import MemoryTransport, Transport

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)
T = TypeVar("T")


class BaseRpcService(RpcService):
    """Common base of all services. Subclasses know how to reach, start and end other processes."""

    def __init__(
        self,
        process_name: str,
        incarnation: str,
        *,
        clock: Clock,
        random: Random,
        ask_timeout: float,
        max_frame_size: int = MAX_FRAME_SIZE,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.process_name = process_name
        self.incarnation = incarnation
        """Identifies this run of the process; differs for each process that ever had this name."""
        self.clock = clock
        self.random = random
        self.ask_timeout = ask_timeout
        self.samplers: list[Callable[[], Iterable[MetricSample]]] = []
        self.max_frame_size = max_frame_size
        self.max_pending_calls = MAX_PENDING_CALLS
        self.max_pending_bytes = MAX_PENDING_BYTES
        self.refused_frames = 0
        """How many frames were invalid or came twice, plus refused peers of other clusters."""
        self._refusals = RefusalLog(logger, clock.monotonic)
        self.recorder = RpcRecorder()
        """The recorder for proxies and connections."""
        self._executor: ThreadPoolExecutor | None = None
        self.deadlines = PatientDeadlines(self.loop)
        self.deadlines_of_calls = Deadlines(self.loop)
        """The deadlines of the calls that are handled here."""
        self._numbers = 0
        self._names = 0
        self._endpoints: dict[str, tuple[int, HostedEndpoint]] = {}
        self._by_number: dict[int, HostedEndpoint] = {}
        self.ended_with: dict[int, str] = {}
        """The reasons why endpoints failed, by endpoint number, of the newest failures only."""
        self._tasks = BackgroundTasks(self.loop, process_name)
        self._pool = ConnectionPool(
            self._open_transport,
            self._new_connection,
            self.jittered,
            self._tasks,
            self._connection_opened,
        )
        self._peers: dict[ServerConnection, None] = {}
        self._closing: asyncio.Task[None] | None = None

    @property
    def metrics(self) -> RpcMetrics:
        return self.recorder.snapshot()

    @property
    def connection_idle_timeout(self) -> float | None:
        return self._pool.idle_timeout

    @connection_idle_timeout.setter
    def connection_idle_timeout(self, seconds: float | None) -> None:
        self._pool.idle_timeout = seconds

    @property
    def identity(self) -> str:
        return f"{self.process_name}#{self.incarnation}"

    def identity_of(self, gateway: RpcGateway) -> str:
        connection = binding_of(gateway).connection
        return f"{connection.process_name}#{connection.incarnation}"

    # --- what each service knows for itself ---------------------------------------------------

    @abstractmethod
    async def _open_transport(self, process_name: str, where: Any) -> Opened:
        """Open a connection to another process.

        *where*: the ``where`` of an earlier :class:`Opened`, to reach the same incarnation; None:
        any incarnation. Raises RpcConnectionError: the process, or this incarnation of it, cannot
        be reached.
        """

    def _connection_opened(self, connection: ClientConnection) -> None:
        """Called when a connection to another process, or its replacement, was opened."""

    @abstractmethod
    async def _end_children(self) -> None:
        """End the processes that this process has started and that die with it."""

    @abstractmethod
    async def _end_process(self) -> None:
        """End this process, after a request to stop was answered."""

    # --- endpoints ----------------------------------------------------------------------------

    def register_endpoint(self, endpoint: HostedEndpoint) -> None:
        endpoint_id = endpoint.endpoint_id
        if not endpoint_id or ADDRESS_SEPARATOR in endpoint_id or WILDCARD in endpoint_id:
            raise ValueError(f"not an endpoint id: {endpoint_id!r} (no '/', no '*', not empty)")
        if endpoint_id in self._endpoints:
            raise ValueError(f"there is an endpoint at {endpoint.address} already")
        if self._closing is not None:
            raise RuntimeError(f"the RPC service of {self.process_name} is closed")
        implemented_gateways(type(endpoint))
        self._numbers += 1
        self._endpoints[endpoint_id] = (self._numbers, endpoint)
        self._by_number[self._numbers] = endpoint

    def unregister_endpoint(self, endpoint: HostedEndpoint) -> None:
        number, known = self._endpoints.get(endpoint.endpoint_id, (0, None))
        if known is endpoint:
            del self._endpoints[endpoint.endpoint_id], self._by_number[number]
            reason = endpoint.mailbox.end_reason
            remember(self.ended_with, number, reason)
            for peer in self._peers:
                peer.endpoint_terminated(number, reason)

    def find_endpoint(self, endpoint_id: str) -> tuple[int, HostedEndpoint | None]:
        """Return (number, endpoint) for an endpoint id, or for the newest running endpoint if the
        id is a prefix with ``*``; (0, None): there is none. Called by connections."""
        if not endpoint_id.endswith(WILDCARD):
            return self._endpoints.get(endpoint_id, (0, None))
        prefix = endpoint_id.removesuffix(WILDCARD)
        for known_id, (number, endpoint) in reversed(self._endpoints.items()):
            if known_id.startswith(prefix) and endpoint.is_running:
                return number, endpoint
        return 0, None

    def new_endpoint_id(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}_{self._names}"

    def endpoint_by_number(self, number: int) -> HostedEndpoint | None:
        """Return the endpoint with *number*; None: it has ended or never existed. Called by
        connections."""
        return self._by_number.get(number)

    def end_of(self, number: int) -> str:
        """Return the reason why an endpoint of this process has ended. Called by connections."""
        return self.ended_with.get(number, ENDED)

    def self_gateway(self, endpoint: HostedEndpoint, gateway: type[G]) -> G:
        if type_name(gateway) not in implemented_gateways(type(endpoint)).gateways:
            raise TypeError(f"{type(endpoint).__name__} does not implement {gateway.__name__}")
        number, known = self._endpoints.get(endpoint.endpoint_id, (0, None))
        if known is not endpoint:
            reason = endpoint.mailbox.end_reason
            raise RecipientUnreachableError(f"{endpoint.address}: {reason}")
        token = getattr(endpoint, "fencing_token", None)
        loopback = self._loopback()
        loopback.follow((number,))
        return self._proxy(gateway, loopback, number, endpoint.address, token)

    # --- calling side -------------------------------------------------------------------------

    async def connect(
        self, address: str, gateway: type[G], fencing_token: FencingToken | None = None
    ) -> G:
        connection, number, full_address = await self._resolve(address, type_name(gateway))
        return self._proxy(gateway, connection, number, full_address, fencing_token)

    def _proxy(
        self,
        gateway: type[G],
        connection: ClientConnection,
        number: int,
        address: str,
        token: FencingToken | None,
    ) -> G:
        successor_of = self._pool.successor_of
        binding = Binding(
            connection, number, address, token, self.ask_timeout, successor_of, self.recorder
        )
        return make_proxy(gateway, binding)

    async def _resolve(
        self, address: str, gateway: str | None
    ) -> tuple[ClientConnection, int, str]:
        try:
            process, endpoint_id = split_address(address)
        except ValueError as error:
            raise RpcConnectionError(str(error)) from error
        try:
            known = self._pool.get(process)
            connection = await self._connection(process)
            try:
                number, full_id = await connection.resolve(endpoint_id, gateway, self.ask_timeout)
            except RecipientUnreachableError:
                if connection is not known:
                    raise
                # the process may have been replaced while its old connection was still in use
                connection = await self._connection(process)
                number, full_id = await connection.resolve(endpoint_id, gateway, self.ask_timeout)
        except HandshakeError:
            raise
        except (RpcConnectionError, RecipientUnreachableError, RpcTimeoutError) as error:
            raise RpcConnectionError(f"cannot connect to {address}: {error}") from error
        return connection, number, f"{process}{ADDRESS_SEPARATOR}{full_id}"

    async def _connection(self, process: str) -> ClientConnection:
        if process == self.process_name:
            return self._loopback()
        return await self._pool.connect(process)

    def _new_connection(
        self, process: str, incarnation: str, transport: Transport
    ) -> ClientConnection:
        return ClientConnection(
            process, incarnation, transport, self.deadlines, self.max_frame_size
        )

    def _loopback(self) -> ClientConnection:
        connection = self._pool.get(self.process_name)
        if connection is None:
            transport = self.new_memory_transport(self)
            connection = self._new_connection(self.process_name, self.incarnation, transport)
            transport.attach(connection)
            self._pool.keep(connection)
        return connection

    def new_memory_transport(self, target: BaseRpcService) -> Transport:
        """Return a transport from this service to *target*, which lives on the same loop."""
        near, far = MemoryTransport.pair(self.loop)
        far.attach(target.new_peer(far, self.identity))
        return near

    def new_peer(self, transport: Transport, peer: str) -> ServerConnection:
        """Return the called side of a new connection from *peer*."""
        server = ServerConnection(self, transport, peer)
        self._peers[server] = None
        return server

    # --- called side --------------------------------------------------------------------------

    def refuse_frame(self, peer: str, reason: str) -> None:
        """Count and log a frame from *peer* that was refused. Called by connections."""
        self.refused_frames += 1
        self._refusals.refused(f"{self.process_name} refused a frame from {peer}", reason)

    def peer_lost(self, peer: ServerConnection) -> None:
        """Forget a peer whose connection is lost. Called by connections."""
        self._peers.pop(peer, None)

    def stop_requested(self, answer: Callable[[], None]) -> None:
        """Close all endpoints, answer the request with *answer*, and end the process. Called by
        connections."""

        async def stop() -> None:
            await self._close_endpoints()
            answer()
            await self._end_process()

        # not one of the service's tasks, which end with the service
        task = self.loop.create_task(stop(), name=f"{self.process_name}: stop")
        self._stop_task = task
        task.add_done_callback(self._tasks.report_failure)

    def keep_prestarted(
        self,
        number: int,
        imports: tuple[str, ...] = (),
        ahead: tuple[str, ...] = (),
        roles: int = 1,
    ) -> None:
        """Do nothing: processes start at once here. A subclass may override this."""

    async def end_prestarted(self) -> None:
        """Do nothing: this service keeps no prestarted processes."""

    # --- watching -----------------------------------------------------------------------------

    def watch(
        self, target: str | RpcGateway, on_terminated: Callable[[str], None]
    ) -> TerminationWatch:
        if isinstance(target, str):
            address = target

            async def reached() -> tuple[ClientConnection, int]:
                connection, number, _ = await self._resolve(address, None)
                return connection, number
        else:
            binding = binding_of(target)
            address = binding.address

            async def reached() -> tuple[ClientConnection, int]:
                return binding.connection, binding.number

        return self._begin_watch(TerminationWatch(address, on_terminated), reached)

    def watch_process(self, process_name: str, on_ended: Callable[[str], None]) -> TerminationWatch:
        async def reached() -> tuple[ClientConnection, int]:
            return await self._connection(process_name), CONTROL_LANE

        return self._begin_watch(TerminationWatch(process_name, on_ended), reached)

    def _begin_watch(
        self,
        watch: TerminationWatch,
        reached: Callable[[], Awaitable[tuple[ClientConnection, int]]],
    ) -> TerminationWatch:
        keeping = watch.keep(reached, self._pool.successor_of)
        watch.kept_by(self.create_task(keeping, f"watch {watch.address}"))
        return watch

    @property
    def has_own_process(self) -> bool:
        return False

    @property
    def has_threads(self) -> bool:
        return not getattr(self.loop, "is_unreal", False)

    # --- work and end -------------------------------------------------------------------------

    @property
    def executor(self) -> Executor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(
                max_workers=min(32, 4 + (os.cpu_count() or 1)),
                thread_name_prefix=f"rpc-{self.process_name}",
            )
        return self._executor

    async def run_blocking(self, fn: Callable[..., T], *args: object) -> T:
        return await self.loop.run_in_executor(self.executor, fn, *args)

    def schedule_periodically(
        self,
        fn: Callable[[], Awaitable[None] | None],
        interval: float,
        *,
        initial_delay: float | None = None,
    ) -> PeriodicTask:
        delay = interval if initial_delay is None else initial_delay
        return PeriodicTask(self._tasks.create_awaited, fn, interval, delay)

    def create_task(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Start work of the service itself; cancelled when it closes. An exception is logged."""
        return self._tasks.create(coroutine, name)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self.loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        errors = await self._close_endpoints()
        await self._end_children()
        await self._release()
        if errors:
            raise errors[0]

    async def _close_endpoints(self) -> list[BaseException]:
        endpoints = [endpoint for _, endpoint in self._endpoints.values()]
        ends = [endpoint.close() for endpoint in endpoints]
        results = await asyncio.gather(*ends, return_exceptions=True)
        return [result for result in results if isinstance(result, BaseException)]

    async def _release(self) -> None:
        self._open_no_more()
        tasks = self._tasks.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for connection in self.connections():
            connection.close()
        for peer in tuple(self._peers):
            peer.close()
        self.deadlines.close()
        self.deadlines_of_calls.close()
        self._refusals.tell_rest()
        if self._executor is not None:
            self._executor.shutdown(wait=False)

    def _open_no_more(self) -> None:
        # proxies outlive the service, and would open connections that nobody closes
        self._pool.close(f"the RPC service of {self.process_name} is closed")

    def connections(self) -> list[ClientConnection]:
        """Return the connections from here to other processes, and to this process itself."""
        return self._pool.all()

    def endpoints(self) -> list[HostedEndpoint]:
        """Return all endpoints of this process."""
        return [endpoint for _, endpoint in self._endpoints.values()]
