"""Registrations that retry, and their exact timetable."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from flinkray.core.errors import ConfigurationError
from flinkray.core.ids import JobMasterId
from flinkray.core.message import message
from flinkray.rpc import (
    FencedRpcEndpoint,
    FencedRpcGateway,
    RegisteredRpcConnection,
    RegistrationFailure,
    RegistrationRejection,
    RegistrationSettings,
    RegistrationSuccess,
    RetryingRegistration,
    RpcEndpoint,
    RpcService,
)
from flinkray.rpc.service import JITTER
from tests.rpc.on_services import Services, on_local_service

LEADER = JobMasterId(b"leader.leader.le")


@message
class Welcome:
    """Accepted, for the *number*-th time."""

    number: int


class RegistrarGateway(FencedRpcGateway):
    """Where to register."""

    @abstractmethod
    async def register(
        self, name: str
    ) -> Welcome | RegistrationFailure | RegistrationRejection: ...


Answer = Callable[[], Awaitable[Welcome | RegistrationFailure | RegistrationRejection]]


async def silence() -> Welcome:
    await asyncio.Event().wait()
    raise AssertionError


async def failure() -> RegistrationFailure:
    return RegistrationFailure("not now")


async def rejection() -> RegistrationRejection:
    return RegistrationRejection("never")


async def error() -> Welcome:
    raise OSError("something else")


class Registrar(FencedRpcEndpoint[JobMasterId], RegistrarGateway):
    """Answers as its script says, then accepts; notes when it was called."""

    def __init__(self, service: RpcService, *script: Answer) -> None:
        super().__init__(service, "registrar", LEADER)
        self.script = list(script)
        self.times: list[float] = []
        self.accepted = 0
        self.called = asyncio.Event()

    async def register(self, name: str) -> Welcome | RegistrationFailure | RegistrationRejection:
        self.called.set()
        self.times.append(self.clock.monotonic())
        if self.script:
            return await self.script.pop(0)()
        self.accepted += 1
        return Welcome(self.accepted)


class Client(RpcEndpoint):
    """Registers; its settings are Flink's defaults."""

    def registration(
        self, connect: Callable[[], Awaitable[RegistrarGateway]] | None = None, **options: Any
    ) -> RetryingRegistration[RegistrarGateway, Welcome]:
        options.setdefault("register", lambda gateway: gateway.register("me"))
        return RetryingRegistration[RegistrarGateway, Welcome](
            self,
            target_name="registrar",
            address="host/registrar",
            gateway=RegistrarGateway,
            fencing_token=LEADER,
            connect=connect,
            **options,
        )


def started(services: Services, *script: Answer) -> tuple[Registrar, Client]:
    registrar = Registrar(services.host, *script)
    client = Client(services.caller, "client")
    registrar.start()
    client.start()
    registrar.handler_grace = 0.0  # type: ignore[misc]
    return registrar, client


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        pytest.param(
            [silence] * 11,
            [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0],
            id="REG-04: doubled after each silence",
        ),
        pytest.param(
            [silence, silence, failure, silence],
            [0.1, 0.2, 30.0, 0.1],
            id="REG-05: the refused delay after a refusal",
        ),
        pytest.param(
            [silence, error, silence], [0.1, 10.0, 0.1], id="REG-06: the error delay after an error"
        ),
    ],
)
@on_local_service
async def test_registration_is_repeated_after_the_wait_for_its_kind_of_failure(
    services: Services, script: list[Answer], waits: list[float]
) -> None:
    """REG-04, REG-05, REG-06: with Flink's defaults, and at most the jitter later."""
    registrar, client = started(services, *script)
    begin = client.clock.monotonic()
    registration = client.registration()
    registration.start()
    assert isinstance(await registration.future, RegistrationSuccess)
    assert registrar.times[0] == begin
    waited = [later - earlier for earlier, later in pairwise(registrar.times)]
    assert len(waited) == len(waits)
    for seconds, least in zip(waited, waits, strict=True):
        assert least - 1e-9 <= seconds <= least * (1 + JITTER) + 1e-9
    assert waited != pytest.approx(waits)  # some of them were longer


