"""The books of the SlotManager: jobs, TaskExecutors and groups, and the changes that keep them in
line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.slot_manager_actions import (
    CancelWorkerGroupRequest,
    NotifyAllocationFailure,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
)
from flinkray.scheduler.slots import ResourceRequirements, profile_of_slot
from flinkray.scheduler.worker_groups import (
    Bundle,
    BundleState,
    GroupBooks,
    GroupRequest,
    WorkerGroup,
    back_off,
)
from flinkray.scheduler.workers import ManagedSlot, SlotState, Worker


@dataclass(frozen=True, slots=True)
class SlotManagerSettings:
    """What does not change; durations in seconds."""

    shared_worker_profile: ResourceProfile
    shared_worker_slots: int
    new_allocation_id: Callable[[], AllocationID]
    idle_timeout: float
    slot_request_timeout: float
    task_executor_start_timeout: float

    @property
    def shared_slot_profile(self) -> ResourceProfile:
        """The profile of one slot of a shared worker."""
        return profile_of_slot(self.shared_worker_profile, self.shared_worker_slots)


@dataclass(slots=True)
class SlotBooks:
    """All that is known.  Every method that changes something appends what follows to *actions*."""

    settings: SlotManagerSettings
    jobs: dict[JobID, ResourceRequirements] = field(default_factory=dict)
    workers: dict[ResourceID, Worker] = field(default_factory=dict)
    groups: GroupBooks = field(default_factory=GroupBooks)

    def all_slots(self) -> Iterator[ManagedSlot]:
        for worker in self.workers.values():
            yield from worker.slots.values()

    def slots_of_job(self, job_id: JobID) -> list[ManagedSlot]:
        """Requested and allocated slots of a job, wherever they are."""
        return [slot for slot in self.all_slots() if slot.job_id == job_id]

    def workers_of(self, group: WorkerGroup) -> list[Worker]:
        """Registered TaskExecutors of a group, by bundle."""
        bundles = sorted(group.bundles.items())
        return [self.workers[b.resource_id] for _, b in bundles if b.resource_id in self.workers]

    def bundle_of(self, worker: Worker) -> Bundle | None:
        """The bundle that holds the TaskExecutor; None: its group is gone."""
        group = self.groups.started.get(worker.location.worker_group)
        bundle = group.bundles.get(worker.location.bundle_index) if group else None
        if bundle is None or bundle.resource_id != worker.location.resource_id:
            return None
        return bundle

    def request_group(
        self,
        profiles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        job_id: JobID | None,
        now: float,
        actions: list[SlotManagerAction],
    ) -> None:
        request = self.groups.new_request(profiles, slots_per_bundle, job_id, now)
        actions.append(StartWorkerGroup(request.number, profiles, slots_per_bundle, job_id))

    def cancel_request(self, request: GroupRequest, actions: list[SlotManagerAction]) -> None:
        del self.groups.requests[request.number]
        actions.append(CancelWorkerGroupRequest(request.number))

    def start_task_executor(
        self, group: WorkerGroup, bundle: Bundle, now: float, actions: list[SlotManagerAction]
    ) -> None:
        delay = back_off(bundle.failures)
        bundle.starting(now + delay + self.settings.task_executor_start_timeout)
        actions.append(
            StartTaskExecutor(
                group.group_id, bundle.index, bundle.profile, group.slots_per_bundle, delay
            )
        )

    def release_group(
        self, group: WorkerGroup, reason: str, now: float, actions: list[SlotManagerAction]
    ) -> None:
        """Remove a group with all its TaskExecutors, whose allocations fail."""
        for worker in self.workers_of(group):
            self.drop_worker(worker, reason, now, actions)
        del self.groups.started[group.group_id]
        self.groups.released[group.group_id] = None
        actions.append(ReleaseWorkerGroup(group.group_id, reason))

    def drop_worker(
        self, worker: Worker, cause: str, now: float, actions: list[SlotManagerAction]
    ) -> None:
        """Remove a TaskExecutor: one notice per allocated slot, to the right job (SM-09)."""
        location = worker.location
        bundle = self.bundle_of(worker)
        if bundle is not None:
            bundle.emptied(cause, now - worker.registered_at)
        del self.workers[location.resource_id]
        text = f"{location.resource_id} (bundle {location.bundle_index} on {location.node_ip})"
        for _, slot in sorted(worker.slots.items()):
            if slot.state is SlotState.ALLOCATED and slot.job_id in self.jobs:
                assert slot.job_id is not None
                assert slot.allocation_id is not None
                actions.append(
                    NotifyAllocationFailure(
                        slot.job_id, location.resource_id, slot.allocation_id, f"{text}: {cause}"
                    )
                )

    def request_slot(
        self,
        slot: ManagedSlot,
        requirements: ResourceRequirements,
        now: float,
        actions: list[SlotManagerAction],
    ) -> None:
        allocation_id = self.settings.new_allocation_id()
        slot.request(requirements.job_id, allocation_id, now)
        actions.append(
            RequestSlot(
                slot.slot_id,
                slot.slot_id.resource_id,
                requirements.job_id,
                allocation_id,
                slot.profile,
                requirements.job_master_address,
            )
        )

    def is_unused(self, group: WorkerGroup) -> bool:
        """Whether no slot of the group is requested or allocated."""
        return all(worker.is_unused for worker in self.workers_of(group))

    def has_live_bundle(self, group: WorkerGroup) -> bool:
        return group.count(BundleState.EMPTY) < len(group.bundles)
