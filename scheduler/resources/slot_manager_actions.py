"""Defines the actions that the SlotManager asks the ResourceManager to carry out."""

from __future__ import annotations

from dataclasses import dataclass

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import SameWorkerGroup, WorkerGroupOwner


@dataclass(frozen=True, slots=True)
class StartWorkerGroup:
    """Create a placement group; answer with ``worker_group_started`` or ``worker_group_failed``."""

    request_number: int
    bundles: tuple[ResourceProfile, ...]
    slots_per_bundle: int
    owner: WorkerGroupOwner | None
    """Owner of the group; None for a shared group."""


@dataclass(frozen=True, slots=True)
class CancelWorkerGroupRequest:
    """Cancel an unanswered StartWorkerGroup.  Remove the group if it exists already."""

    request_number: int


@dataclass(frozen=True, slots=True)
class ReleaseWorkerGroup:
    """Remove a placement group and the TaskExecutors in it."""

    group_id: WorkerGroupId
    reason: str
    task_executors: tuple[ResourceID, ...] = ()
    """The group's registered TaskExecutors."""


@dataclass(frozen=True, slots=True)
class AskWhetherReleasable:
    """Ask TaskExecutors of an idle group whether they can go; answer with ``may_be_released``."""

    group_id: WorkerGroupId
    task_executors: tuple[ResourceID, ...]


@dataclass(frozen=True, slots=True)
class StartTaskExecutor:
    """Start a TaskExecutor in a bundle after *delay* seconds, unless the group is released before.
    If it cannot be started, call ``task_executor_start_failed`` of the SlotManager."""

    group_id: WorkerGroupId
    bundle_index: int
    profile: ResourceProfile
    number_of_slots: int
    delay: float


@dataclass(frozen=True, slots=True)
class StopTaskExecutor:
    """Stop a TaskExecutor that is not wanted, for example one of a released group."""

    resource_id: ResourceID
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """Request a slot from a TaskExecutor.
    Answer with ``slot_request_succeeded`` or ``slot_request_failed``."""

    slot_id: SlotID
    """Slot to allocate; index -1 means a dynamic slot of the profile."""
    resource_id: ResourceID
    job_id: JobID
    allocation_id: AllocationID
    profile: ResourceProfile
    job_master_address: str
    constraint: SameWorkerGroup | None = None
    """Constraint of the requirement for which the slot is requested; None if it has none."""


@dataclass(frozen=True, slots=True)
class ReclaimSlot:
    """Ask a TaskExecutor to free a slot whose job has ended or does not want the slot any more."""

    slot_id: SlotID
    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class FreeInactiveSlots:
    """Ask a TaskExecutor to free the slots that are allocated to the job but that its JobMaster has
    not accepted (SM-18)."""

    resource_id: ResourceID
    job_id: JobID
    reason: str


@dataclass(frozen=True, slots=True)
class NotifyAllocationFailure:
    """Tell a JobMaster that an allocated slot is lost (SM-09)."""

    job_id: JobID
    resource_id: ResourceID
    allocation_id: AllocationID
    cause: str


SlotManagerAction = (
    StartWorkerGroup
    | CancelWorkerGroupRequest
    | ReleaseWorkerGroup
    | AskWhetherReleasable
    | StartTaskExecutor
    | StopTaskExecutor
    | RequestSlot
    | ReclaimSlot
    | FreeInactiveSlots
    | NotifyAllocationFailure
)
