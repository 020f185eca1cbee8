"""Defines slots, offers and requirements, as used by SlotPool, SlotManager and TaskExecutors, and
matches free slots with requirements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import floor, inf

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile


@message
class SameWorkerGroup:
    """Requires that the slots are bundles 0 to ``size - 1`` of one worker group (a Ray placement
    group). The group belongs to the job and has no other bundles."""

    name: str
    """Name of the slot-sharing group, which distinguishes the worker groups of a job."""
    size: int

    def __post_init__(self) -> None:
        if not self.name or self.size < 1:
            raise ValueError(f"a worker group needs a name and at least one bundle: {self}")


@message
class ResourceRequirement:
    """States that a job needs ``count`` slots of a profile. With a constraint, ``count`` equals the
    constraint's size."""

    profile: ResourceProfile
    count: int
    constraint: SameWorkerGroup | None = None


@message
class ResourceRequirements:
    """All slots that a job wants now (a total, not a difference); empty if the job wants none."""

    job_id: JobID
    job_master_address: str
    requirements: tuple[ResourceRequirement, ...]


@message
class WorkerGroupOwner:
    """Identifies the owner of a worker group: a job, and the name in the job's SameWorkerGroup
    constraint."""

    job_id: JobID
    name: str


@message
class WorkerLocation:
    """Location of a TaskExecutor: its process, its node and its bundle."""

    resource_id: ResourceID
    address: str
    node_id: str
    node_ip: str
    pid: int
    worker_group: WorkerGroupId
    bundle_index: int


@message
class SlotStatus:
    """One slot in a TaskExecutor's report; a free slot has neither job nor allocation."""

    slot_id: SlotID
    profile: ResourceProfile
    job_id: JobID | None = None
    allocation_id: AllocationID | None = None
    is_dynamic: bool = False
    """Whether the slot was created for a request and disappears when it is freed."""


@message
class SlotReport:
    """All slots of a TaskExecutor."""

    slots: tuple[SlotStatus, ...]


@message
class SlotOffer:
    """A TaskExecutor offers a slot that it has allocated for a job."""

    allocation_id: AllocationID
    slot_index: int
    profile: ResourceProfile
    constraint: SameWorkerGroup | None = None
    """Constraint with which the slot was requested; None if there was none."""


@message
class SlotOfferAnswer:
    """Offered slots that the job accepted; the other offered slots are free again."""

    accepted: tuple[AllocationID, ...]


@message
class AllocatedSlot:
    """An allocated slot and the location of its TaskExecutor, as the JobMaster stores it."""

    allocation_id: AllocationID
    slot_index: int
    profile: ResourceProfile
    location: WorkerLocation


@message
class ResourceShortage:
    """Explains to users why a job waits for slots: how many are missing, and why."""

    missing: int
    profile: ResourceProfile
    reason: str
    """Sentences: what is missing, of which profile, what the cluster has, what Ray says."""
    unfulfillable: bool
    """Whether no node of the cluster could ever hold such a slot."""
    cluster_total: ResourceProfile
    cluster_available: ResourceProfile
    largest_node: ResourceProfile
    exhausted: bool = False
    """Whether no further worker may be started; then only slots that other jobs free can help."""
    constraint: SameWorkerGroup | None = None
    """Constraint of the requirement that is not fulfilled; None if it has none."""
    awaits_room: bool = False
    """Whether a requested worker finds no room on any node; slots that are freed can help."""


def profile_of_slot(total: ResourceProfile, number_of_slots: int) -> ResourceProfile:
    """Return the profile of each slot when a TaskExecutor's total is divided into equal slots.
    Amounts are rounded down."""

    def part(amount: float) -> float:
        # Rounded to Ray's granularity, so that the parts never exceed the total.
        return floor(round(amount / number_of_slots * 10_000, 3)) / 10_000

    extended = {name: part(amount) for name, amount in total.extended.items()}
    return ResourceProfile(part(total.cpu), total.memory // number_of_slots, extended)


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
