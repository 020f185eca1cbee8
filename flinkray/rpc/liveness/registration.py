"""Repeated registration at a leader, until the leader answers (after RetryingRegistration).

Back-off: an attempt that gets no answer in time is repeated at once with twice the timeout, up to
the maximum. After a failure answer the registration pauses for the refused delay, after any other
error for the error delay, and starts again with the initial timeout. A rejection ends the
registration. Timeouts and pauses are longer at random (:meth:`RpcService.jittered`), as many
endpoints may lose a leader at one time.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import FencingToken
from flinkray.core.message import message
from flinkray.rpc.calls.proxy import asks_within
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.gateway import RpcGateway

logger = logging.getLogger(__name__)

G = TypeVar("G", bound=RpcGateway)
S = TypeVar("S")


@message
class RegistrationFailure:
    """Answer of a leader that refuses for now. The endpoint tries again after the refused delay."""

    reason: str


@message
class RegistrationRejection:
    """Answer of a leader that refuses for good. The endpoint does not try again."""

    reason: str


@dataclass(frozen=True, slots=True)
class RegistrationSettings:
    """The ``cluster.registration.*`` settings of Flink in seconds, with Flink's defaults."""

    initial_timeout: float = 0.1
    max_timeout: float = 30.0
    error_delay: float = 10.0
    refused_delay: float = 30.0

    def __post_init__(self) -> None:
        for name in ("initial_timeout", "max_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"registration {name} must be above 0 seconds")
        for name in ("error_delay", "refused_delay"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(f"registration {name} must not be below 0 seconds")


@dataclass(frozen=True, slots=True)
class RegistrationSuccess(Generic[G, S]):
    """Outcome of an accepted registration: the leader's gateway and answer."""

    gateway: G
    response: S


class RetryingRegistration(Generic[G, S]):
    """One registration at one leader; ends with success, rejection, error or :meth:`cancel`."""

    def __init__(
        self,
        endpoint: RpcEndpoint,
        *,
        target_name: str,
        address: str,
        gateway: type[G],
        register: Callable[[G], Awaitable[S | RegistrationFailure | RegistrationRejection]],
        fencing_token: FencingToken | None = None,
        settings: RegistrationSettings | None = None,
        connect: Callable[[], Awaitable[G]] | None = None,
    ) -> None:
        """Create a registration that does nothing before :meth:`start`.

        *register* makes one registration call on the gateway that it receives. *connect* is called
        in place of ``endpoint.connect(address, gateway, fencing_token)``. If *connect* or
        *register* raises when called (not when awaited), the registration fails with that
        exception.
        """
        self._endpoint = endpoint
        self._target_name = target_name
        self._address = address
        self._register = register
        self._settings = settings or RegistrationSettings()
        self._connect = connect or (lambda: endpoint.connect(address, gateway, fencing_token))
        self._task: asyncio.Task[None] | None = None
        self.future: asyncio.Future[RegistrationSuccess[G, S] | RegistrationRejection] = (
            endpoint.rpc_service.loop.create_future()
        )
        """The outcome of the registration; always the same object. Cancelled by :meth:`cancel`."""

    def start(self) -> None:
        """Begin to register. Call this once, on the endpoint's main thread."""
        if self._task is not None:
            raise RuntimeError(f"the registration at {self._target_name} was started before")
        if not self.future.done():
            self._task = self._endpoint.create_task(
                self._run(), name=f"registration at {self._target_name}"
            )
            self._task.add_done_callback(lambda _: self.future.cancel())

    def cancel(self) -> None:
        """Stop the registration without an outcome; idempotent."""
        self.future.cancel()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            outcome = await self._attempts()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the future's outcome
            if not self.future.done():
                self.future.set_exception(error)
        else:
            if not self.future.done():
                self.future.set_result(outcome)

    async def _attempts(self) -> RegistrationSuccess[G, S] | RegistrationRejection:
        settings = self._settings
        service = self._endpoint.rpc_service
        timeout = settings.initial_timeout
        gateway: G | None = None
        while True:
            delay = service.jittered(settings.error_delay)
            connecting = self._connect() if gateway is None else None
            try:
                if connecting is not None:
                    gateway = await connecting
            except Exception as error:  # noqa: BLE001 - every failed connection is tried again
                logger.info(
                    "cannot connect to %s at %s, next attempt in %.1f s: %s",
                    self._target_name, self._address, delay, error,
                )  # fmt: skip
                await asyncio.sleep(delay)
                continue
            assert gateway is not None
            registering = self._register(gateway)
            patience = service.jittered(timeout)
            try:
                with asks_within(patience):
                    response = await service.deadlines.within(patience, registering)
            except (TimeoutError, asyncio.TimeoutError):
                logger.debug(
                    "%s at %s did not answer the registration within %.1f s",
                    self._target_name, self._address, patience,
                )  # fmt: skip
                timeout = min(2 * timeout, settings.max_timeout)
                continue
            except Exception as error:  # noqa: BLE001 - every failed attempt is repeated
                logger.info(
                    "registration at %s (%s) failed, next attempt in %.1f s: %r",
                    self._target_name, self._address, delay, error,
                )  # fmt: skip
                gateway = None
            else:
                if isinstance(response, RegistrationRejection):
                    return response
                if not isinstance(response, RegistrationFailure):
                    return RegistrationSuccess(gateway, response)
                delay = service.jittered(settings.refused_delay)
                logger.info(
                    "%s at %s refused the registration, next attempt in %.1f s: %s",
                    self._target_name, self._address, delay, response.reason,
                )  # fmt: skip
            timeout = settings.initial_timeout
            await asyncio.sleep(delay)


class RegisteredRpcConnection(Generic[G, S]):
    """A connection to one leader that begins with a registration.

    The callbacks run on the endpoint's main thread; none is called after :meth:`close`.
    """

    def __init__(
        self,
        endpoint: RpcEndpoint,
        *,
        target_name: str,
        address: str,
        gateway: type[G],
        register: Callable[[G], Awaitable[S | RegistrationFailure | RegistrationRejection]],
        on_success: Callable[[G, S], Awaitable[None] | None],
        on_rejection: Callable[[RegistrationRejection], Awaitable[None] | None],
        on_failure: Callable[[BaseException], Awaitable[None] | None] | None = None,
        fencing_token: FencingToken | None = None,
        settings: RegistrationSettings | None = None,
        connect: Callable[[], Awaitable[G]] | None = None,
    ) -> None:
        """Create a connection that does nothing before :meth:`start`.

        *on_failure* gets the error of a failed registration; default: endpoint.on_fatal_error.
        *connect* is called in place of ``endpoint.connect(address, gateway, fencing_token)``.
        """
        self._endpoint = endpoint
        self._on_success = on_success
        self._on_rejection = on_rejection
        self._on_failure = on_failure or endpoint.on_fatal_error

        def new_registration() -> RetryingRegistration[G, S]:
            return RetryingRegistration(
                endpoint,
                target_name=target_name,
                address=address,
                gateway=gateway,
                register=register,
                fencing_token=fencing_token,
                settings=settings,
                connect=connect,
            )

        self._new_registration = new_registration
        self._registration: RetryingRegistration[G, S] | None = None
        self._target_gateway: G | None = None
        self._closed = False
        self.target_name = target_name
        self.target_address = address
        self.target_fencing_token = fencing_token

    @property
    def target_gateway(self) -> G | None:
        """The leader's gateway; None until registered."""
        return self._target_gateway

    @property
    def is_connected(self) -> bool:
        return self._target_gateway is not None

    @property
    def is_closed(self) -> bool:
        return self._closed

    def start(self) -> None:
        """Begin to register. Raises RuntimeError if closed or started before."""
        if self._closed:
            raise RuntimeError(f"the connection to {self.target_name} is closed")
        if self._registration is not None:
            raise RuntimeError(f"the connection to {self.target_name} was started before")
        self._begin()

    def try_reconnect(self) -> bool:
        """Begin to register again at the same leader and return True; False if the connection is
        closed."""
        if self._closed:
            return False
        if self._registration is not None:
            self._registration.cancel()
        self._target_gateway = None
        self._begin()
        return True

    def close(self) -> None:
        """Close the connection and stop a running registration; idempotent."""
        self._closed = True
        self._target_gateway = None
        if self._registration is not None:
            self._registration.cancel()

    def _begin(self) -> None:
        registration = self._registration = self._new_registration()
        registration.future.add_done_callback(lambda _: self._ended(registration))
        registration.start()

    def _ended(self, registration: RetryingRegistration[G, S]) -> None:
        future = registration.future
        if future.cancelled():
            return
        error = future.exception()
        if not self._is_current(registration):
            return
        if error is not None:
            self._call(lambda: self._on_failure(error))
            return
        outcome = future.result()
        if isinstance(outcome, RegistrationRejection):
            rejection = outcome
            self._call(lambda: self._on_rejection(rejection))
        else:
            success = outcome
            self._target_gateway = success.gateway
            self._call(lambda: self._on_success(success.gateway, success.response))

    def _is_current(self, registration: RetryingRegistration[G, S] | None) -> bool:
        return not self._closed and registration is self._registration

    def _call(self, callback: Callable[[], Awaitable[None] | None]) -> None:
        registration = self._registration

        async def run() -> None:
            if not self._is_current(registration):
                return
            result = callback()
            if inspect.isawaitable(result):
                await result

        self._endpoint.run_async(run)
