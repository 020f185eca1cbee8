"""Connections of a ResourceManager to those who register."""

from __future__ import annotations

from typing import TypeVar

from flinkray.actors.gateways import JobMasterGateway
from flinkray.core.errors import RpcError
from flinkray.core.ids import FencingToken
from flinkray.rpc import RegistrationFailure, RpcEndpoint, RpcGateway

G = TypeVar("G", bound=RpcGateway)


class RegistrantConnections:
    """A registration that was overtaken by a later one from the same address is refused, however
    long its connection took (RM-02)."""

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self._endpoint = endpoint
        self._registrations: dict[str, object] = {}
        """Address -> the latest registration from there that waits for its connection."""

    async def connect(
        self, address: str, gateway: type[G], token: FencingToken | None
    ) -> G | RegistrationFailure:
        """The one who registers, or why he cannot."""
        registration = self._registrations[address] = object()
        try:
            connected = await self._endpoint.connect(address, gateway, token)
            if isinstance(connected, JobMasterGateway):
                # refused by a successor, which may be at that address by now
                await connected.request_job_status()
            if self._registrations.get(address) is registration:
                return connected
            return RegistrationFailure(f"{address} has registered again meanwhile")
        except RpcError as error:
            return RegistrationFailure(f"cannot connect to {address}: {error}")
        finally:
            if self._registrations.get(address) is registration:
                del self._registrations[address]
