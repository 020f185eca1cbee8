"""What the SlotManager asks the ResourceManager to do."""

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
    """Whose own the group is; None: shared."""


@dataclass(frozen=True, slots=True)
class CancelWorkerGroupRequest:
    """Forget a StartWorkerGroup that has not been answered; remove the group if it is there by
    now."""

    request_number: int


@dataclass(frozen=True, slots=True)
class ReleaseWorkerGroup:
    """Remove a placement group and the TaskExecutors in it."""

    group_id: WorkerGroupId
    reason: str
    task_executors: tuple[ResourceID, ...] = ()
    """Those that were registered."""


@dataclass(frozen=True, slots=True)
class AskWhetherReleasable:
    """Ask TaskExecutors of an idle group whether they can go; answer with ``may_be_released``."""

    group_id: WorkerGroupId
    task_executors: tuple[ResourceID, ...]


@dataclass(frozen=True, slots=True)
class StartTaskExecutor:
    """Start a TaskExecutor in a bundle after *delay* seconds (0: at once), unless the group is
    released before.

    When it cannot be started: ``task_executor_start_failed``.
    """

    group_id: WorkerGroupId
    bundle_index: int
    profile: ResourceProfile
    number_of_slots: int
    delay: float


@dataclass(frozen=True, slots=True)
class StopTaskExecutor:
    """End a TaskExecutor that nobody wants (it registered from a group that was released)."""

    resource_id: ResourceID
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestSlot:
    """Ask a TaskExecutor for a slot; answer with ``slot_request_succeeded`` or
    ``slot_request_failed``."""

    slot_id: SlotID
    """With index -1: a dynamic slot of that profile."""
    resource_id: ResourceID
    job_id: JobID
    allocation_id: AllocationID
    profile: ResourceProfile
    job_master_address: str
    constraint: SameWorkerGroup | None = None
    """Of the requirement that it is asked for."""


@dataclass(frozen=True, slots=True)
class ReclaimSlot:
    """Ask a TaskExecutor to free a slot whose job ended or does not want it any more."""

    slot_id: SlotID
    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class FreeInactiveSlots:
    """Ask a TaskExecutor to free the slots of a job that the job does not use (SM-18)."""

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
