"""The SlotPool of a job: holds its slots, declares what it wants at the ResourceManager.

It works for one JobMaster attempt: its token is that attempt's JobMasterId, and it ends itself,
with all its slots given back, when that JobMaster is gone.
"""

from __future__ import annotations

import asyncio
import logging

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
    TaskExecutorGateway,
)
from flinkray.actors.messages import SlotPoolArguments
from flinkray.actors.settings import apply_rpc_settings
from flinkray.core.config import Configuration
from flinkray.core.errors import FlinkRayError, RecipientUnreachableError, RpcError
from flinkray.core.ids import AllocationID, JobMasterId, ResourceID, ResourceManagerId
from flinkray.core.options import SLOT_IDLE_TIMEOUT
from flinkray.rpc import FencedRpcEndpoint, RpcService
from flinkray.rpc.mailbox import TimerHandle
from flinkray.scheduler.slot_pool import (
    DeclarativeSlotPool,
    DeclareRequirements,
    FreeSlot,
    SlotPoolAction,
    SlotsChanged,
)
from flinkray.scheduler.slots import (
    ResourceRequirements,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)

log = logging.getLogger(__name__)

_DECLARATION_RETRY_DELAY = 0.2
"""Seconds until a declaration that failed is sent again (SP-27)."""


async def create_slot_pool(rpc_service: RpcService, arguments: SlotPoolArguments) -> SlotPool:
    """Factory of the SlotPool's process."""
    apply_rpc_settings(rpc_service, Configuration(arguments.cluster.configuration))
    job_master = await rpc_service.connect(
        arguments.job_master_address, JobMasterGateway, arguments.job_master_id
    )
    return SlotPool(rpc_service, arguments, job_master)


class SlotPool(FencedRpcEndpoint[JobMasterId], SlotPoolGateway):
    """See the module's docstring; the decisions are DeclarativeSlotPool's."""

    def __init__(
        self, rpc_service: RpcService, arguments: SlotPoolArguments, job_master: JobMasterGateway
    ) -> None:
        super().__init__(rpc_service, "slotpool", arguments.job_master_id)
        configuration = Configuration(arguments.cluster.configuration)
        self._job_id = arguments.job_id
        self._job_master = job_master
        self._pool = DeclarativeSlotPool(
            arguments.job_id, idle_timeout=configuration.get(SLOT_IDLE_TIMEOUT)
        )
        self._resource_manager: tuple[str, ResourceManagerId] | None = None
        self._declaration: asyncio.Task[None] | None = None
        self._idle_check: TimerHandle | None = None

    async def on_start(self) -> None:
        self.watch(self._job_master, self._job_master_terminated)

    async def on_stop(self) -> None:
        self._stop_declaring()
        await self._free_all("the SlotPool stops")

    def _job_master_terminated(self, reason: str) -> None:
        log.warning(
            "job %s: its JobMaster is gone (%s); giving back all slots", self._job_id, reason
        )
        self.close()

    # --- requirements -----------------------------------------------------------------------------

    async def connect_to_resource_manager(
        self, address: str, resource_manager_id: ResourceManagerId
    ) -> None:
        self._resource_manager = (address, resource_manager_id)
        self._declare()

    async def disconnect_resource_manager(self) -> None:
        self._resource_manager = None
        self._stop_declaring()

    async def set_resource_requirements(self, requirements: ResourceRequirements) -> None:
        await self._carry_out(self._pool.set_requirements(requirements, self.clock.monotonic()))

    def _declare(self) -> None:
        """Send the requirements until they arrive, or newer ones or another ResourceManager take
        their place."""
        self._stop_declaring()
        requirements = self._pool.requirements
        if self._resource_manager is not None and requirements is not None:
            address, token = self._resource_manager
            self._declaration = self.create_task(
                self._keep_declaring(address, token, requirements), name="declare requirements"
            )

    def _stop_declaring(self) -> None:
        if self._declaration is not None:
            self._declaration.cancel()
            self._declaration = None

    async def _keep_declaring(
        self, address: str, token: ResourceManagerId, requirements: ResourceRequirements
    ) -> None:
        while True:
            try:
                manager = await self.connect(address, ResourceManagerGateway, token)
                await manager.declare_required_resources(self.fencing_token, requirements)
                return
            except FlinkRayError as error:
                log.info("job %s: declaring requirements failed: %s", self._job_id, error)
            await asyncio.sleep(_DECLARATION_RETRY_DELAY)

    # --- slots ------------------------------------------------------------------------------------

    async def register_task_executor(self, location: WorkerLocation) -> None:
        await self._carry_out(self._pool.register_task_executor(location, self.clock.monotonic()))

    async def release_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        now = self.clock.monotonic()
        await self._carry_out(self._pool.release_task_executor(resource_id, reason, now))

    async def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        answer, actions = self._pool.offer_slots(resource_id, offers, self.clock.monotonic())
        await self._carry_out(actions)
        return answer

    async def fail_allocation(self, allocation_id: AllocationID, reason: str) -> None:
        now = self.clock.monotonic()
        await self._carry_out(self._pool.fail_allocation(allocation_id, reason, now))

    async def release_slots(self, allocations: tuple[AllocationID, ...], reason: str) -> None:
        now = self.clock.monotonic()
        await self._carry_out(self._pool.release_slots(allocations, reason, now))

    async def close_pool(self, reason: str) -> None:
        self._stop_declaring()
        await self._free_all(reason)
        self.close()

    async def _free_all(self, reason: str) -> None:
        frees = [a for a in self._pool.close(reason) if isinstance(a, FreeSlot)]
        await asyncio.gather(*map(self._free, frees))

    async def _carry_out(self, actions: list[SlotPoolAction]) -> None:
        for action in actions:
            match action:
                case DeclareRequirements():
                    self._declare()
                case FreeSlot():
                    self.create_task(self._free(action), name=f"free {action.allocation_id}")
                case SlotsChanged():
                    await self._report_slots()
        self._schedule_idle_check()

    async def _report_slots(self) -> None:
        """The present slots, not those of the action: reports that overtake must not be stale."""
        try:
            await self._job_master.slots_changed(self._pool.slots)
        except RecipientUnreachableError as error:
            log.info("job %s: its JobMaster cannot be told of slots: %s", self._job_id, error)

    async def _free(self, action: FreeSlot) -> None:
        try:
            executor = await self.connect(action.location.address, TaskExecutorGateway)
            await executor.free_slot(action.allocation_id, action.reason)
        except RpcError as error:  # the slot is forgotten all the same (SP-08)
            log.info("slot %s could not be freed: %s", action.allocation_id, error)

    def _schedule_idle_check(self) -> None:
        if self._idle_check is not None:
            self._idle_check.cancel()
            self._idle_check = None
        deadline = self._pool.next_deadline()
        if deadline is not None:
            delay = max(0.0, deadline - self.clock.monotonic())
            self._idle_check = self.schedule_run_async(delay, self._release_idle_slots)

    async def _release_idle_slots(self) -> None:
        await self._carry_out(self._pool.release_idle_slots(self.clock.monotonic()))
