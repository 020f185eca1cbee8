"""Manages the slots of a SlotPool that must be bundles of one worker group, and their requests."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceShortage,
    SameWorkerGroup,
)
from flinkray.scheduler.slots.slot_book import SlotBook
from flinkray.scheduler.slots.slot_requests import (
    HeldSlot,
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
)


@dataclass(slots=True, eq=False)
class _Held:
    slot: AllocatedSlot
    request_id: SlotRequestId | None = None
    """Id of the request for which the slot is reserved; None if it is free."""


@dataclass(slots=True, eq=False)
class _Pending:
    request: SlotRequest
    timeout: float
    deadline: float


class WorkerGroupSlots(SlotBook):
    """Manages the slots and requests of the pool for one constraint of its job. A request is for a
    bundle, and is served when all bundles of one worker group exist.  While bundles are reserved,
    requests only get bundles of the same group.  Of several complete groups the newest is used,
    because an earlier one will soon be lost."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._size = 0
        self._profile = ResourceProfile(0.0)
        self._pending: dict[int, _Pending] = {}
        """Pending requests by bundle."""
        self._held: dict[AllocationID, _Held] = {}
        self._groups: dict[WorkerGroupId, dict[int, _Held]] = {}
        """Held slots by group and bundle; the group whose first slot came last is at the end."""
        self._reserved = 0
        self._idle_since: float | None = None
        self._is_kept = False
        self._is_declared = False

    # --- questions --------------------------------------------------------------------------------

    @property
    def is_required(self) -> bool:
        """Whether the job requires the worker group now; if it does, it requires all of its
        bundles."""
        return bool(self._pending) or self._reserved > 0 or self._is_kept or self._is_declared

    @property
    def is_over(self) -> bool:
        return not self.is_required and not self._held

    @property
    def number_pending(self) -> int:
        return len(self._pending)

    def slots(self) -> tuple[AllocatedSlot, ...]:
        return tuple(held.slot for held in self._held.values())

    def slots_on(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        return tuple(slot for slot in self.slots() if slot.location.resource_id == resource_id)

    def holds(self, allocation_id: AllocationID) -> bool:
        return allocation_id in self._held

    def slot(self, allocation_id: AllocationID) -> AllocatedSlot:
        return self._held[allocation_id].slot

    def is_reserved(self, allocation_id: AllocationID) -> bool:
        held = self._held.get(allocation_id)
        return held is not None and held.request_id is not None

    # --- requirements of the job ------------------------------------------------------------------

    def declare(self, requirements: Sequence[ResourceRequirement], now: float) -> None:
        """Set how large a worker group the job requires beyond its requests: the last of
        *requirements* gives size and profile. Empty: the job requires none."""
        self._is_declared = bool(requirements)
        for requirement in requirements:
            self._profile, self._size = requirement.profile, requirement.count
        self._note_idle(now)

    def requirements(self, now: float) -> tuple[ResourceRequirement, ...]:
        """Return the requirement of the whole group, even if only some of its bundles are
        requested."""
        if not self.is_required:
            return ()
        constraint = SameWorkerGroup(self._name, self._size)
        return (ResourceRequirement(self._profile, self._size, constraint),)

    def request(self, wanted: SlotRequests, timeout: float, now: float) -> list[SlotAllocated]:
        """Add requests; their constraint defines the size of the group from now on.

        Raises:
            ValueError: a bundle is beyond the group, has a pending request, or is reserved.
        """
        assert wanted.constraint is not None
        size, present = wanted.constraint.size, self._present()
        for request in wanted.requests:
            bundle, held = request.bundle, present.get(request.bundle)
            if not 0 <= bundle < size:
                raise ValueError(f"worker group {self._name!r} has no bundle {bundle}, but {size}")
            if bundle in self._pending or (held is not None and held.request_id is not None):
                raise ValueError(f"bundle {bundle} of worker group {self._name!r} is taken")
        self._profile, self._size = wanted.profile, size
        for request in wanted.requests:
            self._pending[request.bundle] = _Pending(request, timeout, now + timeout)
        self._note_idle(now)
        return self.serve()

    def serve(self) -> list[SlotAllocated]:
        group = self._present() if self._reserved else self._newest_complete()
        allocated = []
        for bundle in sorted(self._pending.keys() & group.keys()):
            held = group[bundle]
            if held.request_id is None and self._fits(held.slot):
                held.request_id = self._pending.pop(bundle).request.request_id
                self._reserved += 1
                allocated.append(SlotAllocated(held.request_id, held.slot))
        return allocated

    def cancel(self, request_ids: Collection[SlotRequestId], now: float) -> None:
        wanted = set(request_ids)
        for bundle, pending in tuple(self._pending.items()):
            if pending.request.request_id in wanted:
                del self._pending[bundle]
        self._note_idle(now)

    def give_back(self, allocation_id: AllocationID, now: float) -> None:
        held = self._held[allocation_id]
        if held.request_id is not None:
            held.request_id = None
            self._reserved -= 1
            self._note_idle(now)

    def keep(self, is_kept: bool, required: Sequence[ResourceRequirement], now: float) -> None:
        """Set whether the group stays required without requests and reserved slots.
        This is the case while the job restarts and will request the slots again."""
        for requirement in required:
            self._profile, self._size = requirement.profile, requirement.count
        self._is_kept = is_kept and bool(required)
        self._note_idle(now)

    # --- requests that end without a slot ---------------------------------------------------------

    def fail_short(self, shortages: Sequence[ResourceShortage], now: float) -> list[SlotEvent]:
        """Fail all requests if the group is unfulfillable or exhausted, because only a whole group
        can be used (SP-16, SP-28)."""
        failed: list[SlotEvent] = []
        for shortage in shortages:
            if shortage.constraint is None or shortage.constraint.name != self._name:
                continue
            if shortage.unfulfillable:
                failed += self.fail_all(SlotRequestFailure.UNFULFILLABLE, shortage.reason, now)
            elif shortage.exhausted:
                kind = SlotRequestFailure.NOT_ENOUGH_RESOURCES
                failed += self.fail_all(kind, shortage.reason, now)
        return failed

    def fail_late(self, now: float) -> list[SlotEvent]:
        there = len(self._groups[next(reversed(self._groups))]) if self._groups else 0
        failed: list[SlotEvent] = []
        for bundle, pending in tuple(self._pending.items()):
            if pending.deadline <= now:
                del self._pending[bundle]
                reason = (
                    f"{there} of {self._size} slots of {self._profile}, all of one worker group, "
                    f"came within {pending.timeout:g} s."
                )
                failed.append(_failed(pending, SlotRequestFailure.TIMED_OUT, reason))
        self._note_idle(now)
        return failed

    def fail_all(self, failure: SlotRequestFailure, reason: str, now: float) -> list[SlotEvent]:
        pending, self._pending = self._pending, {}
        self._note_idle(now)
        return [_failed(one, failure, reason) for one in pending.values()]

    def next_deadline(self) -> float:
        return min((pending.deadline for pending in self._pending.values()), default=inf)

    # --- slots that come and go -------------------------------------------------------------------

    def outdated_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """Return None: an offer never shows that a slot in the book is gone. That slot stays until
        a wanted slot of the same bundle replaces it."""
        return None

    def match(self, slot: AllocatedSlot, now: float) -> ResourceProfile | None:
        """Return the profile of the worker group's slots if the offered slot is wanted; None if it
        is not. A slot of another worker group is wanted, too, even if the pool has slots of the
        current one."""
        return self._profile if self.is_required and self._fits(slot) else None

    def replaced_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """Return the book's slot for the same bundle of the group, whose TaskExecutor was replaced;
        None if there is none."""
        held = self._groups.get(slot.location.worker_group, {}).get(slot.location.bundle_index)
        return None if held is None else held.slot

    def add(self, slot: AllocatedSlot, matched: ResourceProfile, now: float) -> None:
        """Add a free slot; its bundle decides which request gets it."""
        held = self._held[slot.allocation_id] = _Held(slot)
        location = slot.location
        self._groups.setdefault(location.worker_group, {})[location.bundle_index] = held
        self._note_idle(now)

    def take_over(self, restored: HeldSlot, now: float) -> bool:
        """Add a slot that the job had under an earlier JobMaster, and return True. Return False if
        the job requires the group already, or the book has a slot for the same bundle."""
        if self.is_required or self.replaced_by(restored.slot) is not None:
            return False
        self.restore(restored, now)
        return True

    def restore(self, restored: HeldSlot, now: float) -> None:
        """Add a slot of the job's previous pool. The slot's constraint and the profile of its
        request tell the size and profile of the worker group."""
        assert restored.constraint is not None
        slot, size = restored.slot, restored.constraint.size
        self.add(slot, slot.profile, now)
        if restored.request_id is not None:
            self._held[slot.allocation_id].request_id = restored.request_id
            self._reserved += 1
        if restored.profile is not None or not self._size:
            self._size, self._profile = size, restored.profile or slot.profile
        self._note_idle(now)

    def remove(self, allocation_id: AllocationID, now: float) -> None:
        held = self._held.pop(allocation_id)
        location = held.slot.location
        bundles = self._groups[location.worker_group]
        del bundles[location.bundle_index]
        if not bundles:
            del self._groups[location.worker_group]
        self._reserved -= held.request_id is not None
        self._note_idle(now)

    def useless(self) -> tuple[AllocationID, ...]:
        """Return the free slots that no request can get, because their worker group was replaced by
        another one, or their bundle is beyond the required size or too small."""
        present = self._present()
        return tuple(
            allocation_id
            for allocation_id, held in self._held.items()
            if held.request_id is None
            and not (self._fits(held.slot) and present.get(held.slot.location.bundle_index) is held)
        )

    # --- time -------------------------------------------------------------------------------------

    def idle_deadline(self, timeout: float) -> float:
        return inf if self._idle_since is None else self._idle_since + timeout

    def idle_too_long(self, timeout: float, now: float) -> tuple[AllocationID, ...]:
        """Return all slots, if no slot was required for *timeout* seconds (SP-07); otherwise
        none."""
        return tuple(self._held) if self.idle_deadline(timeout) <= now else ()

    # ----------------------------------------------------------------------------------------------

    def _note_idle(self, now: float) -> None:
        if self.is_required or not self._held:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now

    def _fits(self, slot: AllocatedSlot) -> bool:
        return slot.location.bundle_index < self._size and self._profile.fits_into(slot.profile)

    def _present(self) -> dict[int, _Held]:
        """Return bundle index -> slot for one worker group: the group whose bundles are reserved,
        otherwise the newest group."""
        if self._reserved:
            for bundles in self._groups.values():
                if any(held.request_id is not None for held in bundles.values()):
                    return bundles
        return self._groups[next(reversed(self._groups))] if self._groups else {}

    def _newest_complete(self) -> dict[int, _Held]:
        for bundles in reversed(self._groups.values()):
            if all(
                bundle in bundles and self._fits(bundles[bundle].slot)
                for bundle in range(self._size)
            ):
                return bundles
        return {}


def _failed(pending: _Pending, failure: SlotRequestFailure, reason: str) -> SlotRequestFailed:
    return SlotRequestFailed(pending.request.request_id, failure, reason)
