"""Matches free slots with a job's slot requirements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import floor, inf

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import ResourceRequirement


def size_of(profile: ResourceProfile) -> tuple[float, int, float, tuple[tuple[str, float], ...]]:
    """Return a sort key that orders profiles from small to large, so that choices are
    deterministic."""
    extended = tuple(sorted(profile.extended.items()))
    return sum(amount for _, amount in extended), profile.memory, profile.cpu, extended


def times_it_fits(profile: ResourceProfile, into: ResourceProfile) -> float:
    """Return how many slots of *profile* fit into *into*; infinite for a zero profile."""
    wanted, there = profile.to_ray_resources(), into.to_ray_resources()
    # A hundredth of Ray's granularity makes up for binary fractions: 0.3 / 0.1 is 3 slots.
    ratios = [(there.get(name, 0.0) + 1e-6) / amount for name, amount in wanted.items()]
    return min((floor(ratio) for ratio in ratios), default=inf)


def missing_slots(
    requirements: Iterable[ResourceRequirement], slots: Mapping[ResourceProfile, int]
) -> tuple[ResourceRequirement, ...]:
    """Return the requirements that the slots do not fulfil, largest profiles first. *slots*:
    profile -> number of slots.

    Each requirement, the largest first, gets the smallest slots that hold it.  The result is exact
    if the profiles are ordered by size; for incomparable profiles (much CPU and little memory, or
    the reverse) a better matching may exist.  The time is proportional to the number of different
    profiles.
    """
    free = dict(slots)
    smallest_first = sorted(free, key=size_of)
    missing = []
    for requirement in sorted(requirements, key=lambda r: size_of(r.profile), reverse=True):
        still = requirement.count
        for profile in smallest_first:
            if requirement.profile.fits_into(profile):
                taken = min(still, free[profile])
                free[profile] -= taken
                still -= taken
        if still > 0:
            missing.append(replace(requirement, count=still))
    return tuple(missing)
