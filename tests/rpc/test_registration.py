"""Registrations that retry, on virtual time."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from flinkray.core.errors import ConfigurationError, RpcConnectionError
from flinkray.core.ids import JobMasterId
from flinkray.core.message import message
from flinkray.rpc import (
    FencedRpcEndpoint,
    FencedRpcGateway,
    LocalRpcService,
    RegisteredRpcConnection,
    RegistrationFailure,
    RegistrationRejection,
    RegistrationSettings,
    RegistrationSuccess,
    RetryingRegistration,
    RpcEndpoint,
)
from flinkray.testing.virtual_time import on_virtual_time

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

    def __init__(self, service: LocalRpcService, *script: Answer) -> None:
        super().__init__(service, "registrar", LEADER)
        self.script = list(script)
        self.times: list[float] = []
        self.accepted = 0

    async def register(self, name: str) -> Welcome | RegistrationFailure | RegistrationRejection:
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
        return RetryingRegistration[RegistrarGateway, Welcome](
            self,
            target_name="registrar",
            address="local/registrar",
            gateway=RegistrarGateway,
            fencing_token=LEADER,
            register=lambda gateway: gateway.register("me"),
            connect=connect,
            **options,
        )


def started(*script: Answer) -> tuple[LocalRpcService, Registrar, Client]:
    service = LocalRpcService()
    registrar, client = Registrar(service, *script), Client(service, "client")
    registrar.start()
    client.start()
    registrar.handler_grace = 0.0  # type: ignore[misc]
    return service, registrar, client


@on_virtual_time
async def test_an_acceptance_carries_gateway_and_answer() -> None:
    """REG-01"""
    service, _, client = started()
    registration = client.registration()
    future = registration.future
    registration.start()
    outcome = await future
    assert isinstance(outcome, RegistrationSuccess)
    assert outcome.response == Welcome(1)
    assert outcome.gateway.address == "local/registrar"
    assert outcome.gateway.fencing_token == LEADER
    assert registration.future is future
    await service.close()


@on_virtual_time
async def test_a_connect_that_raises_when_called_fails_the_registration() -> None:
    """REG-02"""
    service, registrar, client = started()

    def connect() -> Awaitable[RegistrarGateway]:
        raise TypeError("a mistake")

    registration = client.registration(connect)
    registration.start()
    with pytest.raises(TypeError, match="a mistake"):
        await registration.future
    assert registrar.times == []
    await service.close()


@on_virtual_time
async def test_silence_is_answered_by_retries_at_once_with_doubled_timeouts() -> None:
    """REG-04"""
    service, registrar, client = started(*[silence] * 11)
    registration = client.registration()
    registration.start()
    await registration.future
    gaps = [round(b - a, 6) for a, b in pairwise(registrar.times)]
    assert gaps == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    await service.close()


@on_virtual_time
async def test_a_failure_pauses_the_refused_delay_and_begins_anew() -> None:
    """REG-05"""
    service, registrar, client = started(silence, silence, failure, silence)
    registration = client.registration()
    registration.start()
    await registration.future
    assert registrar.times == pytest.approx([0, 0.1, 0.3, 30.3, 30.4])
    await service.close()


@on_virtual_time
async def test_any_other_error_pauses_the_error_delay() -> None:
    """REG-06"""
    service, registrar, client = started(silence, error, silence)
    registration = client.registration()
    registration.start()
    await registration.future
    assert registrar.times == pytest.approx([0, 0.1, 10.1, 10.2])
    await service.close()


@on_virtual_time
async def test_a_leader_that_is_not_there_yet_is_tried_again() -> None:
    """REG-06"""
    service = LocalRpcService()
    client = Client(service, "client")
    client.start()
    registration = client.registration(settings=RegistrationSettings(error_delay=1.0))
    registration.start()
    await asyncio.sleep(2.5)
    assert not registration.future.done()
    registrar = Registrar(service)
    registrar.start()
    await registration.future
    assert registrar.times == [pytest.approx(3.0)]
    await service.close()


@on_virtual_time
async def test_a_rejection_is_final_and_no_error() -> None:
    """REG-07"""
    service, registrar, client = started(rejection)
    registration = client.registration()
    registration.start()
    assert await registration.future == RegistrationRejection("never")
    await asyncio.sleep(100)
    assert len(registrar.times) == 1
    await service.close()


@on_virtual_time
async def test_after_cancel_there_is_no_further_attempt() -> None:
    """REG-08"""
    service, registrar, client = started(silence)
    registration = client.registration()
    registration.start()
    await asyncio.sleep(0.05)
    registration.cancel()
    await asyncio.sleep(100)
    assert len(registrar.times) == 1
    assert registration.future.cancelled()
    await service.close()


@on_virtual_time
async def test_a_registration_ends_with_its_endpoint() -> None:
    service, registrar, client = started(silence)
    registration = client.registration()
    registration.start()
    await asyncio.sleep(0.05)
    await client.close()
    await asyncio.sleep(100)
    assert registration.future.cancelled()
    assert len(registrar.times) == 1
    await service.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("initial_timeout", 0), ("max_timeout", 0), ("error_delay", -1), ("refused_delay", -0.1)],
)
def test_bad_settings_are_refused_by_name(name: str, value: float) -> None:
    """REG-09"""
    with pytest.raises(ConfigurationError, match=name):
        RegistrationSettings(**{name: value})


def connection_of(
    client: Client, events: list[object], **options: Any
) -> RegisteredRpcConnection[RegistrarGateway, Welcome]:
    return RegisteredRpcConnection[RegistrarGateway, Welcome](
        client,
        target_name="registrar",
        address="local/registrar",
        gateway=RegistrarGateway,
        fencing_token=LEADER,
        register=lambda gateway: gateway.register("me"),
        on_success=lambda gateway, answer: events.append(answer),
        on_rejection=lambda answer: events.append(answer),
        on_failure=lambda error: events.append(error),
        **options,
    )


@on_virtual_time
async def test_a_connection_that_is_registered_has_its_gateway() -> None:
    """REG-10"""
    service, _, client = started()
    events: list[object] = []
    connection = connection_of(client, events)
    connection.start()
    assert not connection.is_connected
    await asyncio.sleep(1)
    assert events == [Welcome(1)]
    assert connection.is_connected
    assert connection.target_gateway is not None
    assert connection.target_gateway.address == connection.target_address == "local/registrar"
    assert connection.target_fencing_token == LEADER
    await service.close()


@on_virtual_time
async def test_a_registration_that_fails_is_reported_and_leaves_no_gateway() -> None:
    """REG-11"""
    service, _, client = started()
    events: list[object] = []
    mistake = TypeError("a mistake")

    def connect() -> Awaitable[RegistrarGateway]:
        raise mistake

    connection = connection_of(client, events, connect=connect)
    connection.start()
    await asyncio.sleep(1)
    assert events == [mistake]
    assert not connection.is_connected
    assert connection.target_gateway is None
    assert connection.target_address == "local/registrar"
    assert connection.target_fencing_token == LEADER
    await service.close()


@on_virtual_time
async def test_a_rejected_connection_tells_only_the_rejection() -> None:
    """REG-12"""
    service, _, client = started(rejection)
    events: list[object] = []
    connection = connection_of(client, events)
    connection.start()
    await asyncio.sleep(1)
    assert events == [RegistrationRejection("never")]
    assert not connection.is_connected
    await service.close()


@on_virtual_time
async def test_reconnecting_delivers_the_second_success() -> None:
    """REG-14"""
    service, _, client = started()
    events: list[object] = []
    connection = connection_of(client, events)
    connection.start()
    await asyncio.sleep(1)
    assert connection.try_reconnect()
    assert not connection.is_connected
    await asyncio.sleep(1)
    assert events == [Welcome(1), Welcome(2)]
    connection.close()
    assert not connection.try_reconnect()
    await service.close()


@on_virtual_time
async def test_a_slow_answer_to_an_older_registration_changes_nothing() -> None:
    gate = asyncio.Event()

    async def slow() -> Welcome:
        await gate.wait()
        return Welcome(100)

    service, _, client = started(slow)
    events: list[object] = []
    connection = connection_of(
        client, events, settings=RegistrationSettings(initial_timeout=50.0, max_timeout=50.0)
    )
    connection.start()
    await asyncio.sleep(1)
    connection.try_reconnect()
    gate.set()
    await asyncio.sleep(100)
    assert events == [Welcome(1)]
    await service.close()


@on_virtual_time
async def test_a_closed_connection_calls_nobody_back() -> None:
    service, _, client = started()
    events: list[object] = []
    connection = connection_of(client, events)
    connection.start()
    connection.close()
    await asyncio.sleep(100)
    assert events == []
    assert not connection.is_connected
    with pytest.raises(RuntimeError, match="closed"):
        connection.start()
    with pytest.raises(RpcConnectionError):
        await client.connect("local/nobody", RegistrarGateway)
    await service.close()
