"""Endpoints: what an actor of the framework is written as.

All code of an endpoint runs on one event loop, its *main thread*.  Handlers interleave only at
``await``; those of one sender begin in the order in which that sender sent.

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
from typing import Any, ClassVar, Generic, TypeVar, overload

from flinkray.core.clock import Clock
from flinkray.core.errors import RecipientUnreachableError, RpcTimeoutError
from flinkray.core.ids import FencingToken
from flinkray.rpc.calls.metrics import MetricSample
from flinkray.rpc.calls.watch import TerminationWatch
from flinkray.rpc.gateway import FencedRpcGateway, RpcGateway
from flinkray.rpc.mailbox import Mailbox, TimerHandle
from flinkray.rpc.service import RpcService

G = TypeVar("G", bound=RpcGateway)
T = TypeVar("T")
TokenT = TypeVar("TokenT", bound=FencingToken)


class RpcEndpoint(RpcGateway):
    """Base of all endpoints; a subclass inherits from its gateways too and implements them."""

    handler_grace: ClassVar[float] = 1.0
    """Seconds that running handlers have to finish after ``on_stop``."""

    def __init__(self, rpc_service: RpcService, endpoint_id: str) -> None:
        """Registers with the service; the endpoint is reachable, but refuses calls until started.

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
        """For services only."""
        return self._mailbox

    # --- life cycle ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run ``on_start`` on the main thread; a second call is an error."""
        self._mailbox.start()

    async def on_start(self) -> None:
        """Runs once, before any handler; an exception terminates the endpoint with it."""

    async def on_stop(self) -> None:
        """Runs once, when the endpoint is closed; it is terminated only after this is done."""

    def close(self) -> asyncio.Future[None]:
        """Request the stop (idempotent); returns ``terminated``."""
        return self._mailbox.close()

    @property
    def terminated(self) -> asyncio.Future[None]:
        """Completes when all is over; fails with on_start's, on_stop's or the fatal exception."""
        return self._mailbox.terminated

    @property
    def is_running(self) -> bool:
        """From ``start`` until ``close``."""
        return self._mailbox.is_running

    def on_fatal_error(self, error: BaseException) -> None:
        """Called on the main thread for an exception that nobody awaits.

        The default logs it and closes the endpoint, whose ``terminated`` then fails with it.
        """
        self._mailbox.fail(error)

    # --- the main thread ----------------------------------------------------------------------

    def validate_runs_in_main_thread(self) -> None:
        """Raises RuntimeError when called from anywhere but the endpoint's event loop."""
        self._mailbox.validate_runs_in_main_thread()

    def run_async(self, fn: Callable[[], Awaitable[None] | None]) -> None:
        """Run later on the main thread, in the order of calls; callable from any thread.

        Dropped when the endpoint has terminated by then.  An exception goes to on_fatal_error.
        """
        self._mailbox.run_async(fn)

    # Overloads: of a union of the two, type checkers do not find what an async function returns.
    @overload
    def call_async(
        self, fn: Callable[[], Awaitable[T]], timeout: float | None
    ) -> asyncio.Future[T]: ...
    @overload
    def call_async(self, fn: Callable[[], T], timeout: float | None) -> asyncio.Future[T]: ...
    def call_async(
        self, fn: Callable[[], Awaitable[T] | T], timeout: float | None
    ) -> asyncio.Future[T]:
        """Run later on the main thread; fails with RpcTimeoutError after *timeout* seconds.

        To be called on the main thread.  *fn* itself is not stopped by the timeout.
        """
        return self._mailbox.call_async(fn, timeout)

    @overload
    def call_from_thread(self, fn: Callable[[], Awaitable[T]], timeout: float | None) -> T: ...
    @overload
    def call_from_thread(self, fn: Callable[[], T], timeout: float | None) -> T: ...
    def call_from_thread(self, fn: Callable[[], Awaitable[T] | T], timeout: float | None) -> T:
        """Run on the main thread, for another thread, which waits for the result.

        Raises:
            RpcTimeoutError: not done after *timeout* seconds, be it that *fn* or something else
                occupies the main thread; *fn* itself is not stopped.
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
                raise  # it is the function's own
            name = getattr(fn, "__qualname__", repr(fn))
            text = f"{self.address}: {name} was not done within {timeout:g} s"
            raise RpcTimeoutError(text) from error

    def schedule_run_async(
        self, delay: float, fn: Callable[[], Awaitable[None] | None]
    ) -> TimerHandle:
        """Run on the main thread, not before *delay* seconds from now; dropped at termination."""
        return self._mailbox.schedule_run_async(delay, fn)

    def schedule_deadline(
        self, seconds: float, fn: Callable[[], Awaitable[None] | None]
    ) -> TimerHandle:
        """As :meth:`schedule_run_async`, for what gives somebody or something up: *fn* runs when so
        many seconds have passed in which this process did not stand still, and after a stall not
        before what lay unread has been handled (:mod:`flinkray.rpc.calls.patience`)."""
        return self._mailbox.schedule_deadline(self._rpc_service.deadlines, seconds, fn)

    def counted_time(self) -> float:
        """Seconds, without those in which this process stood still: the clock of decisions that
        compare *now* with a deadline of :meth:`schedule_deadline`."""
        return self._rpc_service.deadlines.time()

    def create_task(
        self, coroutine: Coroutine[Any, Any, T], name: str | None = None
    ) -> asyncio.Task[T]:
        """Background work; cancelled at termination.  An exception goes to on_fatal_error."""
        return self._mailbox.create_task(coroutine, name)

    def export_metrics(self, sampler: Callable[[], Iterable[MetricSample]]) -> None:
        """What it says at each export is exported with the figures of calls, until termination."""
        samplers = self._rpc_service.samplers
        samplers.append(sampler)
        self.terminated.add_done_callback(lambda _: samplers.remove(sampler))

    # --- others -------------------------------------------------------------------------------

    def get_self_gateway(self, gateway: type[G]) -> G:
        """A proxy of this endpoint, as others hold it.

        Raises:
            TypeError: the endpoint does not implement the gateway.
        """
        return self._rpc_service.self_gateway(self, gateway)

    async def connect(
        self, address: str, gateway: type[G], fencing_token: FencingToken | None = None
    ) -> G:
        """See :meth:`RpcService.connect`."""
        return await self._rpc_service.connect(address, gateway, fencing_token)

    def watch(
        self, target: str | RpcGateway, on_terminated: Callable[[str], None]
    ) -> TerminationWatch:
        """See :meth:`RpcService.watch`.

        Be told on the main thread; ends when this endpoint terminates.
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
