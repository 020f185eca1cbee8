"""What a JobMaster asks its SlotPool for, and what it hears back: the seam between the two.

The JobMaster sends one :class:`SlotRequests` for as many slots as it wants, and later, for each
:class:`SlotRequest` in it, hears **exactly one** of :class:`SlotAllocated` and
:class:`SlotRequestFailed`, unless it has cancelled the request before.  An allocated slot is the
JobMaster's (*reserved*) until it says :class:`ReturnSlots` (the pool may give the slot to the next
request, under the same AllocationID) or hears :class:`SlotsLost`.

A request is for one physical slot.  Which subtasks share it is the JobMaster's affair
(:mod:`flinkray.scheduler.slots.slot_sharing`,
:mod:`flinkray.scheduler.slots.execution_slot_allocator`): the pool only carries the subtasks' ids
along, to name them when it explains itself.

Order: the events of one SlotPool arrive in the order in which they happened; a SlotsLost never
comes before the SlotAllocated that it takes back.  When the pool dies the JobMaster tells the next
one what was pending and reserved (:mod:`flinkray.scheduler.slots.slot_ledger`), and nothing of it
ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum

from flinkray.core.ids import AllocationID, ExecutionVertexID, ResourceID, SlotRequestId
from flinkray.core.message import message, register
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, SameWorkerGroup


@message
class SlotRequest:
    """One slot that is wanted: for an execution-slot-sharing group."""

    request_id: SlotRequestId
    """Chosen by the requester; not used for another request of the same pool."""
    vertices: tuple[ExecutionVertexID, ...] = ()
    """The subtasks that are to share the slot."""
    preferred_allocations: tuple[AllocationID, ...] = ()
    """Slots that these subtasks had before, best first: state may still lie beside them.  A slot
    that is anybody's preferred one is given to others only when nothing else fits."""
    preferred_task_executors: tuple[ResourceID, ...] = ()
    """Where their inputs are, best first; counts after the preferred allocations."""
    bundle: int = 0
    """With a constraint: the bundle whose slot it must be."""


@message
class SlotRequests:
    """Requests of one profile, made together: the job's declared total grows by their number."""

    profile: ResourceProfile
    requests: tuple[SlotRequest, ...]
    is_batch: bool = False
    """Batch tasks can run one after the other: their requests wait as long as the pool has a slot,
    used or not, that could hold the profile, and are not failed by a shortage (SP-15, SP-16).
    Streaming requests need all slots at the same time and time out one and all."""
    timeout: float | None = None
    """Seconds from now on; None: the pool's own (``slot.request.timeout``)."""
    constraint: SameWorkerGroup | None = None
    """The requests are for bundles of one worker group.  They are served from one group only, and
    fail when they time out, batch or not."""

    def __str__(self) -> str:
        kind = "batch requests" if self.is_batch else "requests"
        if self.constraint is not None:
            kind += f" for bundles of worker group {self.constraint.name!r}"
        return f"{len(self.requests)} {kind} for slots of {self.profile}"


@message
class CancelSlotRequests:
    """The requests are not wanted any more; those that have been answered already are ignored."""

    request_ids: tuple[SlotRequestId, ...]
    reason: str


@message
class ReturnSlots:
    """Nothing runs in these reserved slots any more: they are the pool's to give again, and the
    declared total shrinks by their number (SP-28)."""

    allocations: tuple[AllocationID, ...]
    reason: str


@register
class SlotRequestFailure(Enum):
    """Why a request failed."""

    TIMED_OUT = "timed out"
    """No slot came in time."""
    UNFULFILLABLE = "unfulfillable"
    """No slot of that profile can ever come; trying again is of no use (SM-14)."""
    NOT_ENOUGH_RESOURCES = "not enough resources"
    """The ResourceManager cannot provide the slots that are declared (SP-28)."""
    POOL_CLOSED = "pool closed"


@message
class SlotAllocated:
    """The slot is reserved for the request."""

    request_id: SlotRequestId
    slot: AllocatedSlot


@message
class SlotRequestFailed:
    """The request has ended without a slot; ``reason`` says what was missing, in sentences."""

    request_id: SlotRequestId
    failure: SlotRequestFailure
    reason: str


@message
class SlotsLost:
    """Reserved slots that are gone: what runs in them has failed, with this cause."""

    allocations: tuple[AllocationID, ...]
    cause: str


@message
class TaskExecutorWithoutSlots:
    """The pool has no slot any more, used or free, on a TaskExecutor that is registered: the
    JobMaster may let it go, unless it holds partitions of the job (SP-09, JM-15)."""

    resource_id: ResourceID


@message
class RestoredSlot:
    """A slot of the job's last SlotPool, as the next one is told of it."""

    slot: AllocatedSlot
    constraint: SameWorkerGroup | None = None
    """With which it was offered."""
    request_id: SlotRequestId | None = None
    """Of the request that it is reserved for; None: it is free."""
    profile: ResourceProfile | None = None
    """That was requested."""


SlotEvent = SlotAllocated | SlotRequestFailed | SlotsLost | TaskExecutorWithoutSlots

IDS_PER_MESSAGE = 40_000
"""About 4 MB: well below the frame size."""


def in_messages(wanted: SlotRequests) -> Iterator[SlotRequests]:
    """The same requests, in as many messages as it takes for each to be of bounded size."""
    largest = max((_number_of_ids(request) for request in wanted.requests), default=1)
    number = max(1, IDS_PER_MESSAGE // largest)
    for first in range(0, len(wanted.requests), number):
        yield replace(wanted, requests=wanted.requests[first : first + number])


def _number_of_ids(request: SlotRequest) -> int:
    preferred = len(request.preferred_allocations) + len(request.preferred_task_executors)
    return 1 + len(request.vertices) + preferred
