"""Manages the slots of a SlotPool without a constraint: compares them with the job's requirements,
and decides which unanswered request gets which slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceShortage,
    size_of,
)
from flinkray.scheduler.slots.pooled_slots import FreeSlotInfo, PooledSlot, PooledSlots
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


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that waits for a slot."""

    request: SlotRequest
    lane: Lane
    number: int
    since: float


@dataclass(slots=True, eq=False)
class Lane:
    """Waiting requests with the same profile, kind (batch or streaming) and timeout. They time out
    in the order of arrival."""

    profile: ResourceProfile
    is_batch: bool
    timeout: float
    pending: OrderedDict[SlotRequestId, PendingRequest] = field(default_factory=OrderedDict)
    """An OrderedDict: a plain dict is slow to find its first entry after removals."""
    starved_since: float = -inf
    """Batch requests: monotonic seconds since when no slot of the pool is large enough.
    Infinite while a slot is large enough."""

    def deadline(self) -> float:
        """Return when the oldest request times out; infinite if there is no request."""
        oldest = next(iter(self.pending.values()), None)
        if oldest is None:
            return inf
        return max(oldest.since, self.starved_since) + self.timeout


class PendingRequests:
    """Keeps waiting requests and chooses which request gets a slot. Requests are served in the
    order of arrival, but requests that prefer the arrived slot go first.  Queries take time in
    proportion to the number of lanes (different profiles and timeouts), not of requests."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[ResourceProfile, bool, float], Lane] = {}
        self._by_id: dict[SlotRequestId, PendingRequest] = {}
        self._fans: dict[Hashable, dict[SlotRequestId, PendingRequest]] = {}
        """AllocationID or ResourceID -> requests that prefer it."""
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def add(
        self,
        request: SlotRequest,
        profile: ResourceProfile,
        is_batch: bool,
        timeout: float,
        now: float,
        could_be_held: bool,
    ) -> None:
        """Add a request. *could_be_held*: the pool has a slot, perhaps in use, that is large
        enough; then a batch request does not time out for now (SP-15)."""
        key = (profile, is_batch, timeout)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(profile, is_batch, timeout)
            if is_batch and could_be_held:
                lane.starved_since = inf
        self._next_number += 1
        pending = PendingRequest(request, lane, self._next_number, now)
        lane.pending[request.request_id] = pending
        self._by_id[request.request_id] = pending
        for preferred in (*request.preferred_allocations, *request.preferred_task_executors):
            self._fans.setdefault(preferred, {})[request.request_id] = pending

    def remove(self, request_id: SlotRequestId) -> PendingRequest | None:
        """Remove a request and return it.  Returns None if the request is not pending."""
        pending = self._by_id.pop(request_id, None)
        if pending is None:
            return None
        lane = pending.lane
        del lane.pending[request_id]
        if not lane.pending:
            del self._lanes[lane.profile, lane.is_batch, lane.timeout]
        request = pending.request
        for preferred in (*request.preferred_allocations, *request.preferred_task_executors):
            fans = self._fans.get(preferred)
            if fans is not None:
                fans.pop(request_id, None)
                if not fans:
                    del self._fans[preferred]
        return pending

    def whom_to_serve(self, slot: AllocatedSlot, matched: ResourceProfile) -> PendingRequest | None:
        """Return the request that gets the slot; None if no request can use it. *matched*: the
        profile whose requirement the slot fulfils.

        Order of preference: the request that had the slot before; a request that prefers the slot's
        TaskExecutor; the oldest request of the profile *matched*; the oldest request of the largest
        profile that fits.
        """
        for preferred in (slot.allocation_id, slot.location.resource_id):
            for pending in self._fans.get(preferred, {}).values():
                if pending.lane.profile.fits_into(slot.profile):
                    return pending
        fitting = [ln for ln in self._lanes.values() if ln.profile.fits_into(slot.profile)]
        exact = [lane for lane in fitting if lane.profile == matched]
        if not exact and fitting:
            largest = max(size_of(lane.profile) for lane in fitting)
            exact = [lane for lane in fitting if size_of(lane.profile) == largest]
        oldest = (next(iter(lane.pending.values())) for lane in exact)
        return min(oldest, key=lambda pending: pending.number, default=None)

    def of_profile(self, profile: ResourceProfile) -> list[PendingRequest]:
        """Return all requests of a profile, batch or not, oldest first."""
        found = [
            p for ln in self._lanes.values() if ln.profile == profile for p in ln.pending.values()
        ]
        return sorted(found, key=lambda pending: pending.number)

    def all(self) -> Iterator[PendingRequest]:
        """Return all requests, oldest first."""
        return iter(tuple(self._by_id.values()))

    # time

    def batch_lanes(self) -> list[Lane]:
        return [lane for lane in self._lanes.values() if lane.is_batch]

    def timed_out(self, now: float) -> list[PendingRequest]:
        """Return the requests that have timed out, oldest first."""
        over = []
        for lane in self._lanes.values():
            for pending in lane.pending.values():
                if max(pending.since, lane.starved_since) + lane.timeout > now:
                    break
                over.append(pending)
        return sorted(over, key=lambda pending: pending.number)

    def next_deadline(self) -> float:
        """Return the time of the next timeout; infinite if no request times out."""
        return min((lane.deadline() for lane in self._lanes.values()), default=inf)


class PoolRequirements:
    """Counts the required slots per profile, and finds missing and excess slots. Each slot is
    matched to one profile, and counts as one of that profile's required slots. Slots beyond the
    required number are *excess*, and are returned when they are idle for too long. Each operation
    takes constant time per profile."""

    def __init__(self, slots: PooledSlots) -> None:
        self._slots = slots
        self._required: dict[ResourceProfile, int] = {}
        self._excess_since: dict[ResourceProfile, float] = {}

    def required(self, profile: ResourceProfile) -> int:
        return self._required.get(profile, 0)

    def set(self, requirements: Iterable[ResourceRequirement]) -> None:
        """Replace the number of required slots of every profile (SP-21)."""
        self._required = {}
        for requirement in requirements:
            self.increase(requirement.profile, requirement.count)

    def increase(self, profile: ResourceProfile, count: int) -> None:
        if count:
            self._required[profile] = self.required(profile) + count

    def decrease(self, profile: ResourceProfile, count: int) -> None:
        """Decrease the number of required slots of a profile by *count*, at most to 0, because the
        number may have been replaced by a lower one in the meantime."""
        left = self.required(profile) - count
        if left > 0:
            self._required[profile] = left
        else:
            self._required.pop(profile, None)

    def missing_profile_for(self, offered: ResourceProfile) -> ResourceProfile | None:
        """Return the largest profile that lacks a slot and fits into the offered profile; None if
        there is none."""
        for profile in self._largest_first():
            if self._is_missing(profile) and profile.fits_into(offered):
                return profile
        return None

    def update(self, now: float) -> None:
        """Match free excess slots to profiles that lack slots.  Call this after every change. Also
        records since when each profile has excess slots."""
        for profile in self._largest_first():
            while self._is_missing(profile) and self._move_excess_to(profile):
                pass
        for profile in self._slots.fulfilled_profiles():
            if self._excess(profile) > 0:
                self._excess_since.setdefault(profile, now)
        for profile in [p for p in self._excess_since if self._excess(p) <= 0]:
            del self._excess_since[profile]

    def declared(self) -> tuple[ResourceRequirement, ...]:
        """Return the requirements to declare to the ResourceManager, which matches slots with
        requirements by itself and must find the same shortages as this pool. So if several profiles
        are required, an existing slot is declared under its own profile, not under the profile
        whose requirement it fulfils here (SP-24)."""
        if len(self._required) < 2:
            totals = self._required
        else:
            totals = {}
            for profile, count in self._required.items():
                left = count
                for own, number in self._slots.own_profiles(profile):
                    taken = min(left, number)
                    totals[own] = totals.get(own, 0) + taken
                    left -= taken
                totals[profile] = totals.get(profile, 0) + left
        return tuple(ResourceRequirement(p, count) for p, count in totals.items() if count > 0)

    # --- idle slots -------------------------------------------------------------------------------

    def idle_too_long(self, timeout: float, now: float) -> tuple[AllocationID, ...]:
        """Return the free slots beyond the requirements that were idle for *timeout* seconds
        (SP-07, SP-23). The longest idle slots come first; of equally idle slots the newest."""
        idle: list[AllocationID] = []
        for profile, since in self._excess_since.items():
            over = [
                pooled
                for pooled in reversed(self._slots.idle(profile).values())
                if max(since, pooled.idle_since) + timeout <= now
            ]
            over.sort(key=lambda pooled: pooled.idle_since)
            idle += [pooled.slot.allocation_id for pooled in over[: self._excess(profile)]]
        return tuple(idle)

    def idle_deadline(self, timeout: float) -> float:
        """Return when :meth:`idle_too_long` next returns slots. Infinite if another event must come
        first."""
        deadline = inf
        for profile, since in self._excess_since.items():
            first = next(iter(self._slots.idle(profile).values()), None)
            if first is not None:
                deadline = min(deadline, max(since, first.idle_since) + timeout)
        return deadline

    # --- matching ---------------------------------------------------------------------------------

    def _largest_first(self) -> Iterator[ResourceProfile]:
        if len(self._required) < 2:
            return iter(tuple(self._required))
        return iter(sorted(self._required, key=size_of, reverse=True))

    def _is_missing(self, profile: ResourceProfile) -> bool:
        return self._excess(profile) < 0

    def _excess(self, profile: ResourceProfile) -> int:
        return self._slots.fulfilled(profile) - self.required(profile)

    def _move_excess_to(self, profile: ResourceProfile) -> bool:
        for other in sorted(self._slots.fulfilled_profiles(), key=size_of):
            if self._excess(other) <= 0:
                continue
            for pooled in self._slots.idle(other).values():
                if profile.fits_into(pooled.slot.profile):
                    self._slots.rematch(pooled, profile)
                    return True
        return False


class SlotReservations:
    """Keeps the pending requests, and reserves free slots for them. Each request raises the number
    of required slots of its profile by one. If it ends without a slot, the number falls again;
    otherwise its slot keeps it raised. No request waits while a free slot could hold it."""

    def __init__(
        self,
        slots: PooledSlots,
        needs: PoolRequirements,
        *,
        late_slots_for: float,
        spread_out: bool,
    ) -> None:
        """Reserve slots of the pool *slots*, and raise the totals in *needs*.

        *late_slots_for*: seconds for which a slot for a timed-out request is still accepted.
        *spread_out*: serve requests from the least utilised TaskExecutor.
        """
        self._slots = slots
        self._needs = needs
        self._late_slots_for = late_slots_for
        self._spread_out = spread_out
        self._pending = PendingRequests()
        self._late: dict[ResourceProfile, tuple[int, float]] = {}
        """Profile -> (number of timed-out requests, time until which their slots are accepted)."""

    def __len__(self) -> int:
        return len(self._pending)

    def request(self, wanted: SlotRequests, timeout: float, now: float) -> list[SlotAllocated]:
        """Reserve free slots for these requests; requests without a fitting slot wait. Requests
        with a preferred allocation choose first, so that no other request takes a slot with their
        state.

        Raises:
            ValueError: a request is pending already.
        """
        for request in wanted.requests:
            if request.request_id in self._pending:
                raise ValueError(f"slot request {request.request_id} is pending already")
        profile = wanted.profile
        self._needs.increase(profile, len(wanted.requests))
        allocated: list[SlotAllocated] = []
        unserved = []
        for request in wanted.requests:
            preferred = self._preferred_slot(request, profile)
            if preferred is None:
                unserved.append(request)
            else:
                allocated.append(self._reserve(preferred, request.request_id, profile))
        could_be_held = self._slots.could_hold(profile)
        for request in unserved:
            near = request.preferred_task_executors
            pooled = self._slots.best_free(profile, near, self._spread_out)
            if pooled is not None:
                allocated.append(self._reserve(pooled, request.request_id, profile))
            else:
                self._pending.add(request, profile, wanted.is_batch, timeout, now, could_be_held)
        return allocated

    def serve(self, freed: Iterable[PooledSlot]) -> list[SlotAllocated]:
        """Reserve each of these free slots for the waiting request that suits it best, if there is
        one."""
        allocated = []
        for pooled in freed:
            pending = self._pending.whom_to_serve(pooled.slot, pooled.matched)
            if pending is not None:
                request_id = pending.request.request_id
                self._pending.remove(request_id)
                allocated.append(self._reserve(pooled, request_id, pending.lane.profile))
        return allocated

    def cancel(self, request_ids: Iterable[SlotRequestId]) -> None:
        """Cancel requests.  Requests that are not pending are ignored."""
        for request_id in request_ids:
            pending = self._pending.remove(request_id)
            if pending is not None:
                self._needs.decrease(pending.lane.profile, 1)

    # --- requests that end without a slot ---------------------------------------------------------

    def fail_short(self, shortages: Iterable[ResourceShortage]) -> list[SlotEvent]:
        """Fail requests for slots that will not come.
        An unfulfillable profile fails all its requests (SP-16).  An exhausted profile fails its
        streaming requests (SP-28); batch requests wait for slots to be returned."""
        failed: list[SlotEvent] = []
        for shortage in shortages:
            if shortage.unfulfillable:
                failure = SlotRequestFailure.UNFULFILLABLE
            elif shortage.exhausted:
                failure = SlotRequestFailure.NOT_ENOUGH_RESOURCES
            else:
                continue
            for pending in self._pending.of_profile(shortage.profile):
                if shortage.unfulfillable or not pending.lane.is_batch:
                    failed.append(self._fail(pending, failure, shortage.reason))
        return failed

    def fail_late(self, now: float) -> list[SlotEvent]:
        """Fail requests that have timed out (SP-14, SP-15)."""
        failed: list[SlotEvent] = []
        for pending in self._pending.timed_out(now):
            profile = pending.lane.profile
            count, _ = self._late.get(profile, (0, 0.0))
            self._late[profile] = (count + 1, now + self._late_slots_for)
            reason = (
                f"No slot{'' if profile.is_zero() else f' of {profile}'} came within "
                f"{pending.lane.timeout:g} s; the job has {len(self._slots)} slots, and "
                f"{len(self._pending)} more are wanted."
            )
            failed.append(self._fail(pending, SlotRequestFailure.TIMED_OUT, reason))
        return failed

    def fail_all(self, failure: SlotRequestFailure, reason: str) -> list[SlotEvent]:
        """Fail all requests."""
        return [self._fail(pending, failure, reason) for pending in self._pending.all()]

    def next_deadline(self) -> float:
        """Return when :meth:`fail_late` next fails a request. Infinite if another event must come
        first."""
        return self._pending.next_deadline()

    # --- slots that come and go -------------------------------------------------------------------

    def is_late_slot(self, offered: ResourceProfile, now: float) -> ResourceProfile | None:
        """Return the profile of a timed-out request that the offered slot could serve; None if
        there is none. Each timed-out request accounts for one such slot (SP-18): a returned profile
        counts as accepted and is not returned again for the same request."""
        for profile, (count, until) in tuple(self._late.items()):
            if until < now:
                del self._late[profile]
            elif profile.fits_into(offered):
                self._late[profile] = (count - 1, until)
                if count == 1:
                    del self._late[profile]
                return profile
        return None

    def slot_came(self, profile: ResourceProfile) -> None:
        """Stop the timeouts of waiting batch requests that a slot of this profile could serve later
        (SP-15)."""
        for lane in self._pending.batch_lanes():
            if lane.profile.fits_into(profile):
                lane.starved_since = inf

    def slots_went(self, now: float) -> None:
        """Start the timeout of batch requests that no slot could hold any more (SP-15)."""
        for lane in self._pending.batch_lanes():
            if lane.starved_since == inf and not self._slots.could_hold(lane.profile):
                lane.starved_since = now

    # ----------------------------------------------------------------------------------------------

    def _preferred_slot(self, request: SlotRequest, profile: ResourceProfile) -> PooledSlot | None:
        for allocation_id in request.preferred_allocations:
            pooled = self._slots.get(allocation_id)
            if pooled is not None and pooled.is_free and profile.fits_into(pooled.slot.profile):
                return pooled
        return None

    def _reserve(
        self, pooled: PooledSlot, request_id: SlotRequestId, profile: ResourceProfile
    ) -> SlotAllocated:
        self._slots.reserve(pooled, request_id)
        if pooled.matched != profile:
            self._slots.rematch(pooled, profile)
        return SlotAllocated(request_id, pooled.slot)

    def _fail(
        self, pending: PendingRequest, failure: SlotRequestFailure, reason: str
    ) -> SlotRequestFailed:
        self._pending.remove(pending.request.request_id)
        self._needs.decrease(pending.lane.profile, 1)
        return SlotRequestFailed(pending.request.request_id, failure, reason)
