"""Holds the state of the SlotManager: jobs, TaskExecutors and worker groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from flinkray.core.ids import AllocationID, JobID, ResourceID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.blocklist import Blocklist
from flinkray.scheduler.resources.slot_index import Service, SlotIndex, service_of
from flinkray.scheduler.resources.slot_manager_actions import (
    CancelWorkerGroupRequest,
    NotifyAllocationFailure,
    ReleaseWorkerGroup,
    RequestSlot,
    SlotManagerAction,
    StartTaskExecutor,
    StartWorkerGroup,
)
from flinkray.scheduler.resources.worker_groups import (
    ROOM_PATIENCE,
    Bundle,
    BundleState,
    GroupBooks,
    GroupKind,
    GroupRequest,
    WorkerGroup,
    back_off,
)
from flinkray.scheduler.resources.workers import ManagedSlot, SlotState, Worker
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    WorkerGroupOwner,
    missing_slots,
    profile_of_slot,
)

RELEASED_GROUP_MEMORY = 600.0
"""Seconds for which a released group is remembered.
Ray removes the group and its TaskExecutors long before.  A TaskExecutor that registers even later
is stopped as an idle one."""


@dataclass(frozen=True, slots=True)
class SlotManagerSettings:
    """Settings of the SlotManager, which do not change.  Durations are in seconds."""

    shared_worker_profile: ResourceProfile
    """Resources of the default shared worker. Slots that it cannot provide get workers of their own
    size, which jobs share as well."""
    shared_worker_slots: int
    new_allocation_id: Callable[[], AllocationID]
    idle_timeout: float = 30.0
    slot_request_timeout: float = 10.0
    task_executor_start_timeout: float = 60.0
    """Time after which a started TaskExecutor that has not registered counts as failed."""
    previous_worker_timeout: float = 60.0
    """The start timeout for a TaskExecutor that an earlier ResourceManager has started."""
    spread_out: bool = False
    """Whether slots are taken from the least used worker instead of the fullest one."""
    max_slots: int | None = None
    """Largest number of static slots of all workers; None: as many as the cluster can hold."""
    redundant_workers: int = 0
    """Number of workers whose slots are kept free while jobs run, in case a worker is lost."""
    max_start_failures_per_minute: float = 10.0
    start_retry_interval: float = 3.0

    @property
    def shared_slot_profile(self) -> ResourceProfile:
        """The profile of one slot of a default shared worker."""
        return profile_of_slot(self.shared_worker_profile, self.shared_worker_slots)

    def shared_worker_for(self, profile: ResourceProfile) -> ResourceProfile:
        """Return the resources of the shared worker that is started for a slot of this profile."""
        default = self.shared_worker_profile
        can_provide = service_of(profile, default, self.shared_slot_profile) is not Service.NOT
        return default if can_provide else profile

    def slots_of(self, worker: ResourceProfile) -> int:
        """Return the number of static slots of a shared worker with these resources."""
        return self.shared_worker_slots if worker == self.shared_worker_profile else 1


class ResourceTracker:
    """Holds the whole state of the SlotManager, and keeps its parts consistent. Every method that
    changes the state appends the resulting actions to *actions*, and notes which jobs and groups
    the next check must consider."""

    def __init__(self, settings: SlotManagerSettings) -> None:
        self.settings = settings
        self.jobs: dict[JobID, ResourceRequirements] = {}
        self.order: dict[JobID, int] = {}
        """Rank in which jobs are served: the order in which they were first registered."""
        self.workers: dict[ResourceID, Worker] = {}
        self.groups = GroupBooks()
        self.index = SlotIndex(settings.spread_out)
        self.timetable = Timetable()
        self.blocklist = Blocklist()
        self.start_rate = StartWorkerFailureRate(
            settings.max_start_failures_per_minute, settings.start_retry_interval
        )
        self.fail_unfulfillable = True
        """Whether impossible requirements are reported as unfulfillable.
        False while workers may still be coming (RM-09, SM-14)."""
        self.short: dict[JobID, tuple[ResourceRequirement, ...]] = {}
        """Missing slots of each job that misses any, as of the last check."""
        self.exhausted: set[tuple[JobID, GroupKind]] = set()
        """(job, kind of worker group) for which the slot limit allows no further worker."""
        self.to_check: dict[JobID, None] = {}
        """Jobs whose requirements or slots have changed since the last check."""
        self.to_look_after: dict[WorkerGroupId, None] = {}
        """Groups that may have become needed or unneeded."""
        self.workers_to_count = True
        """Whether the number of wanted shared workers may have changed since the last check."""
        self.shared_workers_awaited: set[ResourceProfile] = set()
        """Resources of the shared workers that are wanted and not there yet, as of the last
        check."""
        self.users_of_shared_workers: set[JobID] = set()
        """Jobs that require slots of shared workers."""
        self.bundles_wanted: dict[WorkerGroupOwner, tuple[ResourceProfile, ...]] = {}
        """Profiles of the bundles of each worker group that a job requires for itself."""
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
        """Remove the job's requirements. The job keeps its place in the order in which jobs are
        served."""
        requirements = self.jobs.pop(job_id, None)
        if requirements is not None:
            self.workers_to_count = True
            for requirement in requirements.requirements:
                kind = self.kind_of(job_id, requirement)
                self.exhausted.discard((job_id, kind))
                if isinstance(kind, WorkerGroupOwner):
                    self.bundles_wanted.pop(kind, None)
        for owner in self.groups.owners_of_job(job_id):
            group = self.groups.of_owner(owner)
            if group is not None:
                self.to_look_after[group.group_id] = None
        self.short.pop(job_id, None)
        self.users_of_shared_workers.discard(job_id)

    def forget_failures(self, job_id: JobID) -> None:
        """Forget how often starts of the job's own worker groups have failed, so that the next
        start is not delayed."""
        for kind in tuple(self.groups.failures):
            if isinstance(kind, WorkerGroupOwner) and kind.job_id == job_id:
                del self.groups.failures[kind]
                self.timetable.remove(("retry", kind))

    # --- questions --------------------------------------------------------------------------------

    def next_number(self) -> int:
        self._next_number += 1
        return self._next_number

    @property
    def has_changes(self) -> bool:
        """Whether a requirement check has anything to do."""
        return bool(
            self.to_check
            or self.to_look_after
            or self.workers_to_count
            or (self.index.has_grown and self.short)
        )

    def missing(self, requirements: ResourceRequirements) -> tuple[ResourceRequirement, ...]:
        """Return the slots that the job requires and that are neither allocated nor requested for
        it. They include slots of the job's own groups and of shared workers."""
        job_id = requirements.job_id
        shared = [r for r in requirements.requirements if r.constraint is None]
        missing = missing_slots(shared, self.index.counts(job_id, None))
        for requirement in requirements.requirements:
            owner = owner_of(job_id, requirement)
            if owner is not None:
                missing += missing_slots((requirement,), self.index.counts(job_id, owner))
        return missing

    def kind_of(self, job_id: JobID, requirement: ResourceRequirement) -> GroupKind:
        """Return the kind of worker groups that provide the required slots."""
        owner = owner_of(job_id, requirement)
        return self.settings.shared_worker_for(requirement.profile) if owner is None else owner

    def workers_of(self, group: WorkerGroup) -> list[Worker]:
        """Return the registered TaskExecutors of a group, ordered by bundle."""
        bundles = sorted(group.bundles.items())
        return [self.workers[b.resource_id] for _, b in bundles if b.resource_id in self.workers]

    def group_of(self, worker: Worker) -> WorkerGroup | None:
        """Return the group of the worker; None if the group no longer exists."""
        group = self.groups.started.get(worker.location.worker_group)
        bundle = group.bundles.get(worker.location.bundle_index) if group else None
        if bundle is None or bundle.resource_id != worker.location.resource_id:
            return None
        return group

    def is_unused(self, group: WorkerGroup) -> bool:
        """Return whether no slot of the group is requested or allocated."""
        return all(worker.is_unused for worker in self.workers_of(group))

    def exceeds_limit(self, additional_slots: int) -> bool:
        """Return whether this many additional slots would exceed the limit (SM-12)."""
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
        """Remove and return the request *number*, because it is answered or canceled. None if it
        was removed before."""
        self.timetable.remove(("room", number))
        return self.groups.take_request(number)

    def is_waiting_for_room(self, now: float) -> bool:
        """Return whether a requested worker group has been waiting for so long that no node seems
        to have room for it."""
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
        """Mark the bundle as empty, because its TaskExecutor no longer exists. *lived*: seconds
        since it registered; 0 if it never did."""
        if bundle.state is BundleState.STARTING:
            self.timetable.remove(("start", group.group_id, bundle.index))
            self.start_rate.failed(now)
        group.emptied(bundle, cause, lived)
        self.group_changed(group)

    def release_group(
        self, group: WorkerGroup, reason: str, now: float, actions: list[SlotManagerAction]
    ) -> None:
        """Remove a group with all its TaskExecutors.  Their allocations fail."""
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
        """Remember for a while that the group is released, so that its TaskExecutors are stopped if
        they register."""
        self.groups.released[group_id] = None
        self.timetable.set(("released", group_id), now + RELEASED_GROUP_MEMORY)

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker: Worker, group: WorkerGroup) -> None:
        """Add a worker that has registered from a bundle of the group."""
        self.timetable.remove(("start", group.group_id, worker.location.bundle_index))
        group.registered(group.bundles[worker.location.bundle_index], worker.location.resource_id)
        self.workers[worker.location.resource_id] = worker
        self.index.add_worker(worker)
        self.group_changed(group)

    def give_from(self, worker: Worker, group: WorkerGroup) -> None:
        """Update which jobs may get slots of the worker: the job that owns its group (any job if
        none owns it), or no job while the group is not known or the node is blocked."""
        self.index.remove_worker(worker)
        worker.owner = group.owner
        worker.is_usable = group.is_known and worker.location.node_id not in self.blocklist
        self.index.add_worker(worker)
        self.slots_changed(worker)

    def slots_changed(self, worker: Worker) -> None:
        """Include the worker's group, its owner, and the jobs with slots on it in the next
        check."""
        for slot in (*worker.slots.values(), *worker.dynamic.values()):
            if slot.job_id in self.jobs:
                self.to_check[slot.job_id] = None
        if worker.owner is not None:
            self.to_check[worker.owner.job_id] = None
        self.to_look_after[worker.location.worker_group] = None

    def drop_worker(
        self, worker: Worker, cause: str, now: float, actions: list[SlotManagerAction]
    ) -> None:
        """Remove a TaskExecutor.
        The job of each allocated slot is notified once per slot (SM-09)."""
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
        """Mark the slot as free, and include its job and its group in the next check."""
        if slot.job_id in self.jobs:
            self.to_check[slot.job_id] = None
        self.to_look_after[slot.worker.location.worker_group] = None
        self.timetable.remove(("slot", slot))
        slot.free(cause, now)


