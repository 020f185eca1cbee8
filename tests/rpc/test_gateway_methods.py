"""What a gateway class declares, as the wire has it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pytest

from flinkray.rpc import FencedRpcGateway, RpcGateway, ask_timeout, oneway, runs_to_completion
from flinkray.rpc.gateway import gateway_methods


class NotAGateway:
    """Its methods are not for the wire."""

    async def hidden(self) -> None: ...


class LowerGateway(RpcGateway):
    """Has one method of each kind."""

    constant = 7

    @abstractmethod
    async def plain(self, first: int, second: str = "", *, third: float = 0.0) -> int: ...

    @abstractmethod
    @oneway
    async def tell(self) -> None: ...

    @abstractmethod
    @ask_timeout(5.0)
    async def patient(self) -> None: ...

    @abstractmethod
    @ask_timeout(None)
    async def without_end(self) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def whole(self) -> None: ...

    async def _private(self) -> None: ...


class UpperGateway(NotAGateway, LowerGateway):
    """Has those of the other one, declares one of them again, and has one more."""

    @abstractmethod
    async def plain(self, first: int, second: str = "", *, third: float = 0.0) -> int: ...

    @abstractmethod
    async def own(self) -> None: ...


def test_gateway_has_the_methods_that_it_and_its_bases_declare() -> None:
    lower, upper = gateway_methods(LowerGateway), gateway_methods(UpperGateway)
    assert list(lower) == ["plain", "tell", "patient", "without_end", "whole"]
    assert list(upper) == [*lower, "own"]
    assert upper["plain"].gateway is UpperGateway
    assert upper["plain"].full_name == "UpperGateway.plain"
    assert upper["tell"].gateway is LowerGateway
    assert upper["tell"].full_name == "LowerGateway.tell"


def test_parameters_of_a_gateway_method_are_listed_in_order_without_self() -> None:
    plain = gateway_methods(LowerGateway)["plain"]
    assert plain.name == "plain"
    assert plain.parameters == ("first", "second", "third")
    assert plain.keywords == ("third",)
    assert list(plain.signature.parameters) == ["self", "first", "second", "third"]


def test_decorators_of_a_gateway_method_apply_only_to_that_method() -> None:
    methods = gateway_methods(LowerGateway)
    assert [name for name, method in methods.items() if method.is_oneway] == ["tell"]
    assert [name for name, method in methods.items() if method.runs_to_completion] == ["whole"]
    assert {name: method.timeout for name, method in methods.items() if method.timeout} == {
        "patient": (5.0,),
        "without_end": (None,),
    }


def test_gateway_decorators_work_on_a_class_made_at_run_time() -> None:
    async def told(self: RpcGateway) -> None: ...

    async def late(self: RpcGateway) -> None: ...

    async def done(self: RpcGateway) -> None: ...

    members: dict[str, Any] = {
        "told": oneway(told),
        "late": ask_timeout(1.5)(late),
        "done": runs_to_completion(done),
    }
    methods = gateway_methods(type("Marked", (RpcGateway,), members))
    assert methods["told"].is_oneway
    assert methods["late"].timeout == (1.5,)
    assert methods["done"].runs_to_completion


def test_gateway_class_that_is_not_connected_has_no_address_and_no_token() -> None:
    """Only proxies and endpoints have an address and a token."""
    gateway = FencedRpcGateway()
    with pytest.raises(NotImplementedError):
        _ = gateway.address
    with pytest.raises(NotImplementedError):
        _ = gateway.fencing_token


class _NotAsync(RpcGateway):
    def answer(self) -> int:
        return 1


class _AnyArguments(RpcGateway):
    async def answer(self, *numbers: int) -> int:
        return len(numbers)


class _AnyKeywords(RpcGateway):
    async def answer(self, **numbers: int) -> int:
        return len(numbers)


class _ToldAndAnswered(RpcGateway):
    @oneway
    async def answer(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("gateway", "problem"),
    [
        (_NotAsync, "_NotAsync.answer is not declared with async def"),
        (_AnyArguments, r"_AnyArguments.answer: gateway methods take no \* or \*\* arguments"),
        (_AnyKeywords, r"_AnyKeywords.answer: gateway methods take no \* or \*\* arguments"),
        (_ToldAndAnswered, "_ToldAndAnswered.answer is one-way and cannot return a value"),
    ],
)
def test_method_that_cannot_be_called_remotely_is_refused(
    gateway: type[RpcGateway], problem: str
) -> None:
    with pytest.raises(TypeError, match=problem):
        gateway_methods(gateway)
