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
async def test_gateway_double_returns_its_results_in_order_and_repeats_the_last_one() -> None:
    double = TestingGateway(BankGateway).on(BankGateway.balance).returning(10, 20)
    assert [await double.gateway.balance() for _ in range(3)] == [10, 20, 20]
    assert isinstance(double.gateway, BankGateway)


@on_virtual_time
async def test_function_given_to_a_gateway_double_gets_the_arguments_of_the_call() -> None:
    async def decide(amount: int, *, currency: str) -> bool:
        await asyncio.sleep(1)
        return amount < 20 and currency == "EUR"

    double = TestingGateway(BankGateway).on(BankGateway.pay).calling(decide)
    assert await double.gateway.pay(10)
    assert not await double.gateway.pay(10, currency="CHF")
    assert double.calls == [("pay", (10, "EUR")), ("pay", (10, "CHF"))]


@on_virtual_time
async def test_gateway_double_raises_its_error_until_another_answer_is_set() -> None:
    double = (
        TestingGateway(BankGateway).on(BankGateway.balance).raising(PermissionError("not yours"))
    )
    with pytest.raises(PermissionError, match="not yours"):
        await double.gateway.balance()
    assert await double.on(BankGateway.balance).returning(1).gateway.balance() == 1


@on_virtual_time
async def test_call_of_a_double_without_an_answer_raises_an_error_that_says_how_to_set_one() -> (
    None
):
    double = TestingGateway(BankGateway)
    with pytest.raises(UnexpectedCallError, match=r"BankGateway\.pay.*\(5, 'EUR'\).*returning"):
        await double.gateway.pay(5)
    await double.gateway.notice("taken")
    assert double.calls_of(BankGateway.notice) == [("taken",)]
    assert await double.lenient().gateway.pay(5) is None
    with pytest.raises(TypeError, match="BankGateway has no method open"):
        double.on(VaultGateway.open).returning("now")


@on_virtual_time
async def test_started_gateway_double_is_an_endpoint_that_others_can_connect_to() -> None:
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
async def test_double_of_a_fenced_gateway_refuses_calls_with_another_token() -> None:
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
