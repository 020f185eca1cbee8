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
_RUNS_TO_COMPLETION = "__flinkray_runs_to_completion__"


class RpcGateway(ABC):  # noqa: B024 - a gateway's methods are its subclass's
    """Base of all gateways: the interface by which endpoints are called."""

    @property
    def address(self) -> str:
        """The endpoint's address, ``<process>/<endpoint>``."""
        raise NotImplementedError  # proxies and endpoints override it


class FencedRpcGateway(RpcGateway):
    """Base of the gateways of endpoints with a leader; each call carries a fencing token."""

    @property
    def fencing_token(self) -> FencingToken | None:
        """The token that calls carry.
        For a proxy: the token it was connected with. For an endpoint: its own token.
        """
        raise NotImplementedError  # proxies and endpoints override it


def oneway(method: F) -> F:
    """Mark a gateway method as a tell.  It must return None."""
    setattr(method, _ONEWAY, True)
    return method


def ask_timeout(seconds: float | None) -> Callable[[F], F]:
    """Set the ask timeout of a gateway method, in seconds (None: as long as the endpoint lives)."""

    def mark(method: F) -> F:
        setattr(method, _TIMEOUT, (seconds,))
        return method

    return mark


def runs_to_completion(method: F) -> F:
    """Mark a gateway method whose handler may not be stopped midway.

    Any other handler is cancelled when the ask times out; it is not cancelled if the caller stops
    waiting, or dies, before the timeout. A cancelled handler that changes state before and after an
    ``await`` would be left half done: mark its method, and the handler, with its own asks, runs to
    its end also after the timeout. Tells need no mark, as they have no timeout.
    """
    setattr(method, _RUNS_TO_COMPLETION, True)
    return method


@dataclass(frozen=True, slots=True, eq=False)
class GatewayMethod:
    """One method of a gateway, with the facts that the wire protocol needs."""

    gateway: type[RpcGateway]
    name: str
    signature: inspect.Signature
    is_oneway: bool
    timeout: tuple[float | None] | None
    """The method's own ask timeout in seconds, in a tuple of one element; None: it has none."""
    runs_to_completion: bool
    full_name: str
    """The name in error messages: ``ResourceManagerGateway.register_task_executor``."""
    parameters: tuple[str, ...]
    """Parameter names, without ``self``; arguments travel on the wire in this order."""
    keywords: tuple[str, ...]
    """The keyword-only parameters, which are the last of :attr:`parameters`."""


def gateway_methods(gateway: type[RpcGateway]) -> dict[str, GatewayMethod]:
    """Return the callable methods of a gateway class, with the methods of its base classes.

    Raises:
        TypeError: a public method is not ``async def``, takes ``*`` or ``**`` arguments, or is
            one-way and returns something.
    """
    methods: dict[str, GatewayMethod] = {}
    for base in reversed(gateway.__mro__):
        if not issubclass(base, RpcGateway):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or not inspect.isfunction(member):
                continue
            if not inspect.iscoroutinefunction(member):
                raise TypeError(f"{base.__name__}.{name} is not declared with async def")
            signature = inspect.signature(member)
            if any(
                parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
                for parameter in signature.parameters.values()
            ):
                raise TypeError(
                    f"{base.__name__}.{name}: gateway methods take no * or ** arguments"
                )
            is_oneway = bool(getattr(member, _ONEWAY, False))
            if is_oneway and signature.return_annotation not in (None, "None"):
                raise TypeError(f"{base.__name__}.{name} is one-way and cannot return a value")
            methods[name] = GatewayMethod(
                gateway=base,
                name=name,
                signature=signature,
                is_oneway=is_oneway,
                timeout=getattr(member, _TIMEOUT, None),
                runs_to_completion=getattr(member, _RUNS_TO_COMPLETION, False),
                full_name=f"{base.__name__}.{name}",
                parameters=tuple(signature.parameters)[1:],
                keywords=tuple(
                    parameter.name
                    for parameter in signature.parameters.values()
                    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
                ),
            )
    return methods
