"""Manages the slots of a SlotPool without a constraint: compares them with the job's requirements,
and decides which unanswered request gets which slot."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirement, ResourceShortage
from flinkray.scheduler.slots.pool_requirements import PoolRequirements
from flinkray.scheduler.slots.pooled_slots import FreeSlotInfo, PooledSlot, PooledSlots
from flinkray.scheduler.slots.slot_book import SlotBook
from flinkray.scheduler.slots.slot_requests import (
    HeldSlot,
    SlotAllocated,
    SlotEvent,
    SlotRequestFailure,
    SlotRequests,
)
from flinkray.scheduler.slots.slot_reservations import SlotReservations


class UnconstrainedSlots(SlotBook):
    """Manages the slots and requests of the pool that have no constraint. For each profile there is
    a total of required slots, which each request raises by one."""

    def __init__(self, *, late_slots_for: float, spread_out: bool) -> None:
        """Make a book without slots and requests. *late_slots_for*: seconds for which a slot for a
        timed-out request is still accepted. *spread_out*: serve requests from the least utilised
        TaskExecutor."""
        self._slots = PooledSlots()
        self._needs = PoolRequirements(self._slots)
        self._reservations = SlotReservations(
            self._slots, self._needs, late_slots_for=late_slots_for, spread_out=spread_out
        )
        self._to_serve: dict[AllocationID, PooledSlot] = {}
        """Slots that came or were returned since requests were last served."""
        self._is_kept = False

    # --- questions --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Return False: the pool never drops this book. Even without slots and requests, the book
        remembers timed-out requests, for which slots may still come."""
        return False

    @property
    def number_pending(self) -> int:
        return len(self._reservations)

    def slots(self) -> tuple[AllocatedSlot, ...]:
        return tuple(pooled.slot for pooled in self._slots.all())

    def slots_on(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        return tuple(pooled.slot for pooled in self._slots.on(resource_id))

    def holds(self, allocation_id: AllocationID) -> bool:
        return self._slots.get(allocation_id) is not None

    def slot(self, allocation_id: AllocationID) -> AllocatedSlot:
        return self._held(allocation_id).slot

    def is_reserved(self, allocation_id: AllocationID) -> bool:
        pooled = self._slots.get(allocation_id)
        return pooled is not None and not pooled.is_free

    def free_slots(self) -> tuple[FreeSlotInfo, ...]:
        """Return all free slots, each with the fraction of its TaskExecutor's slots in this pool
        that are in use (SP-11)."""
        return self._slots.free_slots()

    def number_required(self, profile: ResourceProfile) -> int:
        """Return the number of slots of the profile that the job requires."""
        return self._needs.required(profile)

    def number_fulfilled(self, profile: ResourceProfile) -> int:
        """Return how many slots, used or free, fulfil the job's requirement of the profile."""
        return self._slots.fulfilled(profile)

    # --- requirements of the job ------------------------------------------------------------------

    def declare(self, requirements: Sequence[ResourceRequirement], now: float) -> None:
        self._needs.set(requirements)

    def requirements(self, now: float) -> tuple[ResourceRequirement, ...]:
        """Return the requirements to declare to the ResourceManager. Before, free slots beyond the
        requirements are matched to profiles that lack slots."""
        self._needs.update(now)
        return self._needs.declared()

    def request(self, wanted: SlotRequests, timeout: float, now: float) -> list[SlotAllocated]:
        return self._reservations.request(wanted, timeout, now)

    def serve(self) -> list[SlotAllocated]:
        free, self._to_serve = self._to_serve, {}
        return self._reservations.serve(free.values())

    def cancel(self, request_ids: Collection[SlotRequestId], now: float) -> None:
        self._reservations.cancel(request_ids)

    def give_back(self, allocation_id: AllocationID, now: float) -> None:
        """Free a reserved slot. The total of the required profile that it fulfilled decreases by
        one (SP-28)."""
        pooled = self._held(allocation_id)
        if not pooled.is_free:
            self._needs.decrease(pooled.matched, 1)
            self._slots.free(pooled, now)
            self._to_serve[allocation_id] = pooled

    def keep(self, is_kept: bool, required: Sequence[ResourceRequirement], now: float) -> None:
        """Set whether every offered slot is wanted (*is_kept*), because the job restarts."""
        self._is_kept = is_kept

    # --- requests that end without a slot ---------------------------------------------------------

    def fail_short(self, shortages: Sequence[ResourceShortage], now: float) -> list[SlotEvent]:
        return self._reservations.fail_short(s for s in shortages if s.constraint is None)

    def fail_late(self, now: float) -> list[SlotEvent]:
        return self._reservations.fail_late(now)

    def fail_all(self, failure: SlotRequestFailure, reason: str, now: float) -> list[SlotEvent]:
        return self._reservations.fail_all(failure, reason)

    def next_deadline(self) -> float:
        return self._reservations.next_deadline()

    # --- slots that come and go -------------------------------------------------------------------

    def outdated_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """Return the slot in the book that has the same index on the TaskExecutor as the offered
        *slot*; None if there is none. It no longer exists, because an index has one allocation at a
        time."""
        older = self._slots.at(slot.location.resource_id, slot.slot_index)
        return None if older is None else older.slot

    def match(self, slot: AllocatedSlot, now: float) -> ResourceProfile | None:
        """Return the profile whose requirement an offered slot would fulfil: a required profile, or
        that of a timed-out request. None if the slot is not wanted. While the job restarts, every
        slot is wanted, at least for its own profile."""
        missing = self._needs.missing_profile_for(slot.profile)
        if missing is not None:
            return missing
        late = self._reservations.is_late_slot(slot.profile, now)
        if late is not None:
            return late
        return slot.profile if self._is_kept else None

    def replaced_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """Return None: no slot must be removed to add another one, because there is room for any
        number."""
        return None

    def add(self, slot: AllocatedSlot, matched: ResourceProfile, now: float) -> None:
        pooled = self._to_serve[slot.allocation_id] = PooledSlot(slot, matched, now)
        self._slots.add(pooled)
        self._reservations.slot_came(slot.profile)

    def take_over(self, restored: HeldSlot, now: float) -> bool:
        """Add a slot that the job had under an earlier JobMaster, and return True. The slot is kept
        until it has been idle for too long."""
        self.add(restored.slot, restored.slot.profile, now)
        return True

    def restore(self, restored: HeldSlot, now: float) -> None:
        pooled = PooledSlot(restored.slot, restored.profile or restored.slot.profile, now)
        self._slots.add(pooled)
        if restored.request_id is not None:
            self._needs.increase(pooled.matched, 1)
            self._slots.reserve(pooled, restored.request_id)

    def remove(self, allocation_id: AllocationID, now: float) -> None:
        """Remove a slot. If the slot was reserved, the job then requires one slot less of the
        profile whose requirement it fulfilled (SP-25, SP-28)."""
        pooled = self._held(allocation_id)
        if not pooled.is_free:
            self._needs.decrease(pooled.matched, 1)
        self._slots.remove(pooled)
        self._to_serve.pop(allocation_id, None)
        self._reservations.slots_went(now)

    def useless(self) -> tuple[AllocationID, ...]:
        """Return no slots: any free slot may be required later, until it has been idle for too
        long."""
        return ()

    # --- time -------------------------------------------------------------------------------------

    def idle_too_long(self, timeout: float, now: float) -> tuple[AllocationID, ...]:
        return self._needs.idle_too_long(timeout, now)

    def idle_deadline(self, timeout: float) -> float:
        return self._needs.idle_deadline(timeout)

    # ----------------------------------------------------------------------------------------------

    def _held(self, allocation_id: AllocationID) -> PooledSlot:
        pooled = self._slots.get(allocation_id)
        assert pooled is not None
        return pooled