@on_local_service
async def test_clients_refused_at_the_same_time_retry_at_different_times(
    services: Services,
) -> None:
    """After an error, a refusal and a silence."""
    count = 1000
    registrar, _ = started(services, *[error] * count, *[failure] * count, *[silence] * count)
    clients = [Client(services.caller, f"client-{number}") for number in range(count)]
    registrations = [
        client.registration(settings=RegistrationSettings(10.0, 10.0, 10.0, 30.0))
        for client in clients
    ]
    for client, registration in zip(clients, registrations, strict=True):
        client.start()
        registration.start()
    for registration in registrations:
        assert isinstance(await registration.future, RegistrationSuccess)
    assert len(registrar.times) == 4 * count
    first, *again = (sorted(registrar.times)[at : at + count] for at in range(0, 4 * count, count))
    assert first[-1] - first[0] == 0.0
    for times in again:
        assert times[-1] - times[0] > 2.0
        assert max(Counter(round(time, 2) for time in times).values()) < count / 50


@on_local_service
async def test_registration_is_repeated_until_the_leader_exists(services: Services) -> None:
    """REG-06"""
    client = Client(services.caller, "client")
    client.start()
    registration = client.registration(settings=RegistrationSettings(error_delay=0.05))
    registration.start()
    await services.let_time_pass(2)
    assert not registration.future.done()
    Registrar(services.host).start()
    assert isinstance(await registration.future, RegistrationSuccess)


@on_local_service
async def test_cancelled_registration_makes_no_further_attempt(services: Services) -> None:
    """REG-08"""
    registrar, client = started(services, silence)
    registration = client.registration()
    registration.start()
    await registrar.called.wait()
    registration.cancel()
    await services.let_time_pass(100)
    assert len(registrar.times) == 1
    assert registration.future.cancelled()


@on_local_service
async def test_registration_cancelled_before_its_start_makes_no_attempt(
    services: Services,
) -> None:
    """REG-08"""
    registrar, client = started(services)
    registration = client.registration()
    registration.cancel()
    assert registration.future.cancelled()
    registration.start()
    await services.let_time_pass(100)
    assert registrar.times == []


@on_local_service
async def test_registration_after_a_silence_uses_the_existing_connection(
    services: Services,
) -> None:
    """REG-04, REG-06: a new connection is opened only after an error."""
    registrar, client = started(services, silence, silence, failure, error)
    connected_at: list[int] = []

    async def connect() -> RegistrarGateway:
        connected_at.append(len(registrar.times))
        return await client.connect("host/registrar", RegistrarGateway, LEADER)

    registration = client.registration(connect)
    registration.start()
    await registration.future
    assert connected_at == [0, 4]


@pytest.mark.parametrize("turns", range(8))
@on_local_service
async def test_registration_cancelled_as_an_error_arrives_makes_no_further_attempt(
    services: Services, turns: int
) -> None:
    """REG-08, at each turn of the loop between the arrival of an error and the next attempt."""
    _, client = started(services, *[error] * 3)
    attempts = 0

    def cancel(turns_left: int) -> None:
        if turns_left:
            asyncio.get_running_loop().call_soon(cancel, turns_left - 1)
        else:
            registration.cancel()

    async def register(gateway: RegistrarGateway) -> Any:
        nonlocal attempts
        attempts += 1
        try:
            return await gateway.register("me")
        finally:
            cancel(turns)

    registration = client.registration(
        register=register, settings=RegistrationSettings(error_delay=0.0)
    )
    registration.start()
    await asyncio.wait({registration.future})
    so_far = attempts
    await services.let_time_pass(100)
    assert attempts == so_far
    await asyncio.wait_for(asyncio.shield(client.close()), 10)