def owner_of(job_id: JobID, requirement: ResourceRequirement) -> WorkerGroupOwner | None:
    """Return the owner of the worker group in which the required slots must be; None if slots of
    any shared worker will do."""
    constraint = requirement.constraint
    return None if constraint is None else WorkerGroupOwner(job_id, constraint.name)


INTERVAL = 60.0
"""Seconds over which failures are counted; the rate is per minute, as in Flink."""


class StartWorkerFailureRate:
    """Delays starts of all TaskExecutors after too many failed starts within a minute, because then
    they have a common cause (no disk space, a bad image). The back-off of each bundle and group
    handles problems of that bundle or group."""

    def __init__(self, max_failures_per_minute: float, retry_interval: float) -> None:
        """Make a rate without failures. After more failures within a minute than
        *max_failures_per_minute*, the next start waits *retry_interval* seconds."""
        self._max_failures = max_failures_per_minute
        self._retry_interval = retry_interval
        self._failures: deque[float] = deque()
        self._allowed_from = 0.0

    def failed(self, now: float) -> None:
        """Count a TaskExecutor that could not be started, or ended before it registered."""
        while self._failures and self._failures[0] <= now - INTERVAL:
            self._failures.popleft()
        self._failures.append(now)
        if len(self._failures) > self._max_failures:
            self._allowed_from = now + self._retry_interval

    def delay(self, now: float) -> float:
        """Return the seconds until the next start is allowed; 0 if it is allowed now."""
        return max(0.0, self._allowed_from - now)


class Timetable:
    """Keeps at most one deadline per key; every change takes logarithmic time."""

    def __init__(self) -> None:
        self._due: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        """Heap of deadlines; may contain entries that were changed or removed."""
        self._next_number = 0

    def set(self, key: Hashable, due: float) -> None:
        """Set the key's deadline, in place of an earlier one."""
        self._due[key] = due
        self._next_number += 1
        heappush(self._heap, (due, self._next_number, key))
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def remove(self, key: Hashable) -> None:
        """Remove the key's deadline, if there is one."""
        self._due.pop(key, None)

    def pop_due(self, now: float) -> list[Hashable]:
        """Remove and return the keys whose deadline has passed, ordered by deadline."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heappop(self._heap)
            if self._due.get(key) == when:
                del self._due[key]
                due.append(key)
        return due

    def next(self) -> float | None:
        """Return the earliest deadline; None if there is none."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._due.get(key) == when:
                return when
            heappop(self._heap)
        return None
