"""Doubles of gateways do what their builder says, called directly and as endpoints."""

from __future__ import annotations

import asyncio
from abc import abstractmethod

import pytest

from flinkray.core.errors import FencingTokenError, RecipientUnreachableError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import FencedRpcGateway, LocalNetwork, LocalRpcService, RpcGateway, oneway
from flinkray.testing import TestingGateway, UnexpectedCallError, on_virtual_time

TOKEN = JobMasterId(b"t" * 16)


class BankGateway(RpcGateway):
    """Keeps money."""

    @abstractmethod
    async def balance(self) -> int: ...

    @abstractmethod
    async def pay(self, amount: int, *, currency: str = "EUR") -> bool: ...

    @abstractmethod
    @oneway
    async def notice(self, text: str) -> None: ...


class VaultGateway(FencedRpcGateway):
    """Opens for its leader."""

    @abstractmethod
    async def open(self) -> str: ...


@on_virtual_time
async def test_results_come_in_their_order_and_the_last_one_repeats() -> None:
    double = TestingGateway(BankGateway).on(BankGateway.balance).returning(10, 20)
    assert [await double.gateway.balance() for _ in range(3)] == [10, 20, 20]
    assert isinstance(double.gateway, BankGateway)


@on_virtual_time
async def test_functions_get_the_arguments_of_the_call() -> None:
    async def decide(amount: int, *, currency: str) -> bool:
        await asyncio.sleep(1)
        return amount < 20 and currency == "EUR"

    double = TestingGateway(BankGateway).on(BankGateway.pay).calling(decide)
    assert await double.gateway.pay(10)
    assert not await double.gateway.pay(10, currency="CHF")
    assert double.calls == [("pay", (10, "EUR")), ("pay", (10, "CHF"))]


@on_virtual_time
async def test_an_error_is_raised_and_answers_may_change() -> None:
    double = (
        TestingGateway(BankGateway).on(BankGateway.balance).raising(PermissionError("not yours"))
    )
    with pytest.raises(PermissionError, match="not yours"):
        await double.gateway.balance()
    assert await double.on(BankGateway.balance).returning(1).gateway.balance() == 1


@on_virtual_time
async def test_a_method_without_an_answer_says_what_the_test_should_say() -> None:
    double = TestingGateway(BankGateway)
    with pytest.raises(UnexpectedCallError, match=r"BankGateway\.pay.*\(5, 'EUR'\).*returning"):
        await double.gateway.pay(5)
    await double.gateway.notice("taken")
    assert double.calls_of(BankGateway.notice) == [("taken",)]
    assert await double.lenient().gateway.pay(5) is None
    with pytest.raises(TypeError, match="BankGateway has no method open"):
        double.on(VaultGateway.open).returning("now")


@on_virtual_time
async def test_a_started_double_is_an_endpoint_that_others_connect_to() -> None:
    network = LocalNetwork()
    host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    double = TestingGateway(BankGateway).on(BankGateway.pay).returning(True).start(host, "bank")
    bank = await caller.connect("host/bank", BankGateway)
    assert double.address == bank.address == "host/bank"
    waiting = asyncio.ensure_future(double.wait_for(BankGateway.pay, 2))
    assert await bank.pay(1)
    assert not waiting.done()
    assert await bank.pay(2, currency="CHF")
    assert await waiting == (2, "CHF")
    with pytest.raises(UnexpectedCallError, match="balance"):
        await bank.balance()
    await double.endpoint.close()
    with pytest.raises(RecipientUnreachableError):
        await bank.pay(3)
    await network.close()


@on_virtual_time
async def test_a_double_of_a_fenced_gateway_is_fenced() -> None:
    service = LocalRpcService("host")
    double = TestingGateway(VaultGateway, TOKEN).on(VaultGateway.open).returning("come in")
    assert double.gateway.fencing_token == TOKEN
    double.start(service, "vault")
    assert await (await service.connect(double.address, VaultGateway, TOKEN)).open() == "come in"
    stranger = await service.connect(double.address, VaultGateway, JobMasterId(b"x" * 16))
    with pytest.raises(FencingTokenError):
        await stranger.open()
    with pytest.raises(TypeError, match="give its double a token"):
        TestingGateway(VaultGateway).start(service, "other")
    with pytest.raises(RuntimeError, match="not started"):
        _ = TestingGateway(VaultGateway).endpoint
    await service.close()
