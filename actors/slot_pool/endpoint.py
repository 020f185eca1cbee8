"""The SlotPool of a job: has the job's slots, and declares its requirements.

The pool works for one JobMaster, whose JobMasterId is its fencing token. When that JobMaster is
gone, the pool is an *orphan*: it only remembers the slots, which stay allocated at their
TaskExecutors, until the next JobMaster has asked for them, or until a timeout.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from flinkray.actors.gateways import (
    JobMasterGateway,
    ResourceManagerGateway,
    SlotPoolGateway,
    TaskExecutorGateway,
)
from flinkray.actors.gateways.messages import SlotPoolArguments
from flinkray.actors.gateways.slot_pool import HandedOver
from flinkray.actors.gateways.stream_coordinator import KeptPiece
from flinkray.actors.shared.job_master_watch import JobMasterWatch
from flinkray.actors.shared.kept_notes import KeptNotes
from flinkray.actors.shared.settings import apply_rpc_settings
from flinkray.core.config import ReadableConfig
from flinkray.core.errors import (
    FlinkRayError,
    RecipientUnreachableError,
    RpcError,
    SlotAllocationError,
    UnknownTaskExecutorError,
)
from flinkray.core.ids import AllocationID, JobMasterId, ResourceID, ResourceManagerId
from flinkray.core.options import (
    JOB_MASTER_TAKEOVER_TIMEOUT,
    LOAD_BALANCE_MODE,
    SLOT_IDLE_TIMEOUT,
    SLOT_REQUEST_TIMEOUT,
)
from flinkray.rpc import FencedRpcEndpoint, RpcService
from flinkray.rpc.mailbox import TimerHandle
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    ResourceShortage,
    SameWorkerGroup,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.slots.slot_pool import (
    DeclarativeSlotPool,
    DeclareRequirements,
    FreeSlot,
    SlotPoolAction,
    SlotsChanged,
)
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotEvent,
    SlotRequests,
)

log = logging.getLogger(__name__)

_DECLARATION_RETRY_DELAY = 0.2
"""Seconds until a declaration that failed is sent again (SP-27)."""
_NEWS_PER_MESSAGE = 2000
"""Number of slots and events in one message to the JobMaster: well below the frame size."""


async def create_slot_pool(rpc_service: RpcService, arguments: SlotPoolArguments) -> SlotPool:
    """Create the endpoint of the SlotPool's process, connected to its JobMaster."""
    apply_rpc_settings(rpc_service, ReadableConfig(arguments.cluster.configuration))
    job_master = await rpc_service.connect(
        arguments.job_master_address, JobMasterGateway, arguments.job_master_id
    )
    return SlotPool(rpc_service, arguments, job_master)


@dataclass(slots=True)
class _News:
    """Slots and events that one ``slots_changed`` message reports to the JobMaster."""

    gained: list[HeldSlot] = field(default_factory=list)
    lost: list[AllocationID] = field(default_factory=list)
    events: list[SlotEvent] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.gained) + len(self.lost) + len(self.events)


