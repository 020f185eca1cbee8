"""The tracker of the SlotManager: jobs, TaskExecutors and groups, and the changes that keep them in
line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.core.ids import AllocationID, JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.blocklist import Blocklist
from flinkray.scheduler.resources.slot_index import SlotIndex
from flinkray.scheduler.resources.slot_manager_actions import (
    CancelWorkerGroupRequest,
    NotifyAllocationFailure,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
)
from flinkray.scheduler.resources.start_rate import StartWorkerFailureRate
from flinkray.scheduler.resources.timetable import Timetable
from flinkray.scheduler.resources.worker_groups import (
    ROOM_PATIENCE,
    Bundle,
    BundleState,
    GroupBooks,
    GroupRequest,
    WorkerGroup,
    back_off,
)
from flinkray.scheduler.resources.workers import ManagedSlot, SlotState, Worker
from flinkray.scheduler.shared.requirement_matching import missing_slots
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    WorkerGroupOwner,
    profile_of_slot,
)

RELEASED_GROUP_MEMORY = 600.0
"""Seconds for which a released group is known as such.  It is gone from Ray long before, and so are
its TaskExecutors; one that registers still later is stopped with the idle ones."""


@dataclass(frozen=True, slots=True)
class SlotManagerSettings:
    """What does not change; durations in seconds."""

    shared_worker_profile: ResourceProfile
    shared_worker_slots: int
    new_allocation_id: Callable[[], AllocationID]
    idle_timeout: float = 30.0
    slot_request_timeout: float = 10.0
    task_executor_start_timeout: float = 60.0
    """A TaskExecutor that has been started and not registered is given up after it."""
    previous_worker_timeout: float = 60.0
    """The same for one that an earlier ResourceManager has started."""
    spread_out: bool = False
    """Whether slots are given from the least used worker instead of the fullest."""
    max_slots: int | None = None
    """No worker is started beyond so many static slots in all; None: as many as there is room."""
    redundant_workers: int = 0
    """So many workers' slots are kept free while jobs run, for when a worker is lost."""
    max_start_failures_per_minute: float = 10.0
    start_retry_interval: float = 3.0

    @property
    def shared_slot_profile(self) -> ResourceProfile:
        """The profile of one slot of a shared worker."""
        return profile_of_slot(self.shared_worker_profile, self.shared_worker_slots)


