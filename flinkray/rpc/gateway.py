"""Gateways: the public contracts of endpoints.

A gateway is an abstract class of ``async def`` methods with typed arguments.  An endpoint inherits
from its gateways and implements them; everyone else holds a proxy that :meth:`RpcService.connect`
returns.  Only methods that a gateway declares can be called from outside.

A method is an *ask* by default: awaiting it gives the handler's result.  A method marked
:func:`oneway` is a *tell*: awaiting it returns when the message is on its way, and nothing is known
of how it was handled.
"""

from __future__ import annotations

import inspect
from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from flinkray.core.ids import FencingToken

F = TypeVar("F", bound=Callable[..., Any])

_ONEWAY = "__flinkray_oneway__"
_TIMEOUT = "__flinkray_timeout__"


class RpcGateway(ABC):  # noqa: B024 - a gateway's methods are its subclass's
    """Base of all gateways."""

    @property
    def address(self) -> str:
        """The endpoint's address, ``<process>/<endpoint>``."""
        raise NotImplementedError  # proxies and endpoints override it


class FencedRpcGateway(RpcGateway):
    """Base of the gateways of leader-scoped endpoints; each call carries a fencing token."""

    @property
    def fencing_token(self) -> FencingToken | None:
        """A proxy's: the token it was connected with.  An endpoint's: its own."""
        raise NotImplementedError  # proxies and endpoints override it


def oneway(method: F) -> F:
    """Mark a gateway method as a tell.  It must return None."""
    setattr(method, _ONEWAY, True)
    return method


def ask_timeout(seconds: float | None) -> Callable[[F], F]:
    """Give a gateway method an ask timeout of its own (None: as long as the endpoint lives)."""

    def mark(method: F) -> F:
        setattr(method, _TIMEOUT, (seconds,))
        return method

    return mark


@dataclass(frozen=True, slots=True)
class GatewayMethod:
    """One method of a gateway, as the wire needs it."""

    gateway: type[RpcGateway]
    name: str
    signature: inspect.Signature
    is_oneway: bool
    timeout: tuple[float | None] | None
    """One-element tuple where the method has a timeout of its own."""

    @property
    def full_name(self) -> str:
        """As in error messages: ``ResourceManagerGateway.register_task_executor``."""
        return f"{self.gateway.__name__}.{self.name}"


def gateway_methods(gateway: type[RpcGateway]) -> dict[str, GatewayMethod]:
    """The callable methods of a gateway class, its bases' included.

    Raises:
        TypeError: a public method is not ``async def``, or a one-way method returns something.
    """
    methods: dict[str, GatewayMethod] = {}
    for base in reversed(gateway.__mro__):
        if not (isinstance(base, type) and issubclass(base, RpcGateway)):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or not inspect.isfunction(member):
                continue
            if not inspect.iscoroutinefunction(member):
                raise TypeError(f"{base.__name__}.{name} is not declared with async def")
            signature = inspect.signature(member)
            is_oneway = bool(getattr(member, _ONEWAY, False))
            if is_oneway and signature.return_annotation not in (None, "None"):
                raise TypeError(f"{base.__name__}.{name} is one-way and cannot return a value")
            methods[name] = GatewayMethod(
                base, name, signature, is_oneway, getattr(member, _TIMEOUT, None)
            )
    return methods