@pytest.mark.parametrize(
    ("name", "value"),
    [("initial_timeout", 0), ("max_timeout", 0), ("error_delay", -1), ("refused_delay", -0.1)],
)
def test_invalid_registration_settings_are_refused_by_name(name: str, value: float) -> None:
    """REG-09"""
    with pytest.raises(ConfigurationError, match=name):
        RegistrationSettings(**{name: value})


def connection_of(
    client: Client,
    events: asyncio.Queue[object],
    register: Callable[[RegistrarGateway], Awaitable[Any]] = lambda gateway: gateway.register("me"),
    **options: Any,
) -> RegisteredRpcConnection[RegistrarGateway, Welcome]:
    return RegisteredRpcConnection[RegistrarGateway, Welcome](
        client,
        target_name="registrar",
        address="host/registrar",
        gateway=RegistrarGateway,
        fencing_token=LEADER,
        register=register,
        on_rejection=lambda answer: events.put_nowait(answer),
        **{
            "on_failure": lambda error: events.put_nowait(error),
            "on_success": lambda gateway, answer: events.put_nowait(answer),
            "settings": RegistrationSettings(50.0, 50.0),
            **options,
        },
    )


@on_local_service
async def test_connection_to_a_leader_has_its_gateway_once_registered(services: Services) -> None:
    """REG-01, REG-10"""
    _, client = started(services)
    events = asyncio.Queue[object]()
    connection = connection_of(client, events)
    connection.start()
    assert not connection.is_connected
    assert await events.get() == Welcome(1)
    assert connection.is_connected
    assert connection.target_gateway is not None
    assert connection.target_gateway.address == connection.target_address == "host/registrar"
    assert connection.target_gateway.fencing_token == connection.target_fencing_token == LEADER
    await services.let_time_pass(100)
    assert events.empty()


@on_local_service
async def test_failed_registration_is_reported_and_leaves_the_connection_without_a_gateway(
    services: Services,
) -> None:
    """REG-02, REG-11"""
    registrar, client = started(services)
    events = asyncio.Queue[object]()
    mistake = TypeError("a mistake")

    def connect() -> Awaitable[RegistrarGateway]:
        raise mistake

    connection = connection_of(client, events, connect=connect)
    connection.start()
    assert await events.get() is mistake
    assert not connection.is_connected
    assert connection.target_gateway is None
    assert registrar.times == []
    assert connection.target_address == "host/registrar"
    assert connection.target_fencing_token == LEADER


@on_local_service
async def test_rejected_registration_is_reported_once_and_nothing_else(services: Services) -> None:
    """REG-07, REG-12"""
    registrar, client = started(services, rejection)
    events = asyncio.Queue[object]()
    connection = connection_of(client, events)
    connection.start()
    assert await events.get() == RegistrationRejection("never")
    await services.let_time_pass(100)
    assert len(registrar.times) == 1
    assert events.empty()
    assert not connection.is_connected


@on_local_service
async def test_reconnect_reports_the_answer_of_the_second_registration(services: Services) -> None:
    """REG-14"""
    _, client = started(services)
    events = asyncio.Queue[object]()
    connection = connection_of(client, events)
    connection.start()
    assert await events.get() == Welcome(1)
    assert connection.try_reconnect()
    assert not connection.is_connected
    assert await events.get() == Welcome(2)
    connection.close()
    assert not connection.try_reconnect()


@pytest.mark.parametrize("turns", range(8))
@on_local_service
async def test_registration_answer_overtaken_by_a_reconnect_is_ignored_at_any_moment(
    services: Services, turns: int
) -> None:
    """RM-02, at each turn of the loop between the arrival of the answer and the callback."""
    _, client = started(services)
    events = asyncio.Queue[object]()
    before: list[object] = []
    overtaken = asyncio.Event()

    def overtake(turns_left: int) -> None:
        if turns_left:
            asyncio.get_running_loop().call_soon(overtake, turns_left - 1)
            return
        while not events.empty():
            before.append(events.get_nowait())
        connection.try_reconnect()
        overtaken.set()

    async def register(gateway: RegistrarGateway) -> Any:
        answer = await gateway.register("me")
        if answer == Welcome(1):
            overtake(turns)
        return answer

    connection = connection_of(client, events, register)
    connection.start()
    await overtaken.wait()
    assert await events.get() == Welcome(2)
    assert before in ([], [Welcome(1)])
    assert connection.is_connected
    await services.let_time_pass(100)
    assert events.empty()


