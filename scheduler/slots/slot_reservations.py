"""Reserves free slots of a SlotPool for slot requests, and fails requests that wait too long."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from flinkray.core.ids import SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import ResourceShortage
from flinkray.scheduler.slots.pending_slot_requests import PendingRequest, PendingRequests
from flinkray.scheduler.slots.pool_requirements import PoolRequirements
from flinkray.scheduler.slots.pooled_slots import PooledSlot, PooledSlots
from flinkray.scheduler.slots.slot_requests import (
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
)


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
