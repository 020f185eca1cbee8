"""Who gets which slots, and which workers are started and released: the decisions of a
ResourceManager."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.job_info import TaskExecutorInfo
from flinkray.scheduler.requirement_check import check_requirements, missing_slots
from flinkray.scheduler.shortages import ClusterResources, explain
from flinkray.scheduler.slot_books import SlotBooks, SlotManagerSettings
from flinkray.scheduler.slot_manager_actions import (
    FreeSlot,
    ReleaseWorkerGroup,
    SlotManagerAction,
    StopTaskExecutor,
)
from flinkray.scheduler.slots import (
    ResourceRequirements,
    ResourceShortage,
    SlotReport,
    WorkerLocation,
)
from flinkray.scheduler.story import Story
from flinkray.scheduler.worker_groups import Bundle, BundleState, WorkerGroup
from flinkray.scheduler.workers import ManagedSlot, SlotState, Worker

REFUSED_SLOT_DELAY = 0.5
"""Seconds before a slot is asked for again that its TaskExecutor refused."""


class SlotManager:
    """Matches what jobs require with the slots there are, and starts and releases worker groups.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds. After every event call :meth:`check` again at :meth:`next_check_time`.
    """

    def __init__(
        self,
        *,
        shared_worker_profile: ResourceProfile,
        shared_worker_slots: int,
        new_allocation_id: Callable[[], AllocationID],
        idle_timeout: float = 30.0,
        slot_request_timeout: float = 10.0,
        task_executor_start_timeout: float = 60.0,
    ) -> None:
        """Durations in seconds.

        *task_executor_start_timeout*: a TaskExecutor that has been started and not registered is
        given up after it.
        """
        self._books = SlotBooks(
            SlotManagerSettings(
                shared_worker_profile=shared_worker_profile,
                shared_worker_slots=shared_worker_slots,
                new_allocation_id=new_allocation_id,
                idle_timeout=idle_timeout,
                slot_request_timeout=slot_request_timeout,
                task_executor_start_timeout=task_executor_start_timeout,
            )
        )
        self._checked_at = -inf

    # jobs

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotManagerAction]:
        """Replace what a job wants (a total).

        Empty: nothing new is given, what it has stays until freed (SM-18).
        """
        self._books.jobs[requirements.job_id] = requirements
        return self.check(now)

    def clear_requirements(
        self, job_id: JobID, job_ended: bool, now: float
    ) -> list[SlotManagerAction]:
        """The job's master is gone.

        Ended: its own worker group is released at once and its slots on shared workers are freed.
        Else (a new master is expected) requests in flight are given up, and its own group waits for
        the idle time-out.
        """
        self._books.jobs.pop(job_id, None)
        actions: list[SlotManagerAction] = []
        reason = f"job {job_id} has ended" if job_ended else f"the master of job {job_id} is gone"
        request = self._books.groups.request_of_job(job_id)
        if request is not None:
            self._books.cancel_request(request, actions)
        group = self._books.groups.of_job(job_id)
        if group is not None and job_ended:
            self._books.release_group(group, reason, now, actions)
        for slot in self._books.slots_of_job(job_id):
            assert slot.allocation_id is not None
            if slot.state is SlotState.PENDING or job_ended:
                actions.append(FreeSlot(slot.slot_id, slot.allocation_id, reason))
            if slot.state is SlotState.PENDING:
                slot.free(reason, now)
        self._books.groups.failures.pop(job_id, None)
        return actions + self.check(now)

    # TaskExecutors

    def register_task_executor(
        self,
        location: WorkerLocation,
        total_profile: ResourceProfile,
        report: SlotReport,
        now: float,
    ) -> list[SlotManagerAction]:
        """A TaskExecutor has registered and sent its first report; again under the same name: it
        is new (RM-01)."""
        actions: list[SlotManagerAction] = []
        resource_id = location.resource_id
        if location.worker_group in self._books.groups.released:
            reason = f"worker group {location.worker_group} is released"
            return [StopTaskExecutor(resource_id, location.address, reason)]
        known = self._books.workers.get(resource_id)
        if known is not None and known.location == location:
            known.story.add(now, "registered again")
            known.apply_report(report, now)
            return self.check(now)
        if known is not None:
            cause = f"another process registered under its name (pid {location.pid})"
            self._books.drop_worker(known, cause, now, actions)
        story = Story(f"TaskExecutor {resource_id}", limit=200)
        where = f"bundle {location.bundle_index} of {location.worker_group} on {location.node_ip}"
        story.add(now, f"registered from {where}, pid {location.pid}")
        worker = Worker(location, total_profile, now, story)
        bundle = self._bundle_for(worker)
        if bundle.state is BundleState.REGISTERED:
            reason = f"{where} has a TaskExecutor, {bundle.resource_id}"
            return [*actions, StopTaskExecutor(resource_id, location.address, reason)]
        bundle.registered(resource_id)
        self._books.workers[resource_id] = worker
        worker.apply_report(report, now)
        return actions + self.check(now)

    def report_slot_status(
        self, resource_id: ResourceID, report: SlotReport, now: float
    ) -> list[SlotManagerAction]:
        """A heartbeat's report; ignored for TaskExecutors that are not registered."""
        worker = self._books.workers.get(resource_id)
        if worker is None:
            return []
        worker.apply_report(report, now)
        return self.check(now)

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """It died or left: its allocations fail, and a wanted group gets a new one in the same
        bundle."""
        worker = self._books.workers.get(resource_id)
        if worker is None:
            return []
        actions: list[SlotManagerAction] = []
        self._books.drop_worker(worker, cause, now, actions)
        return actions + self.check(now)

    def task_executor_start_failed(
        self, group_id: WorkerGroupId, bundle_index: int, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """A StartTaskExecutor failed or its process died before it registered; tried again with
        back-off."""
        group = self._books.groups.started.get(group_id)
        bundle = group.bundles.get(bundle_index) if group else None
        if bundle is None or bundle.state is not BundleState.STARTING:
            return []
        bundle.emptied(cause, lived=0.0)
        return self.check(now)

    def slot_request_succeeded(
        self, slot_id: SlotID, allocation_id: AllocationID, now: float
    ) -> list[SlotManagerAction]:
        """The TaskExecutor has allocated the slot."""
        slot = self._slot(slot_id, allocation_id)
        if slot is not None and slot.job_id is not None:
            slot.allocate(slot.job_id, allocation_id, now)
        return self.check(now)

    def slot_request_failed(
        self, slot_id: SlotID, allocation_id: AllocationID, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """It refused, or there was no answer: the slot is free again and the job gets another try
        (SM-05)."""
        slot = self._slot(slot_id, allocation_id)
        if slot is not None and slot.state is SlotState.PENDING:
            slot.free(f"refused: {cause}", now)
            slot.refused_until = now + REFUSED_SLOT_DELAY
        return self.check(now)

    def slot_freed(
        self, slot_id: SlotID, allocation_id: AllocationID, now: float
    ) -> list[SlotManagerAction]:
        """``notify_slot_available``; ignored unless the slot is held by that allocation."""
        slot = self._slot(slot_id, allocation_id)
        if slot is not None:
            slot.free("freed by its TaskExecutor", now)
        return self.check(now)

    # worker groups

    def worker_group_started(
        self, request_number: int, group_id: WorkerGroupId, now: float
    ) -> list[SlotManagerAction]:
        """The placement group is placed; released at once when its request has been cancelled."""
        request = self._books.groups.requests.pop(request_number, None)
        if request is None:
            self._books.groups.released[group_id] = None
            return [ReleaseWorkerGroup(group_id, "it is not wanted any more")]
        actions: list[SlotManagerAction] = []
        bundles = {i: Bundle(i, profile) for i, profile in enumerate(request.profiles)}
        group = WorkerGroup(group_id, bundles, request.slots_per_bundle, request.job_id)
        self._books.groups.started[group_id] = group
        self._books.groups.failures.pop(request.job_id, None)
        for bundle in bundles.values():
            self._books.start_task_executor(group, bundle, now, actions)
        return actions + self.check(now)

    def worker_group_failed(
        self, request_number: int, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """The placement group could not be created (not: it waits); requested again with
        back-off."""
        request = self._books.groups.requests.pop(request_number, None)
        if request is not None:
            self._books.groups.request_failed(request.job_id, cause, now)
        return self.check(now)

    def worker_group_lost(
        self, group_id: WorkerGroupId, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """The group or one of its bundles is gone (its node died): released, and requested anew if
        still wanted."""
        group = self._books.groups.started.get(group_id)
        actions: list[SlotManagerAction] = []
        if group is not None:
            self._books.release_group(group, cause, now, actions)
        return actions + self.check(now)

    def recover_worker_group(
        self,
        group_id: WorkerGroupId,
        bundles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        job_id: JobID | None,
        live_bundles: tuple[int, ...],
        now: float,
    ) -> list[SlotManagerAction]:
        """A group of an earlier ResourceManager: adopted, and released if nobody claims it within
        the idle time-out.

        *live_bundles*: those whose TaskExecutor lives and will register again.
        """
        books = self._books
        actions: list[SlotManagerAction] = []
        if group_id in books.groups.released:
            return [ReleaseWorkerGroup(group_id, "it was released before")]
        known = books.groups.started.get(group_id)
        if known is not None and known.is_known:
            return []
        if job_id is not None and books.groups.of_job(job_id) is not None:
            books.groups.released[group_id] = None
            return [ReleaseWorkerGroup(group_id, f"job {job_id} has another worker group")]
        group = WorkerGroup(group_id, {}, slots_per_bundle, job_id, unneeded_since=now)
        for index, profile in enumerate(bundles):
            bundle = group.bundles[index] = Bundle(index, profile)
            before = known.bundles.get(index) if known is not None else None
            if before is not None and before.resource_id is not None:
                bundle.registered(before.resource_id)
            elif index in live_bundles:
                bundle.starting(now + books.settings.task_executor_start_timeout)
        books.groups.started[group_id] = group
        request = books.groups.request_of_job(job_id) if job_id is not None else None
        if request is not None and request.profiles == group.profiles:
            books.cancel_request(request, actions)
        return actions + self.check(now)

    # time

    def check(self, now: float) -> list[SlotManagerAction]:
        """Time-outs, idle releases, delayed retries."""
        for slot in self._books.all_slots():
            timeout = self._books.settings.slot_request_timeout
            if slot.state is SlotState.PENDING and now >= slot.changed_at + timeout:
                slot.free(f"no answer to the request for {timeout:g} s", now)
                slot.refused_until = now + REFUSED_SLOT_DELAY
        for group in self._books.groups.started.values():
            for bundle in group.bundles.values():
                if bundle.state is BundleState.STARTING and now >= bundle.deadline:
                    bundle.emptied("it did not register in time", lived=0.0)
        self._checked_at = now
        return check_requirements(self._books, now)

    def next_check_time(self) -> float | None:
        """When :meth:`check` has something to do next; None: not before another event."""
        settings, groups = self._books.settings, self._books.groups
        times = [f.not_before for f in groups.failures.values()]
        for slot in self._books.all_slots():
            if slot.state is SlotState.PENDING:
                times.append(slot.changed_at + settings.slot_request_timeout)
            elif slot.state is SlotState.FREE:
                times.append(slot.refused_until)
        for group in groups.started.values():
            if group.unneeded_since is not None:
                times.append(group.unneeded_since + settings.idle_timeout)
            times += [b.deadline for b in group.bundles.values() if b.state is BundleState.STARTING]
        return min((t for t in times if t > self._checked_at), default=None)

    # questions

    def shortages(
        self, job_id: JobID, now: float, cluster: ClusterResources
    ) -> tuple[ResourceShortage, ...]:
        """Why the job's slots are missing; empty: it has all, or none are required."""
        requirements = self._books.jobs.get(job_id)
        return () if requirements is None else explain(self._books, requirements, now, cluster)

    @property
    def has_shortage(self) -> bool:
        """Whether some job misses slots now."""
        return any(missing_slots(self._books, r) for r in self._books.jobs.values())

    def worker_group_of(self, job_id: JobID) -> WorkerGroupId | None:
        """The dedicated group of a job."""
        group = self._books.groups.of_job(job_id)
        return None if group is None else group.group_id

    def worker_groups(self) -> tuple[WorkerGroupId, ...]:
        """All groups that are started and not released."""
        return tuple(self._books.groups.started)

    def task_executors(self) -> tuple[TaskExecutorInfo, ...]:
        """The registered TaskExecutors, oldest first."""
        infos = []
        for worker in self._books.workers.values():
            jobs = dict.fromkeys(s.job_id for s in worker.slots.values() if s.job_id is not None)
            free = sum(slot.state is SlotState.FREE for slot in worker.slots.values())
            infos.append(
                TaskExecutorInfo(
                    worker.location, worker.total_profile, len(worker.slots), free, tuple(jobs)
                )
            )
        return tuple(infos)

    def story_of(self, resource_id: ResourceID) -> str:
        """What has happened to a TaskExecutor and its slots, a line per event."""
        worker = self._books.workers.get(resource_id)
        return "" if worker is None else str(worker.story)

    def shut_down(self, reason: str) -> list[SlotManagerAction]:
        """Cancel all requests and release all groups."""
        actions: list[SlotManagerAction] = []
        self._books.jobs.clear()
        for request in list(self._books.groups.requests.values()):
            self._books.cancel_request(request, actions)
        for group in list(self._books.groups.started.values()):
            self._books.release_group(group, reason, self._checked_at, actions)
        return actions

    def _slot(self, slot_id: SlotID, allocation_id: AllocationID) -> ManagedSlot | None:
        """The slot, if that allocation holds it."""
        worker = self._books.workers.get(slot_id.resource_id)
        slot = worker.slots.get(slot_id.slot_index) if worker is not None else None
        return slot if slot is not None and slot.is_held_by(allocation_id) else None

    def _bundle_for(self, worker: Worker) -> Bundle:
        """The bundle in which a registering TaskExecutor says it is; an unknown group is noted as
        such."""
        location = worker.location
        group = self._books.groups.started.get(location.worker_group)
        if group is None:
            group = WorkerGroup(location.worker_group, {}, 0, None, is_known=False)
            self._books.groups.started[group.group_id] = group
        if location.bundle_index not in group.bundles:
            bundle = Bundle(location.bundle_index, worker.total_profile)
            group.bundles[location.bundle_index] = bundle
        return group.bundles[location.bundle_index]
