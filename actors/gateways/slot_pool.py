"""What a SlotPool answers: to its JobMaster, and to the job's next one."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.stream_coordinator import KeptPart
from flinkray.core.ids import (
    AllocationID,
    JobMasterId,
    ResourceID,
    ResourceManagerId,
)
from flinkray.core.message import message
from flinkray.rpc.gateway import (
    FencedRpcGateway,
    ask_timeout,
    runs_to_completion,
)
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    ResourceShortage,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.shared.taking_over import FinishedTask, JobNotes
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    RestoredSlot,
    ReturnSlots,
    SlotRequests,
)


@message
class HandedOver:
    """What the pool of a lost JobMaster knows."""

    allocations: tuple[AllocationID, ...]
    """All that it has, or expects."""
    task_executors: tuple[WorkerLocation, ...]
    """On which they are, as far as they have been offered."""
    notes: JobNotes | None = None
    finished: int = 0
    """How many finished tasks belong to the notes."""
    parts: int = 0
    """How many it keeps of what the coordinator of the job's sources knows."""


class SlotPoolGateway(FencedRpcGateway):
    """Holds the slots of one job; fenced by the JobMasterId of its JobMaster."""

    @abstractmethod
    async def request_heartbeat(self) -> int:
        """How many news the JobMaster has been sent."""

    @abstractmethod
    async def connect_to_resource_manager(
        self, address: str, resource_manager_id: ResourceManagerId
    ) -> None:
        """Declare requirements there from now on, beginning with the present ones."""

    @abstractmethod
    async def disconnect_resource_manager(self) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def set_resource_requirements(self, requirements: ResourceRequirements) -> None:
        """What the job wants from now on (a total)."""

    @abstractmethod
    @runs_to_completion
    async def restore_slots(self, slots: tuple[RestoredSlot, ...]) -> None:
        """What the job's last pool held, which has died."""

    @abstractmethod
    @runs_to_completion
    async def request_slots(self, wanted: SlotRequests) -> None:
        """Ask for many slots by one message; each request is answered by ``slots_changed``."""

    @abstractmethod
    @runs_to_completion
    async def cancel_slot_requests(self, cancelled: CancelSlotRequests) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def return_slots(self, returned: ReturnSlots) -> None:
        """The job does not use these slots any more; the pool may give them to other requests."""

    @abstractmethod
    @runs_to_completion
    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """What the ResourceManager has told the JobMaster; fails the requests that it concerns."""

    @abstractmethod
    @runs_to_completion
    async def set_job_restarting(
        self, restarting: bool, worker_groups: tuple[ResourceRequirement, ...]
    ) -> None:
        """While the job restarts every offered slot is kept, required or not, and these worker
        groups, which were required when that began, stay so."""

    @abstractmethod
    @runs_to_completion
    async def release_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        """A TaskExecutor is gone, its slots with it."""

    @abstractmethod
    @runs_to_completion
    async def offer_slots(
        self, location: WorkerLocation, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        """Slots of the TaskExecutor that is there; another process takes the place of one with the
        same name, whose slots are gone."""

    @abstractmethod
    @runs_to_completion
    async def fail_allocation(self, allocation_id: AllocationID, reason: str) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def expect_slots(self, allocations: tuple[AllocationID, ...]) -> None:
        """What the pools of past JobMasters have handed over: it is taken when it is offered."""

    @abstractmethod
    @runs_to_completion
    async def note(self, notes: JobNotes) -> None:
        """Keep this for the job's next JobMaster; it replaces earlier notes."""

    @abstractmethod
    @runs_to_completion
    async def note_finished(self, finished: tuple[FinishedTask, ...]) -> None:
        """Keep these, too, as long as the notes are of the same execution graph."""

    @abstractmethod
    @runs_to_completion
    async def keep_part(self, part: KeptPart) -> None:
        """Keep what the coordinator of the job's sources knows, for the job's next JobMaster; it
        replaces an earlier one of the same source."""

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over(self, successor: JobMasterId) -> HandedOver:
        """From the job's next JobMaster: what its own pool is to expect, and what the last one has
        noted.  Again: the same answer.

        Raises:
            SlotAllocationError: this one's JobMaster lives.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over_finished(
        self, successor: JobMasterId, first: int
    ) -> tuple[FinishedTask, ...]:
        """Those from that one on, as many as fit into a message.

        Raises:
            SlotAllocationError: this one's JobMaster lives.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over_part(self, successor: JobMasterId, number: int) -> KeptPart:
        """One of those that it keeps, which are numbered from 0 on.

        Raises:
            SlotAllocationError: this one's JobMaster lives.
        """

    @abstractmethod
    @ask_timeout(30.0)
    @runs_to_completion
    async def close_pool(self, reason: str) -> None:
        """Free every slot at its TaskExecutor, declare empty requirements, and stop."""
