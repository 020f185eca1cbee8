"""Keeps the slot requests that wait, and chooses which request gets a slot."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from math import inf

from flinkray.core.ids import SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, size_of
from flinkray.scheduler.slots.slot_requests import SlotRequest


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