@on_local_service
async def test_connection_closed_during_its_registration_calls_no_callback(
    services: Services,
) -> None:
    registrar, client = started(services, failure)
    events = asyncio.Queue[object]()
    connection = connection_of(client, events)
    connection.start()
    await registrar.called.wait()
    connection.close()
    await services.let_time_pass(100)
    assert len(registrar.times) == 1
    assert events.empty()
    assert not connection.is_connected
    assert connection.is_closed
    assert not connection.try_reconnect()
    with pytest.raises(RuntimeError, match="closed"):
        connection.start()


@pytest.mark.parametrize("turns", range(12))
@on_local_service
async def test_connection_closed_as_an_answer_arrives_calls_no_callback(
    services: Services, turns: int
) -> None:
    """At each turn of the loop between the arrival of the answer and the callback."""
    _, client = started(services)
    events = asyncio.Queue[object]()
    closed = asyncio.Event()
    before: list[object] = []

    def close(turns_left: int) -> None:
        if turns_left:
            asyncio.get_running_loop().call_soon(close, turns_left - 1)
            return
        while not events.empty():
            before.append(events.get_nowait())
        connection.close()
        closed.set()

    async def register(gateway: RegistrarGateway) -> Any:
        answer = await gateway.register("me")
        close(turns)
        return answer

    connection = connection_of(client, events, register)
    connection.start()
    await closed.wait()
    assert before in ([], [Welcome(1)])
    await services.let_time_pass(100)
    assert events.empty()
    assert not connection.is_connected


@on_local_service
async def test_failed_registration_without_a_callback_ends_the_endpoint(
    services: Services,
) -> None:
    _, client = started(services)

    def connect() -> Awaitable[RegistrarGateway]:
        raise TypeError("a mistake")

    connection = connection_of(client, asyncio.Queue[object](), connect=connect, on_failure=None)
    connection.start()
    with pytest.raises(TypeError, match="a mistake"):
        await client.terminated
    assert not connection.is_connected


@on_local_service
async def test_second_start_of_a_connection_or_registration_is_refused(services: Services) -> None:
    _, client = started(services)
    connection = connection_of(client, asyncio.Queue[object]())
    assert not connection.is_closed
    connection.start()
    with pytest.raises(RuntimeError, match="started before"):
        connection.start()
    registration = client.registration()
    registration.start()
    with pytest.raises(RuntimeError, match="started before"):
        registration.start()
    assert isinstance(await registration.future, RegistrationSuccess)


@on_local_service
async def test_reconnect_stops_the_attempts_of_the_earlier_registration(services: Services) -> None:
    registrar, client = started(services, failure)
    events = asyncio.Queue[object]()
    connection = connection_of(client, events)
    connection.start()
    await registrar.called.wait()
    assert connection.try_reconnect()
    await services.let_time_pass(1000)
    assert registrar.accepted == 1
    assert len(registrar.times) == 2
    assert events.get_nowait() == Welcome(1)
    assert events.empty()


@on_local_service
async def test_callback_of_a_registration_may_be_a_coroutine(services: Services) -> None:
    _, client = started(services)
    heard: list[Welcome] = []

    async def on_success(gateway: RegistrarGateway, answer: Welcome) -> None:
        await asyncio.sleep(5)
        heard.append(answer)

    connection = connection_of(client, asyncio.Queue[object](), on_success=on_success)
    connection.start()
    await services.let_time_pass(100)
    assert heard == [Welcome(1)]
