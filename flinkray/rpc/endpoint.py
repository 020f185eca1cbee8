"""Endpoints: the base class of the actors of the framework.

All code of an endpoint runs on one event loop, its *main thread*. Handlers interleave only at
``await``; the handlers for one sender's calls begin in the order in which the sender sent them.

Life cycle::

    created ──start()──▶ started ──on_start done──▶ running ──close()──▶ stopping ──▶ terminated

- created: calls fail at once with EndpointNotStartedError; they are not queued.
- started: ``on_start`` runs; calls wait for its end (so never await in ``on_start`` the answer of a
  call that comes back to this endpoint).
- stopping: ``on_stop`` runs; calls are still answered, ``is_running`` is False.
- terminated: calls fail at once with RecipientUnreachableError.  Handlers that were still running
  when ``on_stop`` was done get ``handler_grace`` seconds to finish, then they are cancelled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar, overload

from flinkray.core.clock import Clock
from flinkray.core.errors import RecipientUnreachableError, RpcTimeoutError
from flinkray.core.ids import FencingToken
from flinkray.core.message import type_name
from flinkray.rpc.calls.metrics import MetricSample
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.gateway import FencedRpcGateway, GatewayMethod, RpcGateway, gateway_methods
from flinkray.rpc.mailbox import Mailbox, TimerHandle
from flinkray.rpc.service import RpcService

G = TypeVar("G", bound=RpcGateway)
T = TypeVar("T")
TokenT = TypeVar("TokenT", bound=FencingToken)


class RpcEndpoint(RpcGateway):
    """Base class of all endpoints.

    A subclass also inherits from its gateways and implements them.
    """

    handler_grace: ClassVar[float] = 1.0
    """Seconds that running handlers have to finish after ``on_stop``."""

    def __init__(self, rpc_service: RpcService, endpoint_id: str) -> None:
        """Register the endpoint with the service; calls are refused until :meth:`start`.

        Raises:
            ValueError: the id is in use in this process, or is not usable in an address.
        """
        self._rpc_service = rpc_service
        self._endpoint_id = endpoint_id
        self._mailbox = Mailbox(
            self, rpc_service.loop, rpc_service.watch, rpc_service.unregister_endpoint
        )
        rpc_service.register_endpoint(self)

    # --- who it is ----------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{self._rpc_service.process_name}/{self._endpoint_id}"

    @property
    def endpoint_id(self) -> str:
        return self._endpoint_id

    @property
    def rpc_service(self) -> RpcService:
        return self._rpc_service

    @property
    def clock(self) -> Clock:
        return self._rpc_service.clock

    @property
    def mailbox(self) -> Mailbox:
        """The object that runs the endpoint's life cycle and handlers; for RPC services only."""
        return self._mailbox

    # --- life cycle ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run ``on_start`` on the main thread. A second call raises an error."""
        self._mailbox.start()

    async def on_start(self) -> None:
        """Hook for subclasses: runs once, before any handler.

        An exception in it terminates the endpoint, whose ``terminated`` fails with the exception.
        """

    has_run_user_code: bool = False
    """Whether the endpoint has run code of users. Then its process ends with it, even if its role
    ``may_return``."""

    async def on_stop(self) -> None:
        """Hook for subclasses: runs once, when the endpoint is closed, and before it terminates."""

    def close(self) -> asyncio.Future[None]:
        """Begin to stop the endpoint (idempotent); return :attr:`terminated`, to wait
        for the end."""
        return self._mailbox.close()

    @property
    def terminated(self) -> asyncio.Future[None]:
        """A future that completes when the endpoint has terminated.

        Fails with the exception of ``on_start`` or ``on_stop``, or with the fatal error.
        """
        return self._mailbox.terminated

    @property
    def is_running(self) -> bool:
        """Whether the endpoint runs: true from ``start`` until ``close``."""
        return self._mailbox.is_running

    def on_fatal_error(self, error: BaseException) -> None:
        """Hook, called on the main thread with an exception that nobody awaits.

        The default closes the endpoint, whose ``terminated`` then fails with *error*, and logs the
        error.
        """
        self._mailbox.fail(error)

    # --- the main thread ----------------------------------------------------------------------

    def validate_runs_in_main_thread(self) -> None:
        """Raise RuntimeError if the caller does not run on the endpoint's event loop."""
        self._mailbox.validate_runs_in_main_thread()

    def run_async(self, fn: Callable[[], Awaitable[None] | None]) -> None:
        """Run *fn* later on the main thread, in the order of calls; callable from any thread.

        *fn* is dropped if the endpoint has terminated by then. An exception goes to on_fatal_error.
        """
        self._mailbox.run_async(fn)

    # Overloads, because type checkers do not infer the result of an async function from a union of
    # the two.
    @overload
    def call_async(
        self, fn: Callable[[], Awaitable[T]], timeout: float | None
    ) -> asyncio.Future[T]: ...
    @overload
    def call_async(self, fn: Callable[[], T], timeout: float | None) -> asyncio.Future[T]: ...
    def call_async(
        self, fn: Callable[[], Awaitable[T] | T], timeout: float | None
    ) -> asyncio.Future[T]:
        """Run *fn* later on the main thread; return a future of its result.

        The future fails with RpcTimeoutError after *timeout* seconds (None: never); *fn* itself is
        not stopped. Call this on the main thread.
        """
        return self._mailbox.call_async(fn, timeout)

    @overload
    def call_from_thread(self, fn: Callable[[], Awaitable[T]], timeout: float | None) -> T: ...
    @overload
    def call_from_thread(self, fn: Callable[[], T], timeout: float | None) -> T: ...
    def call_from_thread(self, fn: Callable[[], Awaitable[T] | T], timeout: float | None) -> T:
        """Run *fn* on the main thread, for another thread, which waits for the result.

        Raises:
            RpcTimeoutError: not done after *timeout* seconds, because *fn* or other code occupies
                the main thread; *fn* itself is not stopped.
            RecipientUnreachableError: the endpoint has terminated.
            ValueError: called on the main thread.
        """
        loop = self._rpc_service.loop
        with contextlib.suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                raise ValueError(f"{self.address}: the main thread would wait for itself")

        async def run() -> T:
            return await self._mailbox.call_async(fn, None)

        future = asyncio.run_coroutine_threadsafe(run(), loop)
        try:
            return future.result(timeout)
        except concurrent.futures.CancelledError:
            raise RecipientUnreachableError(f"{self.address} has terminated") from None
        except concurrent.futures.TimeoutError as error:
            if future.done():
                raise  # the function raised it
            name = getattr(fn, "__qualname__", repr(fn))
            text = f"{self.address}: {name} was not done within {timeout:g} s"
            raise RpcTimeoutError(text) from error

    def schedule_run_async(
        self, delay: float, fn: Callable[[], Awaitable[None] | None]
    ) -> TimerHandle:
        """Run *fn* on the main thread, after at least *delay* seconds; dropped at termination."""
        return self._mailbox.schedule_run_async(delay, fn)

    def schedule_deadline(
        self, seconds: float, fn: Callable[[], Awaitable[None] | None]
    ) -> TimerHandle:
        """Run *fn* after *seconds*, to give up a peer or a resource; dropped at termination.

        Only the time in which this process did not stand still counts, and after a stall *fn* does
        not run before the unread input has been handled
        (:mod:`flinkray.rpc.calls.peer_deadlines`). Use :meth:`schedule_run_async` for other work.
        """
        return self._mailbox.schedule_deadline(self._rpc_service.deadlines, seconds, fn)

    def counted_time(self) -> float:
        """Return the time in seconds that counts for :meth:`schedule_deadline`: without stalls.

        Decisions that compare *now* with such a deadline must use this clock.
        """
        return self._rpc_service.deadlines.time()

    def create_task(
        self, coroutine: Coroutine[Any, Any, T], name: str | None = None
    ) -> asyncio.Task[T]:
        """Run *coroutine* in the background; it is cancelled when the endpoint terminates.

        An exception goes to on_fatal_error.
        """
        return self._mailbox.create_task(coroutine, name)

    def export_metrics(self, sampler: Callable[[], Iterable[MetricSample]]) -> None:
        """Export the samples of *sampler* with the call metrics, until termination.

        *sampler* is called at each export.
        """
        samplers = self._rpc_service.samplers
        samplers.append(sampler)
        self.terminated.add_done_callback(lambda _: samplers.remove(sampler))

    # --- others -------------------------------------------------------------------------------

    def get_self_gateway(self, gateway: type[G]) -> G:
        """Return a proxy of this endpoint, like the proxies that callers hold.

        Raises:
            TypeError: the endpoint does not implement the gateway.
        """
        return self._rpc_service.self_gateway(self, gateway)

    async def connect(
        self, address: str, gateway: type[G], fencing_token: FencingToken | None = None
    ) -> G:
        """Connect to the endpoint at *address*; return a proxy (see :meth:`RpcService.connect`)."""
        return await self._rpc_service.connect(address, gateway, fencing_token)

    def watch(
        self, target: str | RpcGateway, on_terminated: Callable[[str], None]
    ) -> TerminationWatch:
        """Call *on_terminated* on the main thread when *target* ends; see :meth:`RpcService.watch`.

        The watch ends when this endpoint terminates.
        """
        return self._mailbox.watch(target, on_terminated)


