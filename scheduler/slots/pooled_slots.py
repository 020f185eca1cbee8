"""Indexes the slots in a SlotPool by TaskExecutor, by profile and by matched profile."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, size_of


@dataclass(slots=True, eq=False)
class PooledSlot:
    """A slot in the pool, and the request that uses it. It is matched to a required profile, whose
    requirement it fulfils and which may be smaller than its own profile. Only :class:`PooledSlots`
    changes it."""

    slot: AllocatedSlot
    matched: ResourceProfile
    """The required profile that the slot fulfils; for an excess slot the profile it fits best."""
    idle_since: float
    """Monotonic seconds when the slot became idle; valid while it is free."""
    request_id: SlotRequestId | None = None
    """Id of the request for which the slot is reserved; None if it is free."""

    @property
    def is_free(self) -> bool:
        return self.request_id is None


@dataclass(frozen=True, slots=True)
class FreeSlotInfo:
    """A free slot, and the fraction of its TaskExecutor's slots in this pool that are in use."""

    slot: AllocatedSlot
    task_executor_utilization: float


@dataclass(slots=True, eq=False)
class _Host:
    """A TaskExecutor on which the pool has slots."""

    order: int
    slots: dict[AllocationID, PooledSlot] = field(default_factory=dict)
    by_index: dict[int, PooledSlot] = field(default_factory=dict)
    number_used: int = 0

    @property
    def utilization(self) -> float:
        return self.number_used / len(self.slots) if self.slots else 0.0


# OrderedDicts, because a plain dict finds its first entry slowly after removals at the front.
_FreeByHost = OrderedDict[ResourceID, dict[AllocationID, PooledSlot]]
_Idle = OrderedDict[AllocationID, PooledSlot]


