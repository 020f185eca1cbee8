"""The TaskExecutors and JobMasters that are registered at a ResourceManager, and the connections to
processes that register."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar

from flinkray.actors.gateways import JobMasterGateway, TaskExecutorGateway
from flinkray.actors.gateways.messages import TaskExecutorRegistration
from flinkray.actors.shared.job_master_watch import has_name_of_leader
from flinkray.core.errors import RpcError
from flinkray.core.ids import InstanceID, JobID, JobMasterId, ResourceID
from flinkray.rpc import RegistrationFailure, RegistrationRejection, RpcEndpoint, TerminationWatch
from flinkray.scheduler.shared.slots import WorkerLocation


@dataclass(slots=True)
class RegisteredTaskExecutor:
    """The present registration of a TaskExecutor. If its process registers again, it gets a new
    instance id (RM-01)."""

    registration: TaskExecutorRegistration
    instance_id: InstanceID
    gateway: TaskExecutorGateway
    watch: TerminationWatch
    has_reported: bool = False
    """Whether the TaskExecutor's first slot report has arrived.
    Until then it has no slots (RM-12).
    """

    @property
    def location(self) -> WorkerLocation:
        return self.registration.location


@dataclass(slots=True)
class RegisteredJobMaster:
    """The JobMaster that is registered for a job, with its gateway."""

    job_id: JobID
    job_master_id: JobMasterId
    resource_id: ResourceID
    gateway: JobMasterGateway
    watch: TerminationWatch


class Members:
    """All TaskExecutors and JobMasters that are registered now."""

    def __init__(self) -> None:
        self.task_executors: dict[ResourceID, RegisteredTaskExecutor] = {}
        self.job_masters: dict[JobID, RegisteredJobMaster] = {}


T = TypeVar("T")


class RegistrantConnections:
    """Connects to processes that register.
    If the same address registers again before the connection is ready, the earlier registration is
    refused (RM-02).
    """

    def __init__(self, endpoint: RpcEndpoint) -> None:
        self._endpoint = endpoint
        self._registrations: dict[str, object] = {}
        """Address -> the latest registration from there that waits for its connection."""

    async def to_task_executor(self, address: str) -> TaskExecutorGateway | RegistrationFailure:
        """Return the gateway of the registering TaskExecutor. If it cannot be reached, or has
        registered again meanwhile, return the failure to answer it with."""
        connecting = self._endpoint.connect(address, TaskExecutorGateway)
        return await self._unless_overtaken(address, connecting)

    async def to_job_master(
        self, address: str, job_master_id: JobMasterId, job_id: JobID, *, is_another: bool
    ) -> JobMasterGateway | RegistrationFailure | RegistrationRejection:
        """Return the gateway of the registering JobMaster, or the refusal to answer it with.

        *is_another*: the job has, or had, a JobMaster with another id. The registering JobMaster
        may then be a predecessor that wakes up from a pause, and is refused if its process name now
        belongs to its successor.
        """
        connecting = self._connect_to_job_master(address, job_master_id, job_id, is_another)
        return await self._unless_overtaken(address, connecting)

    async def _connect_to_job_master(
        self, address: str, job_master_id: JobMasterId, job_id: JobID, is_another: bool
    ) -> JobMasterGateway | RegistrationRejection:
        job_master = await self._endpoint.connect(address, JobMasterGateway, job_master_id)
        # fails if the address belongs to a successor by now
        await job_master.request_job_status()
        service = self._endpoint.rpc_service
        if is_another and not await has_name_of_leader(service, job_master, job_id):
            identity = service.identity_of(job_master)
            return RegistrationRejection(f"job {job_id} is not led by {identity} (any more)")
        return job_master

    async def _unless_overtaken(
        self, address: str, connecting: Awaitable[T]
    ) -> T | RegistrationFailure:
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
