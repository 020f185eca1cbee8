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
    """What the SlotPool of a lost JobMaster gives to the next JobMaster: slots and notes."""

    allocations: tuple[AllocationID, ...]
    """All slots that the pool has or expects."""
    task_executors: tuple[WorkerLocation, ...]
    """TaskExecutors that have offered slots to the pool."""
    notes: JobNotes | None = None


class SlotPoolGateway(FencedRpcGateway):
    """Holds the slots of one job. Fenced by the JobMasterId of its JobMaster."""

    @abstractmethod
    async def request_heartbeat(self) -> int:
        """Answer at once with the number of ``slots_changed`` messages sent to the JobMaster so
        far."""

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
        The pool declares them at the ResourceManager.
        """

    @abstractmethod
    @runs_to_completion
    async def restore_slots(self, slots: tuple[HeldSlot, ...]) -> None:
        """Add the slots that this JobMaster's last pool had before it died."""

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
        """Take back slots that the job does not use any more, for other requests or to free
        them.
        """

    @abstractmethod
    @runs_to_completion
    async def notify_not_enough_resources(self, shortages: tuple[ResourceShortage, ...]) -> None:
        """Receive the shortages of slots that the ResourceManager has reported to the JobMaster.
        Requests that cannot be fulfilled because of them fail.
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
        """Accept no more slots of a TaskExecutor, so that the JobMaster can disconnect it, and
        return True. If the pool has a slot there, do nothing and return False."""

    @abstractmethod
    @runs_to_completion
    async def offer_slots(
        self, location: WorkerLocation, offers: tuple[SlotOffer, ...]
    ) -> SlotOfferAnswer:
        """Offer slots of the TaskExecutor process at *location*, which makes this call.
        Returns which slots the pool accepts. The pool reports them to the JobMaster.

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
        """Accept the slots with these ids when TaskExecutors offer them.
        The SlotPools of past JobMasters had these slots and have handed them over.
        """

    @abstractmethod
    @runs_to_completion
    async def keep(self, piece: KeptPiece) -> None:
        """Store one message for the job's next JobMaster: notes of the JobMaster, finished tasks,
        or a part of the source coordinator's state.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over(self, successor: JobMasterId) -> HandedOver:
        """Return the slots that the next JobMaster's pool must accept, and the JobMaster's last
        notes. Called by the job's next JobMaster. A repeated call gets the same answer.

        Raises:
            SlotAllocationError: the JobMaster of this pool lives.
        """

    @abstractmethod
    @ask_timeout(5.0)
    async def hand_over_piece(self, successor: JobMasterId, number: int) -> KeptPiece | None:
        """Return piece *number*, counted from 0, of what the pool stores besides the notes:
        finished tasks, and parts of the source coordinator's state. None after the last piece.

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
