"""Connections of a ResourceManager to those who register."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.core.errors import RpcError
from flinkray.core.ids import JobMasterId
from flinkray.rpc import RegistrationFailure, RpcEndpoint, RpcGateway

G = TypeVar("G", bound=RpcGateway)


class RegistrantConnections:
    """A registration that was overtaken by a later one from the same address is refused, however
    long its connection took (RM-02)."""

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self._endpoint = endpoint
        self._registrations: dict[str, object] = {}
        """Address -> the latest registration from there that waits for its connection."""

    async def to_task_executor(self, address: str) -> TaskExecutorGateway | RegistrationFailure:
        """The one who registers, or why he cannot."""
        connecting = self._endpoint.connect(address, TaskExecutorGateway)
        return await self._unless_overtaken(address, connecting)

    async def to_job_master(
        self, address: str, job_master_id: JobMasterId
    ) -> JobMasterGateway | RegistrationFailure:
        """The one who registers, or why he cannot."""
        connecting = self._connect_to_job_master(address, job_master_id)
        return await self._unless_overtaken(address, connecting)

    async def _connect_to_job_master(
        self, address: str, job_master_id: JobMasterId
    ) -> JobMasterGateway:
        job_master = await self._endpoint.connect(address, JobMasterGateway, job_master_id)
        # refused by a successor, which may be at that address by now
        await job_master.request_job_status()
        return job_master

    async def _unless_overtaken(
        self, address: str, connecting: Awaitable[G]
    ) -> G | RegistrationFailure:
        registration = self._registrations[address] = object()
        try:
            connected = await connecting
            if self._registrations.get(address) is registration:
                return connected
            return RegistrationFailure(f"{address} has registered again meanwhile")
        except RpcError as error:
            return RegistrationFailure(f"cannot connect to {address}: {error}")
        finally:
            if self._registrations.get(address) is registration:
                del self._registrations[address]
