"""Defines the messages between a JobMaster and its SlotPool.

The JobMaster sends one :class:`SlotRequests` for as many slots as it wants.  Later, for each
:class:`SlotRequest` in it, it receives **exactly one** :class:`SlotAllocated` or
:class:`SlotRequestFailed`, unless it has canceled the request before.  An allocated slot is
*reserved* for the JobMaster until it sends :class:`ReturnSlots` (then the pool may give the slot to
the next request, under the same AllocationID) or receives :class:`SlotsLost`.

A request is for one physical slot.  The JobMaster decides which subtasks share the slot
(:mod:`flinkray.scheduler.slots.slot_sharing`,
:mod:`flinkray.scheduler.slots.execution_slot_allocator`); the pool only uses the subtasks' ids in
explanations.

Order: the events of one SlotPool arrive in the order in which they happened; a SlotsLost never
precedes the SlotAllocated that it revokes.  When the pool dies, the JobMaster tells the next pool
which requests were pending and which slots were reserved
(:mod:`flinkray.scheduler.slots.slot_ledger`), and all of them stay valid.
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
    """A request for one physical slot, which several subtasks will share."""

    request_id: SlotRequestId
    """Id chosen by the requester; not used for another request of the same pool."""
    vertices: tuple[ExecutionVertexID, ...] = ()
    """The subtasks that will share the slot."""
    preferred_allocations: tuple[AllocationID, ...] = ()
    """Slots that these subtasks had before, best first, because local state may still exist there.
    A slot that any request prefers is given to another request only if no other slot fits."""
    preferred_task_executors: tuple[ResourceID, ...] = ()
    """TaskExecutors of the subtasks' inputs, best first; ranked after the preferred allocations."""
    bundle: int = 0
    """With a constraint: index of the bundle that must provide the slot."""


@message
class SlotRequests:
    """Requests for slots of one profile, made together. They raise the number of slots that the job
    requires by their number."""

    profile: ResourceProfile
    requests: tuple[SlotRequest, ...]
    is_batch: bool = False
    """Whether the requests are for batch tasks, which can run one after the other.
    Batch requests wait as long as the pool has a slot, used or not, that could hold the profile,
    and shortages do not fail them (SP-15, SP-16).  Streaming requests need all slots at the same
    time, and all of them time out.
    """
    timeout: float | None = None
    """Seconds from now on; None: the pool's own timeout (``slot.request.timeout``)."""
    constraint: SameWorkerGroup | None = None
    """The requests are for bundles of the worker group of this constraint; None: for any slots.
    Such requests are served from one group only, and fail when they time out, batch or not."""

    def __str__(self) -> str:
        kind = "batch requests" if self.is_batch else "requests"
        if self.constraint is not None:
            kind += f" for bundles of worker group {self.constraint.name!r}"
        return f"{len(self.requests)} {kind} for slots of {self.profile}"


@message
class CancelSlotRequests:
    """Cancels requests whose slots are no longer wanted. Requests that were answered before are
    ignored."""

    request_ids: tuple[SlotRequestId, ...]
    reason: str


@message
class ReturnSlots:
    """Gives reserved slots in which no task runs any more back to the pool, which may use them for
    other requests. The number of slots that the job requires falls by their number (SP-28)."""

    allocations: tuple[AllocationID, ...]
    reason: str


@register
class SlotRequestFailure(Enum):
    """Why a request for a slot failed."""

    TIMED_OUT = "timed out"
    """No slot came in time."""
    UNFULFILLABLE = "unfulfillable"
    """No slot of the profile can ever come; repeating the request does not help (SM-14)."""
    NOT_ENOUGH_RESOURCES = "not enough resources"
    """The ResourceManager cannot provide the declared slots (SP-28)."""
    POOL_CLOSED = "pool closed"


@message
class SlotAllocated:
    """Answers a request: the slot is reserved for the request."""

    request_id: SlotRequestId
    slot: AllocatedSlot


@message
class SlotRequestFailed:
    """Answers a request that gets no slot; ``reason`` says in sentences what was missing."""

    request_id: SlotRequestId
    failure: SlotRequestFailure
    reason: str


@message
class SlotsLost:
    """Reports that reserved slots are lost; tasks in them have failed with this cause."""

    allocations: tuple[AllocationID, ...]
    cause: str


@message
class TaskExecutorWithoutSlots:
    """Reports that the pool no longer has a slot, used or free, on a registered TaskExecutor
    (SP-09). The JobMaster may disconnect from the TaskExecutor, unless it holds partitions of the
    job (JM-15)."""

    resource_id: ResourceID


@message
class HeldSlot:
    """A slot that a SlotPool has, and what it is reserved for. JobMasters pass these records on to
    the next SlotPool."""

    slot: AllocatedSlot
    constraint: SameWorkerGroup | None = None
    """Constraint with which the slot was offered; None if there was none."""
    request_id: SlotRequestId | None = None
    """Id of the request for which the slot is reserved; None if it is free."""
    profile: ResourceProfile | None = None
    """Profile that the request asked for; None: the slot's own profile."""


SlotEvent = SlotAllocated | SlotRequestFailed | SlotsLost | TaskExecutorWithoutSlots

IDS_PER_MESSAGE = 40_000
"""Largest number of ids in a message: about 4 MB, well below the frame size."""


def in_messages(wanted: SlotRequests) -> Iterator[SlotRequests]:
    """Divide *wanted* into several SlotRequests, each small enough for one message."""
    largest = max((_number_of_ids(request) for request in wanted.requests), default=1)
    number = max(1, IDS_PER_MESSAGE // largest)
    for first in range(0, len(wanted.requests), number):
        yield replace(wanted, requests=wanted.requests[first : first + number])


def _number_of_ids(request: SlotRequest) -> int:
    preferred = len(request.preferred_allocations) + len(request.preferred_task_executors)
    return 1 + len(request.vertices) + preferred