class PooledSlots:
    """Indexes all slots of the pool, and chooses free slots for requests. Every change and query
    takes constant time, apart from the number of different profiles (and a logarithm for the search
    for the least utilised TaskExecutor)."""

    def __init__(self) -> None:
        self._slots: dict[AllocationID, PooledSlot] = {}
        self._hosts: dict[ResourceID, _Host] = {}
        self._hosts_seen = 0
        self._free: dict[ResourceProfile, _FreeByHost] = {}
        """Free slots by their own profile, then by TaskExecutor."""
        self._idle: defaultdict[ResourceProfile, _Idle] = defaultdict(OrderedDict)
        """Free slots by matched profile, longest idle first."""
        self._fulfilled: defaultdict[ResourceProfile, int] = defaultdict(int)
        self._used: defaultdict[ResourceProfile, Counter[ResourceProfile]] = defaultdict(Counter)
        """Matched profile of used slots -> number of these slots by own profile."""
        self._unused: defaultdict[ResourceProfile, Counter[ResourceProfile]] = defaultdict(Counter)
        self._profiles: defaultdict[ResourceProfile, int] = defaultdict(int)
        self._by_utilization: dict[ResourceProfile, list[tuple[float, int, ResourceID]]] = {}
        """Heaps of (utilisation, order, TaskExecutor) by profile; may contain outdated entries."""

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, allocation_id: AllocationID) -> PooledSlot | None:
        return self._slots.get(allocation_id)

    def all(self) -> Iterable[PooledSlot]:
        """Return all slots, oldest first."""
        return self._slots.values()

    def on(self, resource_id: ResourceID) -> tuple[PooledSlot, ...]:
        """Return the slots of one TaskExecutor, oldest first."""
        host = self._hosts.get(resource_id)
        return () if host is None else tuple(host.slots.values())

    def at(self, resource_id: ResourceID, slot_index: int) -> PooledSlot | None:
        host = self._hosts.get(resource_id)
        return None if host is None else host.by_index.get(slot_index)

    def fulfilled(self, profile: ResourceProfile) -> int:
        """Return how many slots count towards the job's requirement of this profile."""
        return self._fulfilled.get(profile, 0)

    def fulfilled_profiles(self) -> list[ResourceProfile]:
        return [profile for profile, number in self._fulfilled.items() if number]

    def own_profiles(self, matched: ResourceProfile) -> Iterator[tuple[ResourceProfile, int]]:
        """Yield (own profile, number) of the slots that fulfil the job's requirement of *matched*,
        used slots first. Their own profile may be larger than *matched*."""
        for counters in (self._used, self._unused):
            if matched in counters:
                yield from counters[matched].items()

    def could_hold(self, profile: ResourceProfile) -> bool:
        """Return whether any slot, used or not, is large enough for the profile (SP-15)."""
        return any(n and profile.fits_into(held) for held, n in self._profiles.items())

    def free_slots(self) -> tuple[FreeSlotInfo, ...]:
        """Return all free slots, each with the fraction of its TaskExecutor's slots in this pool
        that are in use (SP-11)."""
        return tuple(
            FreeSlotInfo(pooled.slot, self._hosts[pooled.slot.location.resource_id].utilization)
            for pooled in self._slots.values()
            if pooled.is_free
        )

    def idle(self, matched: ResourceProfile) -> OrderedDict[AllocationID, PooledSlot]:
        """Return the free slots that are matched to a profile, the longest idle first."""
        return self._idle.get(matched, OrderedDict())

    # changes

    def add(self, pooled: PooledSlot) -> None:
        """Add a free slot."""
        slot = pooled.slot
        self._slots[slot.allocation_id] = pooled
        host = self._hosts.get(slot.location.resource_id)
        if host is None:
            self._hosts_seen += 1
            host = self._hosts[slot.location.resource_id] = _Host(self._hosts_seen)
        host.slots[slot.allocation_id] = pooled
        host.by_index[slot.slot_index] = pooled
        self._fulfilled[pooled.matched] += 1
        self._profiles[slot.profile] += 1
        self._put_free(pooled)

    def remove(self, pooled: PooledSlot) -> None:
        """Remove a slot from the pool, used or free, for example because it is lost."""
        slot = pooled.slot
        host = self._hosts[slot.location.resource_id]
        if pooled.is_free:
            self._take_free(pooled)
        else:
            self._used[pooled.matched][slot.profile] -= 1
            host.number_used -= 1
        del self._slots[slot.allocation_id]
        del host.slots[slot.allocation_id]
        del host.by_index[slot.slot_index]
        self._fulfilled[pooled.matched] -= 1
        self._profiles[slot.profile] -= 1
        if host.slots:
            self._utilization_changed(slot.location.resource_id)
        else:
            del self._hosts[slot.location.resource_id]

    def rematch(self, pooled: PooledSlot, profile: ResourceProfile) -> None:
        """Let a slot fulfil the job's requirement of another profile than before."""
        own = pooled.slot.profile
        if pooled.is_free:
            del self._idle[pooled.matched][pooled.slot.allocation_id]
            self._idle[profile][pooled.slot.allocation_id] = pooled
            self._unused[pooled.matched][own] -= 1
            self._unused[profile][own] += 1
        else:
            self._used[pooled.matched][own] -= 1
            self._used[profile][own] += 1
        self._fulfilled[pooled.matched] -= 1
        self._fulfilled[profile] += 1
        pooled.matched = profile

    def reserve(self, pooled: PooledSlot, request_id: SlotRequestId) -> None:
        """Reserve a free slot for a request."""
        self._take_free(pooled)
        pooled.request_id = request_id
        self._used[pooled.matched][pooled.slot.profile] += 1
        resource_id = pooled.slot.location.resource_id
        self._hosts[resource_id].number_used += 1
        self._utilization_changed(resource_id)

    def free(self, pooled: PooledSlot, now: float) -> None:
        """Mark a used slot as free at *now*. It still fulfils the same required profile (SP-24)."""
        pooled.request_id, pooled.idle_since = None, now
        self._used[pooled.matched][pooled.slot.profile] -= 1
        self._hosts[pooled.slot.location.resource_id].number_used -= 1
        self._put_free(pooled)

    # choices

    def best_free(
        self, profile: ResourceProfile, near: tuple[ResourceID, ...], spread_out: bool
    ) -> PooledSlot | None:
        """Choose a free slot for a request of this profile; None if none is large enough. The
        smallest slot on a TaskExecutor of *near* is preferred. Without one, the smallest slot is
        chosen; of equally large slots, with *spread_out*, one on the least utilised TaskExecutor.
        """
        fitting = sorted(
            (held for held, hosts in self._free.items() if hosts and profile.fits_into(held)),
            key=size_of,
        )
        for held in fitting:
            for resource_id in near:
                if resource_id in self._free[held]:
                    return next(iter(self._free[held][resource_id].values()))
        for held in fitting:
            hosts = self._free[held]
            resource_id = self._least_utilized(held) if spread_out else next(iter(hosts))
            return next(iter(hosts[resource_id].values()))
        return None

    def _least_utilized(self, profile: ResourceProfile) -> ResourceID:
        heap = self._by_utilization[profile]
        while True:
            utilization, _, resource_id = heap[0]
            has_free = resource_id in self._free[profile]
            if has_free and self._hosts[resource_id].utilization == utilization:
                return resource_id
            heappop(heap)

    def _utilization_changed(self, resource_id: ResourceID) -> None:
        """Update the heaps after the utilisation of a TaskExecutor has changed. Concerns the heap
        of each profile with free slots on it."""
        host = self._hosts[resource_id]
        for profile, hosts in self._free.items():
            if resource_id not in hosts:
                continue
            heap = self._by_utilization.setdefault(profile, [])
            if len(heap) > 64 + 4 * len(self._hosts):  # mostly outdated entries
                heap.clear()
                for other in hosts:
                    known = self._hosts[other]
                    heappush(heap, (known.utilization, known.order, other))
            heappush(heap, (host.utilization, host.order, resource_id))

    def _put_free(self, pooled: PooledSlot) -> None:
        slot = pooled.slot
        resource_id = slot.location.resource_id
        hosts = self._free.setdefault(slot.profile, OrderedDict())
        hosts.setdefault(resource_id, {})[slot.allocation_id] = pooled
        self._idle[pooled.matched][slot.allocation_id] = pooled
        self._unused[pooled.matched][slot.profile] += 1
        self._utilization_changed(resource_id)

    def _take_free(self, pooled: PooledSlot) -> None:
        slot = pooled.slot
        hosts = self._free[slot.profile]
        free_here = hosts[slot.location.resource_id]
        del free_here[slot.allocation_id]
        if not free_here:
            del hosts[slot.location.resource_id]
        del self._idle[pooled.matched][slot.allocation_id]
        self._unused[pooled.matched][slot.profile] -= 1
