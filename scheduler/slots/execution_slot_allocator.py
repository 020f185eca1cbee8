"""Gives each subtask a logical slot: requests physical slots from the SlotPool, and divides each
among the subtasks that share it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from flinkray.core.ids import (
    AllocationID,
    ExecutionAttemptID,
    ExecutionVertexID,
    ResourceID,
    SlotRequestId,
)
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, SameWorkerGroup
from flinkray.scheduler.slots.logical_slots import FailPayload, LogicalSlot
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from flinkray.scheduler.slots.slot_sharing import ExecutionSlotSharingGroup


@dataclass(frozen=True, slots=True)
class LogicalSlotAllocated:
    """Tells the scheduler that a subtask has its share of a slot."""

    slot: LogicalSlot


@dataclass(frozen=True, slots=True)
class LogicalSlotFailed:
    """Tells the scheduler that a subtask gets no slot. The scheduler may request one again."""

    vertex: ExecutionVertexID
    failure: SlotRequestFailure
    reason: str


SlotAllocatorAction = (
    SlotRequests
    | CancelSlotRequests
    | ReturnSlots
    | LogicalSlotAllocated
    | LogicalSlotFailed
    | FailPayload
)
"""The first three types are messages to the SlotPool; the others are for the scheduler."""


@dataclass(slots=True, eq=False)
class _SharedSlot:
    """The physical slot that a group of subtasks shares: requested, or allocated."""

    group: ExecutionSlotSharingGroup
    request_id: SlotRequestId | None = None
    """Id of the unanswered request; None if there is none."""
    slot: AllocatedSlot | None = None
    waiting: dict[ExecutionVertexID, None] = field(default_factory=dict)
    logical: dict[ExecutionVertexID, LogicalSlot] = field(default_factory=dict)
    last_allocation: AllocationID | None = None


class ExecutionSlotAllocator:
    """Allocates slots of the SlotPool to subtasks.
    Each subtask passed to :meth:`allocate` gets exactly one LogicalSlotAllocated or
    LogicalSlotFailed, unless it is canceled before.  The allocator takes events and returns
    actions, in the order in which they must be carried out.  Time is constant per subtask.
    """

    def __init__(
        self,
        groups: Iterable[ExecutionSlotSharingGroup],
        *,
        is_batch: bool = False,
        requests_made: int = 0,
    ) -> None:
        """Make an allocator without requests. *groups*: from
        :func:`~flinkray.scheduler.slots.slot_sharing.slot_sharing_groups`. *requests_made*: number
        of requests by an earlier allocator, whose ids are not reused."""
        self._is_batch = is_batch
        self._shared: dict[ExecutionVertexID, _SharedSlot] = {}
        for group in groups:
            shared = _SharedSlot(group)
            self._shared.update(dict.fromkeys(group.vertices, shared))
        self._by_request: dict[SlotRequestId, _SharedSlot] = {}
        self._by_allocation: dict[AllocationID, _SharedSlot] = {}
        self._requests_made = requests_made

    def allocate(
        self,
        vertices: Sequence[ExecutionVertexID],
        *,
        near: dict[ExecutionVertexID, tuple[ResourceID, ...]] | None = None,
        timeout: float | None = None,
    ) -> list[SlotAllocatorAction]:
        """Request slots for subtasks that have none, with one SlotRequests message per kind of
        slot. A slot-sharing group prefers the slot that it had before. *near*: subtask ->
        TaskExecutors on which its inputs are.

        Raises:
            ValueError: a subtask has a slot, or waits for one.
        """
        actions: list[SlotAllocatorAction] = []
        wanted: dict[tuple[ResourceProfile, SameWorkerGroup | None], list[SlotRequest]] = {}
        for vertex in vertices:
            shared = self._shared[vertex]
            if vertex in shared.waiting or vertex in shared.logical:
                raise ValueError(f"subtask {vertex} has a slot already, or waits for one")
            if shared.slot is not None:
                actions.append(self._share(shared, vertex, shared.slot))
                continue
            shared.waiting[vertex] = None
            if shared.request_id is None:
                request = self._new_request(shared, near or {})
                key = (shared.group.profile, shared.group.constraint)
                wanted.setdefault(key, []).append(request)
        for (profile, constraint), requests in wanted.items():
            asked = SlotRequests(profile, tuple(requests), self._is_batch, timeout, constraint)
            actions.append(asked)
        return actions

    def adopt(self, attempt_id: ExecutionAttemptID, slot: AllocatedSlot) -> HeldSlot | None:
        """Record that an attempt runs in a slot that this allocator did not request. Returns the
        slot for the SlotPool to restore; None if an earlier call has returned it for another
        attempt that shares the slot.

        Raises:
            ValueError: the group of subtasks that share a slot is in another slot, or has requested
                one.
        """
        vertex = attempt_id.vertex
        shared = self._shared[vertex]
        is_first = shared.slot is None
        if is_first:
            if shared.request_id is not None or slot.allocation_id in self._by_allocation:
                raise ValueError(f"{attempt_id} cannot be in slot {slot.allocation_id}")
            shared.slot, shared.last_allocation = slot, slot.allocation_id
            self._by_allocation[slot.allocation_id] = shared
        elif shared.slot != slot or vertex in shared.logical:
            raise ValueError(f"{attempt_id} cannot be in slot {slot.allocation_id}")
        self._share(shared, vertex, slot).slot.try_assign_payload(attempt_id)
        if not is_first:
            return None
        return HeldSlot(slot, shared.group.constraint, self._new_request_id(), shared.group.profile)

    def slot_events(self, events: Iterable[SlotEvent]) -> list[SlotAllocatorAction]:
        """Apply events of the SlotPool, in their order, and return the actions: shares for
        subtasks, failed requests, and attempts to fail because their slots were lost."""
        actions: list[SlotAllocatorAction] = []
        for event in events:
            match event:
                case SlotAllocated():
                    self._allocated(event, actions)
                case SlotRequestFailed():
                    self._failed(event, actions)
                case SlotsLost(allocations, cause):
                    for allocation_id in allocations:
                        self._lost(allocation_id, cause, actions)
        return actions

    def cancel(
        self, vertices: Iterable[ExecutionVertexID], reason: str
    ) -> list[SlotAllocatorAction]:
        """Make these subtasks wait for a slot no longer. A request is canceled when no subtask that
        would share its slot waits any more. Subtasks that do not wait are ignored."""
        cancelled = []
        for vertex in vertices:
            shared = self._shared[vertex]
            if shared.waiting.pop(vertex, 0) is None and not shared.waiting:
                assert shared.request_id is not None
                del self._by_request[shared.request_id]
                cancelled.append(shared.request_id)
                shared.request_id = None
        return [CancelSlotRequests(tuple(cancelled), reason)] if cancelled else []

    def release(
        self, vertices: Iterable[ExecutionVertexID], cause: str
    ) -> list[SlotAllocatorAction]:
        """Give the slot shares of these subtasks back. Attempts in them fail, and their share is
        given back when they end (:meth:`payload_ended`)."""
        actions: list[SlotAllocatorAction] = []
        returned: list[AllocationID] = []
        for vertex in vertices:
            logical = self._shared[vertex].logical.get(vertex)
            if logical is not None:
                actions += logical.release_slot(cause)
                self._take_back(logical, returned)
        return actions + _returned(returned, cause)

    def payload_ended(
        self, attempts: Iterable[ExecutionAttemptID], cause: str = "its task has ended"
    ) -> list[SlotAllocatorAction]:
        """Give the slot shares of ended attempts back. A slot goes back to the SlotPool with its
        last share."""
        returned: list[AllocationID] = []
        for attempt_id in attempts:
            logical = self._shared[attempt_id.vertex].logical.get(attempt_id.vertex)
            if logical is not None and logical.payload == attempt_id:
                logical.payload_ended()
                logical.release_slot(cause)
                self._take_back(logical, returned)
        return list(_returned(returned, cause))

    def logical_slot(self, vertex: ExecutionVertexID) -> LogicalSlot | None:
        """Return the subtask's share of a slot; None if the subtask has no slot."""
        return self._shared[vertex].logical.get(vertex)

    def has_nothing(self, vertex: ExecutionVertexID) -> bool:
        """Return whether the subtask neither has a slot share nor waits for one."""
        shared = self._shared[vertex]
        return vertex not in shared.logical and vertex not in shared.waiting

    @property
    def requests_made(self) -> int:
        """Number of requests so far, answered or not."""
        return self._requests_made

    @property
    def waiting(self) -> Counter[ResourceProfile]:
        """Number of unanswered requests, by profile."""
        return Counter(shared.group.profile for shared in self._by_request.values())

    def _new_request(
        self, shared: _SharedSlot, near: dict[ExecutionVertexID, tuple[ResourceID, ...]]
    ) -> SlotRequest:
        request_id = self._new_request_id()
        shared.request_id = request_id
        self._by_request[request_id] = shared
        inputs = [place for v in shared.group.vertices for place in near.get(v, ())]
        before = () if shared.last_allocation is None else (shared.last_allocation,)
        near_to = tuple(dict.fromkeys(inputs))
        return SlotRequest(request_id, shared.group.vertices, before, near_to, shared.group.bundle)

    def _new_request_id(self) -> SlotRequestId:
        self._requests_made += 1
        return SlotRequestId(self._requests_made.to_bytes(SlotRequestId.SIZE, "big"))

    def _allocated(self, event: SlotAllocated, actions: list[SlotAllocatorAction]) -> None:
        shared = self._by_request.pop(event.request_id, None)
        if shared is None:  # cancelled while the answer was on its way
            actions.append(ReturnSlots((event.slot.allocation_id,), "its request was cancelled"))
            return
        shared.request_id, shared.slot = None, event.slot
        shared.last_allocation = event.slot.allocation_id
        self._by_allocation[event.slot.allocation_id] = shared
        waiting, shared.waiting = shared.waiting, {}
        actions += [self._share(shared, vertex, event.slot) for vertex in waiting]

    def _share(
        self, shared: _SharedSlot, vertex: ExecutionVertexID, slot: AllocatedSlot
    ) -> LogicalSlotAllocated:
        logical = shared.logical[vertex] = LogicalSlot(vertex, slot)
        return LogicalSlotAllocated(logical)

    def _failed(self, event: SlotRequestFailed, actions: list[SlotAllocatorAction]) -> None:
        """Fail all subtasks that wait for the slot, because its request has failed (SP-20)."""
        shared = self._by_request.pop(event.request_id, None)
        if shared is None:
            return
        shared.request_id = None
        waiting, shared.waiting = shared.waiting, {}
        actions += [LogicalSlotFailed(v, event.failure, event.reason) for v in waiting]

    def _lost(
        self, allocation_id: AllocationID, cause: str, actions: list[SlotAllocatorAction]
    ) -> None:
        """Release all shares of a lost slot (SP-20)."""
        shared = self._by_allocation.pop(allocation_id, None)
        if shared is None:
            return
        shared.slot = None
        logical_slots, shared.logical = shared.logical, {}
        for logical in logical_slots.values():
            actions += logical.release(cause)
            logical.taken_back()

    def _take_back(self, logical: LogicalSlot, returned: list[AllocationID]) -> None:
        if not logical.wants_to_return:
            return
        logical.taken_back()
        shared = self._shared[logical.vertex]
        del shared.logical[logical.vertex]
        if not shared.logical:
            assert shared.slot is not None
            returned.append(shared.slot.allocation_id)
            del self._by_allocation[shared.slot.allocation_id]
            shared.slot = None


def _returned(allocations: list[AllocationID], cause: str) -> list[ReturnSlots]:
    return [ReturnSlots(tuple(allocations), cause)] if allocations else []
