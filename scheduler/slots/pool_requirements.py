"""Counts the slots of each profile that a SlotPool requires, and finds missing and excess slots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf

from flinkray.core.ids import AllocationID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import ResourceRequirement, size_of
from flinkray.scheduler.slots.pooled_slots import PooledSlots


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
