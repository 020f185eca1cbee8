"""The gateways and methods that an endpoint class offers to callers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from flinkray.core.message import type_name
from flinkray.rpc.endpoint import RpcEndpoint
from flinkray.rpc.gateway import GatewayMethod, RpcGateway, gateway_methods


@dataclass(frozen=True, slots=True)
class ImplementedGateways:
    """The gateways of an endpoint class and their methods."""

    gateways: frozenset[str]
    """The type names of the gateways."""
    methods: dict[str, GatewayMethod]
    """The methods by name."""


@cache
def implemented_gateways(endpoint_class: type) -> ImplementedGateways:
    """Return the gateways that the class implements and their methods.

    Raises:
        TypeError: a gateway is not valid; see :func:`gateway_methods`.
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
