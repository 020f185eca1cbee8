"""Which slots fulfil which requirements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.slots import ResourceRequirement


@dataclass(frozen=True, slots=True)
class Matching:
    """Slots held against requirements."""

    matched: tuple[bool, ...]
    """Per slot: whether a requirement needs it."""
    missing: tuple[ResourceRequirement, ...]
    """What no slot fulfils; counts are positive, largest profiles first."""

    @property
    def number_missing(self) -> int:
        return sum(requirement.count for requirement in self.missing)


def size_of(profile: ResourceProfile) -> tuple[float, int, float, tuple[tuple[str, float], ...]]:
    """A total order of profiles from small to large, for choices that must not depend on chance."""
    extended = tuple(sorted(profile.extended.items()))
    return sum(amount for _, amount in extended), profile.memory, profile.cpu, extended


def match_slots(
    requirements: Iterable[ResourceRequirement], slots: Sequence[ResourceProfile]
) -> Matching:
    """Give each requirement, the largest first, the smallest slots that hold it.

    Exact whenever the profiles are ordered by size; where they are not comparable (much CPU and
    little memory against the reverse) a better matching may exist.
    """
    free = sorted(range(len(slots)), key=lambda i: size_of(slots[i]))
    matched = [False] * len(slots)
    missing = []
    for requirement in sorted(requirements, key=lambda r: size_of(r.profile), reverse=True):
        still = requirement.count
        remaining = []
        for index in free:
            if still > 0 and requirement.profile.fits_into(slots[index]):
                matched[index] = True
                still -= 1
            else:
                remaining.append(index)
        free = remaining
        if still > 0:
            missing.append(ResourceRequirement(requirement.profile, still))
    return Matching(tuple(matched), tuple(missing))
