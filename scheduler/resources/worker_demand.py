"""Computes how many workers are needed for slots."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.slot_index import Service, service_of
from flinkray.scheduler.shared.requirement_matching import size_of, times_it_fits
from flinkray.scheduler.shared.slots import ResourceRequirement


def workers_for(
    missing: Iterable[ResourceRequirement], worker: ResourceProfile, slot_profile: ResourceProfile
) -> int:
    """Return the number of workers needed to hold the missing slots (SM-10), without impossible
    slots. The largest slots come first, each in the first worker with room.  Workers with the same
    content are counted together, so that the time does not depend on the number of slots."""
    wanted: dict[ResourceProfile, int] = {}
    for requirement in missing:
        service = service_of(requirement.profile, worker, slot_profile)
        if service is not Service.NOT:
            taken = slot_profile if service is Service.STATIC else requirement.profile
            wanted[taken] = wanted.get(taken, 0) + requirement.count
    if not wanted:
        return 0
    opened: list[tuple[ResourceProfile, int]] = []
    """(remaining profile, number of workers with this profile)"""
    for profile in sorted(wanted, key=size_of, reverse=True):
        still = wanted[profile]
        filled: list[tuple[ResourceProfile, int]] = []
        for left, number in opened:
            each = int(min(times_it_fits(profile, left), still))
            if each == 0:
                filled.append((left, number))
                continue
            full = min(number, still // each)
            filled.append((left.reduced_by(profile.times(each)), full))
            still -= full * each
            rest = min(still, each) if full < number else 0
            if rest:
                filled.append((left.reduced_by(profile.times(rest)), 1))
                still -= rest
            unused = number - full - (1 if rest else 0)
            if unused:
                filled.append((left, unused))
        if still:
            each = int(min(times_it_fits(profile, worker), still))
            full, rest = divmod(still, each)
            filled.append((worker.reduced_by(profile.times(each)), full))
            if rest:
                filled.append((worker.reduced_by(profile.times(rest)), 1))
        opened = [(left, number) for left, number in filled if number]
    return sum(number for _, number in opened)


def redundant_workers_missing(redundant: int, slots_per_worker: int, free_slots: int) -> int:
    """Return how many further workers are needed until the slots of *redundant* workers are
    free."""
    return max(0, ceil((redundant * slots_per_worker - free_slots) / slots_per_worker))