class SlotPool(FencedRpcEndpoint[JobMasterId], SlotPoolGateway):
    """Endpoint of the SlotPool. Carries out the decisions of DeclarativeSlotPool."""

    def __init__(
        self, rpc_service: RpcService, arguments: SlotPoolArguments, job_master: JobMasterGateway
    ) -> None:
        super().__init__(rpc_service, "slotpool", arguments.job_master_id)
        configuration = ReadableConfig(arguments.cluster.configuration)
        self._job_id = arguments.job_id
        self._job_master = job_master
        self._number = arguments.number
        self._news_sent = 0
        self._pool = DeclarativeSlotPool(
            arguments.job_id,
            arguments.job_master_address,
            idle_timeout=configuration.get(SLOT_IDLE_TIMEOUT),
            request_timeout=configuration.get(SLOT_REQUEST_TIMEOUT),
            takeover_timeout=configuration.get(JOB_MASTER_TAKEOVER_TIMEOUT),
            spread_out=configuration.get(LOAD_BALANCE_MODE) == "slots",
        )
        self._resource_manager: tuple[str, ResourceManagerId] | None = None
        self._declaration: asyncio.Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._takeover_timeout = configuration.get(JOB_MASTER_TAKEOVER_TIMEOUT)
        self._notes = KeptNotes()
        self._left: HandedOver | None = None
        """What an orphan hands over to the next JobMaster.
        None while the pool's JobMaster lives.
        """
        self._telling = asyncio.Lock()
        """Held while messages to the JobMaster are sent, so that they stay in order."""

    async def on_start(self) -> None:
        self._watch = JobMasterWatch(self, self._job_master, self._job_master_terminated)

    async def close_pool(self, reason: str) -> None:
        self._stop_declaring()
        if self._left is None:
            await self._free_all(reason)
        self.close()

    async def _free_all(self, reason: str) -> None:
        frees = []
        for action in self._pool.close(reason):
            match action:
                case FreeSlot():
                    frees.append(self._free(action))
        await asyncio.gather(*frees)

    # --- without its JobMaster --------------------------------------------------------------------

    async def keep(self, piece: KeptPiece) -> None:
        self._refuse_as_orphan()
        self._notes.add(piece)

    async def hand_over(self, successor: JobMasterId) -> HandedOver:
        left = await self._left_to(successor)
        log.info("job %s: JobMaster %s takes over", self._job_id, successor)
        return left

    async def hand_over_piece(self, successor: JobMasterId, number: int) -> KeptPiece | None:
        await self._left_to(successor)
        return self._notes.piece(number)

    async def _left_to(self, successor: JobMasterId) -> HandedOver:
        await self._watch.look()
        if self._left is None:
            job_master_id = self.fencing_token
            raise SlotAllocationError(
                f"JobMaster {successor} gets no slots of job {self._job_id}: {job_master_id} lives"
            )
        return self._left

    def _job_master_terminated(self, reason: str) -> None:
        left = self._left = HandedOver(
            self._pool.handed_over(self.counted_time()),
            tuple(dict.fromkeys(slot.location for slot in self._pool.slots)),
            self._notes.notes,
        )
        log.warning(
            "job %s: its JobMaster is gone (%s); %d slots are left to the next one",
            self._job_id,
            reason,
            len(left.allocations),
        )
        self._stop_declaring()
        self._schedule_timer()
        is_needed = left.allocations or left.notes is not None
        self.schedule_deadline(self._takeover_timeout if is_needed else 0.0, self._end)

    def _end(self) -> None:
        """Begin to close the endpoint, without waiting.

        A task of the endpoint must not wait for the end, because the end cancels this task.
        """
        self.close()

    def _refuse_as_orphan(self) -> None:
        """Refuse a call because this pool is an orphan: its JobMaster is gone. Return if it is not.
        If the JobMaster lives after all, the error makes it start another pool.

        Raises:
            RecipientUnreachableError: the pool is an orphan.
        """
        if self._left is not None:
            raise RecipientUnreachableError(
                f"the SlotPool of job {self._job_id} was left by JobMaster {self.fencing_token}"
            )

    # --- requirements -----------------------------------------------------------------------------

    async def connect_to_resource_manager(
        self, address: str, resource_manager_id: ResourceManagerId
    ) -> None:
        self._refuse_as_orphan()
        self._resource_manager = (address, resource_manager_id)
        self._declare()
        await self._carry_out(self._pool.resource_manager_changed(self.counted_time()))

    async def disconnect_resource_manager(self) -> None:
        self._resource_manager = None
        self._stop_declaring()
        await self._carry_out(self._pool.resource_manager_changed(self.counted_time()))

    async def set_resource_requirements(self, requirements: ResourceRequirements) -> None:
        await self._carry_out(self._pool.set_requirements(requirements, self.counted_time()))

    async def restore_slots(self, slots: tuple[HeldSlot, ...]) -> None:
        await self._carry_out(self._pool.restore(slots, self.counted_time()))

    async def request_slots(self, wanted: SlotRequests) -> None:
        await self._carry_out(self._pool.request_slots(wanted, self.counted_time()))

    async def cancel_slot_requests(self, cancelled: CancelSlotRequests) -> None:
        await self._carry_out(self._pool.cancel_requests(cancelled, self.counted_time()))

    async def return_slots(self, returned: ReturnSlots) -> None:
        await self._carry_out(self._pool.return_slots(returned, self.counted_time()))

    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        await self._carry_out(self._pool.not_enough_resources(shortages, self.counted_time()))

    async def set_job_restarting(
        self, restarting: bool, worker_groups: tuple[ResourceRequirement, ...]
    ) -> None:
        now = self.counted_time()
        await self._carry_out(self._pool.set_job_restarting(restarting, worker_groups, now))

    def _declare(self) -> None:
        """Send the job's requirements to the ResourceManager, repeatedly until they arrive.
        A newer call, for newer requirements or another ResourceManager, takes the place of this
        one.
        """
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
            await self.rpc_service.pause(_DECLARATION_RETRY_DELAY)

    # --- slots ------------------------------------------------------------------------------------

    async def register_task_executors(self, locations: tuple[WorkerLocation, ...]) -> None:
        now = self.counted_time()
        actions = [self._pool.register_task_executor(location, now) for location in locations]
        await self._carry_out([action for some in actions for action in some])

    async def let_go(self, resource_id: ResourceID) -> bool:
        self._refuse_as_orphan()
        return self._pool.let_go(resource_id)

    async def release_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        now = self.counted_time()
        await self._carry_out(self._pool.release_task_executor(resource_id, reason, now))

    async def offer_slots(
        self, location: WorkerLocation, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        self._refuse_as_orphan()
        if not self._pool.is_registered(location):
            raise UnknownTaskExecutorError(f"{location.resource_id} is not registered here")
        now = self.counted_time()
        answer, actions = self._pool.offer_slots(location.resource_id, offers, now)
        constraints = {offer.allocation_id: offer.constraint for offer in offers}
        await self._carry_out(actions, constraints)
        return answer

    async def fail_allocation(self, allocation_id: AllocationID, reason: str) -> None:
        now = self.counted_time()
        await self._carry_out(self._pool.fail_allocation(allocation_id, reason, now))

    async def expect_slots(self, allocations: tuple[AllocationID, ...]) -> None:
        self._refuse_as_orphan()
        self._pool.expect_slots(allocations, self.counted_time())

    async def _carry_out(
        self,
        actions: list[SlotPoolAction],
        constraints: Mapping[AllocationID, SameWorkerGroup | None] = MappingProxyType({}),
    ) -> None:
        """Carry out the actions in order. Returns when the JobMaster has been sent the changes of
        slots. *constraints*: the placement constraint of each offered slot, which the JobMaster
        stores.
        """
        self._refuse_as_orphan()
        messages = [_News()]
        for action in actions:
            match action:
                case DeclareRequirements():
                    self._declare()
                case FreeSlot():
                    self.create_task(self._free(action), name=f"free {action.allocation_id}")
                case SlotsChanged():
                    messages[-1].gained += (
                        HeldSlot(slot, constraints.get(slot.allocation_id))
                        for slot in action.gained
                    )
                    messages[-1].lost += action.lost
                case _:
                    messages[-1].events.append(action)
            if messages[-1].size >= _NEWS_PER_MESSAGE:
                messages.append(_News())
        self._schedule_timer()
        async with self._telling:
            for message in messages:
                if message.size:
                    await self._tell_job_master(message)

    async def request_heartbeat(self) -> int:
        self._refuse_as_orphan()
        return self._news_sent

    async def _tell_job_master(self, news: _News) -> None:
        """Send the JobMaster one ``slots_changed`` message.
        If the message is lost, the JobMaster notices a gap at the next message or heartbeat.
        """
        self._news_sent += 1
        try:
            await self._job_master.slots_changed(
                self._number,
                self._news_sent,
                tuple(news.gained),
                tuple(news.lost),
                tuple(news.events),
            )
        except RecipientUnreachableError as error:
            log.info(
                "job %s: changes of slots cannot be reported to its JobMaster: %s",
                self._job_id,
                error,
            )

    async def _free(self, action: FreeSlot) -> None:
        try:
            executor = await self.connect(action.location.address, TaskExecutorGateway)
            await executor.free_slot(action.allocation_id, self.fencing_token, action.reason)
        except RpcError as error:  # the pool forgets the slot all the same (SP-08)
            executor_name, allocation = action.location.resource_id, action.allocation_id
            log.info("slot of %s (%s) could not be freed: %s", executor_name, allocation, error)

    def _schedule_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._pool.next_deadline()
        if deadline is not None and self._left is None:
            delay = max(0.0, deadline - self.counted_time())
            self._timer = self.schedule_deadline(delay, self._time_passed)

    async def _time_passed(self) -> None:
        await self._carry_out(self._pool.time_passed(self.counted_time()))