class FencedRpcEndpoint(RpcEndpoint, FencedRpcGateway, Generic[TokenT]):
    """An endpoint of one leader session.

    Calls whose token is missing, stale or foreign are refused with FencingTokenError before their
    handler runs.  The token never changes: a new leader session is a new endpoint object.
    """

    def __init__(self, rpc_service: RpcService, endpoint_id: str, fencing_token: TokenT) -> None:
        self._fencing_token = fencing_token
        super().__init__(rpc_service, endpoint_id)

    @property
    def fencing_token(self) -> TokenT:
        return self._fencing_token


@dataclass(frozen=True, slots=True)
class ImplementedGateways:
    """The gateway classes that an endpoint class implements, and their methods by name."""

    gateways: frozenset[str]
    """The type names of the gateways."""
    methods: dict[str, GatewayMethod]
    """The methods by name."""


@cache
def implemented_gateways(endpoint_class: type) -> ImplementedGateways:
    """Return the gateways that the class implements and their methods.

    Raises:
        TypeError: a gateway is not valid; see :func:`gateway_methods`.
    """
    gateways = [
        base
        for base in endpoint_class.__mro__
        if issubclass(base, RpcGateway) and not issubclass(base, RpcEndpoint)
    ]
    methods: dict[str, GatewayMethod] = {}
    for gateway in reversed(gateways):
        methods.update(gateway_methods(gateway))
    return ImplementedGateways(frozenset(map(type_name, gateways)), methods)
