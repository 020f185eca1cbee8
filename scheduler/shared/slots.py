"""Slots, offers and requirements: what SlotPool, SlotManager and TaskExecutors speak of."""

from __future__ import annotations

from math import floor

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.message import message
from flinkray.core.resources import ResourceProfile


@message
class SameWorkerGroup:
    """A constraint on slots: they are the bundles 0 to ``size - 1`` of one worker group, which is
    the job's own and has no others."""

    name: str
    """Tells the groups of a job apart: the name of the slot-sharing group."""
    size: int

    def __post_init__(self) -> None:
        if not self.name or self.size < 1:
            raise ValueError(f"a worker group needs a name and at least one bundle: {self}")


@message
class ResourceRequirement:
    """``count`` slots of a profile; with a constraint ``count`` is its size."""

    profile: ResourceProfile
    count: int
    constraint: SameWorkerGroup | None = None


@message
class ResourceRequirements:
    """All the slots that a job wants now (a total, not a difference); empty: none any more."""

    job_id: JobID
    job_master_address: str
    requirements: tuple[ResourceRequirement, ...]


@message
class WorkerGroupOwner:
    """Whose own a worker group is: a job's, for the constraint of that name."""

    job_id: JobID
    name: str


@message
class WorkerLocation:
    """Where a TaskExecutor is: its process, its node, its bundle."""

    resource_id: ResourceID
    address: str
    node_id: str
    node_ip: str
    pid: int
    worker_group: WorkerGroupId
    bundle_index: int


@message
class SlotStatus:
    """One slot in a TaskExecutor's report; a free one has neither job nor allocation."""

    slot_id: SlotID
    profile: ResourceProfile
    job_id: JobID | None = None
    allocation_id: AllocationID | None = None
    is_dynamic: bool = False
    """Whether it is one of those that are cut to measure and gone when they are freed."""


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
    """What the slot was asked for with."""


@message
class SlotOfferAnswer:
    """Which of the offered slots the job took; the others are free again."""

    accepted: tuple[AllocationID, ...]


@message
class AllocatedSlot:
    """A slot as the JobMaster holds it."""

    allocation_id: AllocationID
    slot_index: int
    profile: ResourceProfile
    location: WorkerLocation


@message
class ResourceShortage:
    """Why slots are missing: the answer to "why am I pending?"."""

    missing: int
    profile: ResourceProfile
    reason: str
    """Sentences: what is missing, of what profile, what the cluster has, what Ray says."""
    unfulfillable: bool
    """True: no node of the cluster could ever hold one such slot."""
    cluster_total: ResourceProfile
    cluster_available: ResourceProfile
    largest_node: ResourceProfile
    exhausted: bool = False
    """True: no further worker may be started; only slots that other jobs give back can help."""
    constraint: SameWorkerGroup | None = None
    """Of the requirement that is not fulfilled."""
    awaits_room: bool = False
    """True: a worker is asked for, and no node has room for it now; slots that anybody gives back
    can help."""


def profile_of_slot(total: ResourceProfile, number_of_slots: int) -> ResourceProfile:
    """The profile of each of a TaskExecutor's slots: equal parts of its total, rounded down."""

    def part(amount: float) -> float:
        # To Ray's granularity, so that the parts never sum up to more than the whole.
        return floor(round(amount / number_of_slots * 10_000, 3)) / 10_000

    extended = {name: part(amount) for name, amount in total.extended.items()}
    return ResourceProfile(part(total.cpu), total.memory // number_of_slots, extended)
