"""What an endpoint class shows to the outside."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flinkray.core.message import type_name
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.gateway import GatewayMethod, RpcGateway, gateway_methods


@dataclass(frozen=True, slots=True)
class ImplementedGateways:
    """Gateways and their methods."""

    gateways: frozenset[str]
    """Type names."""
    methods: dict[str, GatewayMethod]
    """By name."""


@cache
def implemented_gateways(endpoint_class: type) -> ImplementedGateways:
    """The gateways that the class implements and their methods.

    Raises:
        TypeError: see :func:`gateway_methods`.
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
