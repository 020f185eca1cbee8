"""The gateway of the SlotPool, which its JobMaster and the job's next JobMaster call."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.actors.gateways.stream_coordinator import KeptPiece
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
from flinkray.scheduler.shared.taking_over import JobNotes
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotRequests,
)


@message
class HandedOver:
    """Slots and notes that the SlotPool of a lost JobMaster hands over to the next JobMaster."""

    allocations: tuple[AllocationID, ...]
    """All slots that the pool has or expects."""
    task_executors: tuple[WorkerLocation, ...]
    """TaskExecutors that have offered slots to the pool."""
    notes: JobNotes | None = None


class SlotPoolGateway(FencedRpcGateway):
    """Holds the slots of one job. Fenced by the JobMasterId of its JobMaster."""

    @abstractmethod
    async def request_heartbeat(self) -> int:
        """Answer at once.
        Returns how many ``slots_changed`` messages were sent to the JobMaster.
        """

    @abstractmethod
    async def connect_to_resource_manager(
        self, address: str, resource_manager_id: ResourceManagerId
    ) -> None:
        """Declare the job's requirements at this ResourceManager, now and whenever they change."""

    @abstractmethod
    async def disconnect_resource_manager(self) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def set_resource_requirements(self, requirements: ResourceRequirements) -> None:
        """Set the total requirements of the job, in place of earlier ones.
        The pool declares them.
        """

    @abstractmethod
    @runs_to_completion
    async def restore_slots(self, slots: tuple[HeldSlot, ...]) -> None:
        """Take over the slots that the job's last pool held before it died."""

    @abstractmethod
    @runs_to_completion
    async def request_slots(self, wanted: SlotRequests) -> None:
        """Request many slots in one message. Each request is answered by ``slots_changed``."""

    @abstractmethod
    @runs_to_completion
    async def cancel_slot_requests(self, cancelled: CancelSlotRequests) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def return_slots(self, returned: ReturnSlots) -> None:
        """Take back slots that the job does not use any more.
        The pool may use them for other requests.
        """

    @abstractmethod
    @runs_to_completion
    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """Forward the shortages that the ResourceManager has reported.
        Fails the affected requests.
        """

    @abstractmethod
    @runs_to_completion
    async def set_job_restarting(
        self, restarting: bool, worker_groups: tuple[ResourceRequirement, ...]
    ) -> None:
        """Tell the pool whether the job restarts.
        While the job restarts, the pool keeps every offered slot, required or not. *worker_groups*
        are the groups that were required when the restart began; they stay required until its end.
        """

    @abstractmethod
    @runs_to_completion
    async def register_task_executors(self, locations: tuple[WorkerLocation, ...]) -> None:
        """Accept offers of these TaskExecutors, which are registered at the JobMaster.
        A new process takes the place of an earlier one with the same resource id, whose slots are
        gone.
        """

    @abstractmethod
    @runs_to_completion
    async def release_task_executor(self, resource_id: ResourceID, reason: str) -> None:
        """Report that a TaskExecutor is gone together with its slots."""

    @abstractmethod
    @runs_to_completion
    async def let_go(self, resource_id: ResourceID) -> bool:
        """Accept no more offers of a TaskExecutor, unless the pool holds a slot there.
        Returns whether the TaskExecutor may be disconnected.
        """

    @abstractmethod
    @runs_to_completion
    async def offer_slots(
        self, location: WorkerLocation, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        """Offer slots of the TaskExecutor process at *location*, which makes this call.
        The JobMaster is told of the accepted slots.

        Raises:
            UnknownTaskExecutorError: the process is not registered at the JobMaster, or the pool
                does not know of it yet. The offer may be repeated.
        """

    @abstractmethod
    @runs_to_completion
    async def fail_allocation(self, allocation_id: AllocationID, reason: str) -> None: ...

    @abstractmethod
    @runs_to_completion
    async def expect_slots(self, allocations: tuple[AllocationID, ...]) -> None:
        """Accept the slots with these ids when they are offered.
        They are the slots that the pools of past JobMasters have handed over.
        """

    @abstractmethod
    @runs_to_completion
    async def keep(self, piece: KeptPiece) -> None:
        """Keep notes, finished tasks, or a part of the source coordinator's state for the next
        JobMaster.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over(self, successor: JobMasterId) -> HandedOver:
        """Return the slots that the next JobMaster's pool must expect, and the last notes.
        Called by the job's next JobMaster. A repeated call gets the same answer.

        Raises:
            SlotAllocationError: the JobMaster of this pool lives.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over_piece(self, successor: JobMasterId, number: int) -> KeptPiece | None:
        """Return piece *number* of the kept parts and finished tasks, counted from 0.
        None after the last piece.

        Raises:
            SlotAllocationError: the JobMaster of this pool lives.
        """

    @abstractmethod
    @ask_timeout(30.0)
    @runs_to_completion
    async def close_pool(self, reason: str) -> None:
        """Free every slot at its TaskExecutor, and stop. The ResourceManager gets no message.
        If the JobMaster has terminated, no slot is freed: its successor may take the slots over.
        """