class ResourceTracker:
    """All that is known.  Every method that changes something appends what follows to *actions* and
    notes which jobs and groups have to be looked at."""

    def __init__(self, settings: SlotManagerSettings) -> None:
        self.settings = settings
        self.jobs: dict[JobID, ResourceRequirements] = {}
        self.order: dict[JobID, int] = {}
        """In which jobs are served: as they were first heard of."""
        self.workers: dict[ResourceID, Worker] = {}
        self.groups = GroupBooks()
        self.index = SlotIndex(settings.spread_out)
        self.timetable = Timetable()
        self.blocklist = Blocklist()
        self.start_rate = StartWorkerFailureRate(
            settings.max_start_failures_per_minute, settings.start_retry_interval
        )
        self.fail_unfulfillable = True
        """False: nothing is called impossible yet, workers may still be coming (RM-09, SM-14)."""
        self.short: dict[JobID, tuple[ResourceRequirement, ...]] = {}
        """Jobs that miss slots, and which; as of the last check."""
        self.exhausted: set[tuple[JobID, WorkerGroupOwner | None]] = set()
        """For whom no worker may be started any more: for a job's own group, or (None) no shared
        one."""
        self.to_check: dict[JobID, None] = {}
        """Jobs whose requirements or slots have changed since the last check."""
        self.to_look_after: dict[WorkerGroupId, None] = {}
        """Groups that may have become needed, or not needed any more."""
        self.workers_to_count = True
        """Whether more or fewer shared workers may be wanted than at the last check."""
        self.waits_for_shared_workers = False
        """Whether shared workers that are being started are wanted; as of the last check."""
        self.users_of_shared_workers: set[JobID] = set()
        """Jobs that require slots of shared workers."""
        self.bundles_wanted: dict[WorkerGroupOwner, tuple[ResourceProfile, ...]] = {}
        """Of the worker groups that jobs require for their own."""
        self._next_number = 0

    # --- jobs -------------------------------------------------------------------------------------

    def set_requirements(self, requirements: ResourceRequirements) -> None:
        job_id = requirements.job_id
        self.forget_requirements(job_id)
        self.jobs[job_id] = requirements
        self.order.setdefault(job_id, self.next_number())
        self.to_check[job_id] = None
        for requirement in requirements.requirements:
            owner = owner_of(job_id, requirement)
            if owner is None:
                self.users_of_shared_workers.add(job_id)
            else:
                self.bundles_wanted[owner] = (requirement.profile,) * requirement.count

    def forget_requirements(self, job_id: JobID) -> None:
        """The job wants nothing; its place among the jobs is kept."""
        requirements = self.jobs.pop(job_id, None)
        if requirements is not None:
            self.workers_to_count = True
            for requirement in requirements.requirements:
                owner = owner_of(job_id, requirement)
                if owner is not None:
                    self.bundles_wanted.pop(owner, None)
                    self.exhausted.discard((job_id, owner))
        for owner in self.groups.owners_of_job(job_id):
            group = self.groups.of_owner(owner)
            if group is not None:
                self.to_look_after[group.group_id] = None
        self.short.pop(job_id, None)
        self.exhausted.discard((job_id, None))
        self.users_of_shared_workers.discard(job_id)

    def forget_failures(self, job_id: JobID) -> None:
        """Nothing is known against another try to start worker groups of the job's own."""
        for owner in [o for o in self.groups.failures if o is not None and o.job_id == job_id]:
            del self.groups.failures[owner]
            self.timetable.remove(("retry", owner))

    # --- questions --------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._next_number += 1
        return self._next_number

    @property
    def has_changes(self) -> bool:
        """Whether a requirement check has something to look at."""
        return bool(
            self.to_check
            or self.to_look_after
            or self.workers_to_count
            or (self.index.has_grown and self.short)
        )

    def missing(self, requirements: ResourceRequirements) -> tuple[ResourceRequirement, ...]:
        """What the job has neither been given nor is being given, of its own groups and of shared
        workers."""
        job_id = requirements.job_id
        shared = [r for r in requirements.requirements if r.constraint is None]
        missing = missing_slots(shared, self.index.counts(job_id, None))
        for requirement in requirements.requirements:
            owner = owner_of(job_id, requirement)
            if owner is not None:
                missing += missing_slots((requirement,), self.index.counts(job_id, owner))
        return missing

    def workers_of(self, group: WorkerGroup) -> list[Worker]:
        """Registered TaskExecutors of a group, by bundle."""
        bundles = sorted(group.bundles.items())
        return [self.workers[b.resource_id] for _, b in bundles if b.resource_id in self.workers]

    def group_of(self, worker: Worker) -> WorkerGroup | None:
        """None: its group is gone."""
        group = self.groups.started.get(worker.location.worker_group)
        bundle = group.bundles.get(worker.location.bundle_index) if group else None
        if bundle is None or bundle.resource_id != worker.location.resource_id:
            return None
        return group

    def is_unused(self, group: WorkerGroup) -> bool:
        """Whether no slot of the group is requested or allocated."""
        return all(worker.is_unused for worker in self.workers_of(group))

    def exceeds_limit(self, additional_slots: int) -> bool:
        """Whether so many more slots would be too many (SM-12)."""
        if self.settings.max_slots is None:
            return False
        there = self.index.number_of_slots + self.groups.number_of_slots_coming
        return there + additional_slots > self.settings.max_slots

    # --- groups -----------------------------------------------------------------------------------

    def group_changed(self, group: WorkerGroup) -> None:
        self.groups.noted(group)
        self.to_look_after[group.group_id] = None
        self.to_check.update(dict.fromkeys(sorted({job_id for job_id, _ in self.exhausted})))
        if group.owner is None:
            self.workers_to_count = True
        else:
            self.to_check[group.owner.job_id] = None

    def request_group(
        self,
        profiles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        owner: WorkerGroupOwner | None,
        now: float,
        actions: list[SlotManagerAction],
    ) -> None:
        request = self.groups.new_request(profiles, slots_per_bundle, owner, now)
        self.timetable.set(("room", request.number), now + ROOM_PATIENCE)
        actions.append(StartWorkerGroup(request.number, profiles, slots_per_bundle, owner))

    def cancel_request(self, request: GroupRequest, actions: list[SlotManagerAction]) -> None:
        self.take_request(request.number)
        actions.append(CancelWorkerGroupRequest(request.number))

    def take_request(self, number: int) -> GroupRequest | None:
        """The request is answered or cancelled; None: it was before."""
        self.timetable.remove(("room", number))
        return self.groups.take_request(number)

    def is_waiting_for_room(self, now: float) -> bool:
        """Whether a worker group that is asked for finds no room."""
        oldest = next(iter(self.groups.requests.values()), None)
        return oldest is not None and oldest.waits_for_room(now)

    def start_task_executor(
        self, group: WorkerGroup, bundle: Bundle, now: float, actions: list[SlotManagerAction]
    ) -> None:
        delay = max(back_off(bundle.failures), self.start_rate.delay(now))
        group.starting(bundle)
        self.timetable.set(
            ("start", group.group_id, bundle.index),
            now + delay + self.settings.task_executor_start_timeout,
        )
        self.group_changed(group)
        actions.append(
            StartTaskExecutor(
                group.group_id, bundle.index, bundle.profile, group.slots_per_bundle, delay
            )
        )

    def empty_bundle(
        self, group: WorkerGroup, bundle: Bundle, cause: str, lived: float, now: float
    ) -> None:
        """Its TaskExecutor is gone."""
        if bundle.state is BundleState.STARTING:
            self.timetable.remove(("start", group.group_id, bundle.index))
            self.start_rate.failed(now)
        group.emptied(bundle, cause, lived)
        self.group_changed(group)

    def release_group(
        self, group: WorkerGroup, reason: str, now: float, actions: list[SlotManagerAction]
    ) -> None:
        """Remove a group with all its TaskExecutors, whose allocations fail."""
        workers = self.workers_of(group)
        for worker in workers:
            self.drop_worker(worker, reason, now, actions)
        for index in group.bundles:
            self.timetable.remove(("start", group.group_id, index))
        self.timetable.remove(("idle", group.group_id))
        del self.groups.started[group.group_id]
        self.note_released(group.group_id, now)
        self.group_changed(group)
        resource_ids = tuple(worker.location.resource_id for worker in workers)
        actions.append(ReleaseWorkerGroup(group.group_id, reason, resource_ids))

    def note_released(self, group_id: WorkerGroupId, now: float) -> None:
        """It is not wanted any more; who registers from it for a while is stopped."""
        self.groups.released[group_id] = None
        self.timetable.set(("released", group_id), now + RELEASED_GROUP_MEMORY)

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker: Worker, group: WorkerGroup) -> None:
        """It has registered from a bundle of the group, with slots that its report has told."""
        self.timetable.remove(("start", group.group_id, worker.location.bundle_index))
        group.registered(group.bundles[worker.location.bundle_index], worker.location.resource_id)
        self.workers[worker.location.resource_id] = worker
        self.index.add_worker(worker)
        self.group_changed(group)

    def give_from(self, worker: Worker, group: WorkerGroup) -> None:
        """Find the worker where its group and node put it now."""
        self.index.remove_worker(worker)
        worker.owner = group.owner
        worker.is_usable = group.is_known and worker.location.node_id not in self.blocklist
        self.index.add_worker(worker)
        self.slots_changed(worker)

    def slots_changed(self, worker: Worker) -> None:
        """Jobs that have slots there, or whose workers it is, may miss some or have enough now."""
        for slot in (*worker.slots.values(), *worker.dynamic.values()):
            if slot.job_id in self.jobs:
                self.to_check[slot.job_id] = None
        if worker.owner is not None:
            self.to_check[worker.owner.job_id] = None
        self.to_look_after[worker.location.worker_group] = None

    def drop_worker(
        self, worker: Worker, cause: str, now: float, actions: list[SlotManagerAction]
    ) -> None:
        """Remove a TaskExecutor: one notice per allocated slot, to the right job (SM-09)."""
        location = worker.location
        self.slots_changed(worker)
        self.index.remove_worker(worker)
        self.timetable.remove(("refused", worker))
        for slot in (*worker.slots.values(), *worker.dynamic.values()):
            self.timetable.remove(("slot", slot))
            self.timetable.remove(("refused", slot))
        group = self.group_of(worker)
        if group is not None:
            bundle = group.bundles[location.bundle_index]
            self.empty_bundle(group, bundle, cause, now - worker.registered_at, now)
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

    # --- slots ------------------------------------------------------------------------------------

    def request_slot(
        self,
        slot: ManagedSlot,
        requirements: ResourceRequirements,
        constraint: SameWorkerGroup | None,
        now: float,
        actions: list[SlotManagerAction],
    ) -> None:
        allocation_id = self.settings.new_allocation_id()
        slot.request(requirements.job_id, allocation_id, now)
        self.timetable.set(("slot", slot), now + self.settings.slot_request_timeout)
        self.to_look_after[slot.worker.location.worker_group] = None
        actions.append(
            RequestSlot(
                slot.slot_id,
                slot.slot_id.resource_id,
                requirements.job_id,
                allocation_id,
                slot.profile,
                requirements.job_master_address,
                constraint,
            )
        )

    def free_slot(self, slot: ManagedSlot, cause: str, now: float) -> None:
        """It is, or is taken for, free again."""
        if slot.job_id in self.jobs:
            self.to_check[slot.job_id] = None
        self.to_look_after[slot.worker.location.worker_group] = None
        self.timetable.remove(("slot", slot))
        slot.free(cause, now)


def owner_of(job_id: JobID, requirement: ResourceRequirement) -> WorkerGroupOwner | None:
    """Who owns the worker group that a requirement of a job is for; None: any shared worker will
    do."""
    constraint = requirement.constraint
    return None if constraint is None else WorkerGroupOwner(job_id, constraint.name)
