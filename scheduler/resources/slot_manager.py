"""Gives slots to jobs, and starts and releases workers: the decisions of a ResourceManager."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import cast

from flinkray.core.ids import AllocationID, JobID, ResourceID, SlotID, WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.reports.job_info import TaskExecutorInfo
from flinkray.scheduler.resources.blocklist import BlockedNode
from flinkray.scheduler.resources.cluster_resources import ClusterResources
from flinkray.scheduler.resources.idle_groups import (
    idle_timeout_over,
    may_be_released,
    room_is_missing,
)
from flinkray.scheduler.resources.requirement_check import check_requirements
from flinkray.scheduler.resources.resource_tracker import ResourceTracker, SlotManagerSettings
from flinkray.scheduler.resources.shortage_texts import explain
from flinkray.scheduler.resources.slot_manager_actions import (
    FreeInactiveSlots,
    ReclaimSlot,
    SlotManagerAction,
)
from flinkray.scheduler.resources.worker_registration import (
    apply_report,
    give_from_node,
    group_failed,
    group_started,
    recover_group,
    register_task_executor,
    start_failed,
    task_executor_info,
)
from flinkray.scheduler.resources.workers import ManagedSlot, SlotState, Worker
from flinkray.scheduler.shared.slots import (
    ResourceRequirements,
    ResourceShortage,
    SlotReport,
    WorkerGroupOwner,
    WorkerLocation,
)

REFUSED_SLOT_DELAY = 0.5
"""Seconds before a slot that its TaskExecutor refused is requested again."""


class SlotManager:
    """Matches requirements of jobs with existing slots, and starts and releases worker groups.
    Methods return actions in the order in which they must be carried out. ``now`` is in monotonic
    seconds. After every event, the caller asks :meth:`next_check_time` when to call :meth:`check`.
    The time for an event is proportional to what it changes, not to the size of the cluster."""

    def __init__(self, settings: SlotManagerSettings) -> None:
        self._tracker = ResourceTracker(settings)
        self._checked_at = -inf

    # --- jobs -------------------------------------------------------------------------------------

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotManagerAction]:
        """Replace the total requirements of a job.
        Empty requirements: no new slots are given, and the job keeps its slots until it frees them
        (SM-18)."""
        return self.set_all_requirements((requirements,), now)

    def set_all_requirements(
        self, declared: Iterable[ResourceRequirements], now: float
    ) -> list[SlotManagerAction]:
        """Replace the requirements of several jobs, and check once for all of them (SM-16)."""
        for requirements in declared:
            self._tracker.set_requirements(requirements)
        return self.check(now)

    def clear_requirements(
        self, job_id: JobID, job_ended: bool, now: float
    ) -> list[SlotManagerAction]:
        """Remove the requirements of a job whose JobMaster is gone.

        *job_ended*: the job's own worker groups are released, and its slots on shared workers are
        freed. Otherwise a new JobMaster is expected: requests in progress are canceled, and
        TaskExecutors free the slots that the old JobMaster had not accepted yet (SM-18). The job's
        own groups stay as long as they have accepted slots, or until the idle timeout.
        """
        tracker = self._tracker
        tracker.forget_requirements(job_id)
        actions: list[SlotManagerAction] = []
        reason = f"job {job_id} has ended" if job_ended else f"the master of job {job_id} is gone"
        for owner in tracker.groups.owners_of_job(job_id):
            request, group = tracker.groups.request_of_owner(owner), tracker.groups.of_owner(owner)
            if request is not None:
                tracker.cancel_request(request, actions)
            if group is not None and job_ended:
                tracker.release_group(group, reason, now, actions)
        holders: dict[ResourceID, None] = {}
        for slot in tracker.index.slots_of_job(job_id):
            assert slot.allocation_id is not None
            if job_ended:
                actions.append(ReclaimSlot(slot.slot_id, slot.allocation_id, reason))
            else:  # pending slots, too: the job may have taken such a slot already
                holders[slot.worker.location.resource_id] = None
            if slot.state is SlotState.PENDING:
                tracker.free_slot(slot, reason, now)
        actions += [FreeInactiveSlots(holder, job_id, reason) for holder in holders]
        tracker.forget_failures(job_id)
        if job_ended:
            tracker.order.pop(job_id, None)
        return actions + self.check(now)

    def set_fail_unfulfillable(self, fail: bool) -> None:
        """Set whether requirements that no node can ever fulfil are reported to the jobs, whose
        requests then fail (SM-14, RM-09). False while the cluster is starting up, because larger
        nodes may still come."""
        self._tracker.fail_unfulfillable = fail

    # --- TaskExecutors ----------------------------------------------------------------------------

    def register_task_executor(
        self,
        location: WorkerLocation,
        total_profile: ResourceProfile,
        report: SlotReport,
        now: float,
    ) -> list[SlotManagerAction]:
        """Register a TaskExecutor, in place of another process that is registered under the same
        name (RM-01). If the TaskExecutor is not wanted, it is stopped."""
        return self._after(
            register_task_executor(self._tracker, location, total_profile, report, now), now
        )

    def report_slot_status(
        self, resource_id: ResourceID, report: SlotReport, now: float
    ) -> list[SlotManagerAction]:
        """Update the slots of a TaskExecutor from its heartbeat; ignored if it is not
        registered."""
        worker = self._tracker.workers.get(resource_id)
        if worker is None:
            return []
        apply_report(self._tracker, worker, report, now)
        return self.check(now)

    def task_executor_lost(
        self, resource_id: ResourceID, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """Remove a TaskExecutor that died or left. Its slots are lost, and the jobs that had them
        are notified. If its group is still needed, a new TaskExecutor is started in the same
        bundle."""
        worker = self._tracker.workers.get(resource_id)
        if worker is None:
            return []
        actions: list[SlotManagerAction] = []
        self._tracker.drop_worker(worker, cause, now, actions)
        return actions + self.check(now)

    def task_executor_start_failed(
        self, group_id: WorkerGroupId, bundle_index: int, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """Retry, with back-off, to start a TaskExecutor that could not be started, or that died
        before it registered."""
        start_failed(self._tracker, group_id, bundle_index, cause, now)
        return self.check(now)

    def may_be_released(
        self, group_id: WorkerGroupId, agreed: bool, now: float
    ) -> list[SlotManagerAction]:
        """Release an idle group if all its TaskExecutors *agreed* in answer to
        AskWhetherReleasable, and no job needs the group by now. Otherwise the group stays, and is
        asked again after another idle timeout (SM-15)."""
        group = self._tracker.groups.started.get(group_id)
        actions: list[SlotManagerAction] = []
        if group is not None and agreed:
            may_be_released(self._tracker, group, now, actions)
        return actions + self.check(now)

    # --- slots ------------------------------------------------------------------------------------

    def slot_request_succeeded(
        self, slot_id: SlotID, allocation_id: AllocationID, now: float
    ) -> list[SlotManagerAction]:
        """Mark a requested slot as allocated, because its TaskExecutor says so. *slot_id*: for a
        dynamic slot, the id that the TaskExecutor has given to it."""
        slot = self._slot(slot_id, allocation_id)
        if slot is not None and slot.job_id is not None:
            if slot.slot_id != slot_id:
                before = slot.worker.slots.get(slot_id.slot_index)
                if before is not None:  # its freeing was not reported
                    self._tracker.free_slot(before, "another slot has its index", now)
                slot.worker.dynamic_slot_confirmed(slot, slot_id)
            self._tracker.timetable.remove(("slot", slot))
            slot.allocate(slot.job_id, allocation_id, now)
        return self.check(now)

    def slot_request_failed(
        self, slot_id: SlotID, allocation_id: AllocationID, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """Free a slot whose request was refused or not answered, and request a slot for the job
        again (SM-05)."""
        slot = self._slot(slot_id, allocation_id)
        if slot is not None and slot.state is SlotState.PENDING:
            self._refused(slot, f"refused: {cause}", now)
        return self.check(now)

    def slot_freed(
        self, slot_id: SlotID, allocation_id: AllocationID, now: float
    ) -> list[SlotManagerAction]:
        """Mark a slot as free, because its TaskExecutor has freed it. Ignored if the slot has
        another allocation by now."""
        slot = self._slot(slot_id, allocation_id)
        if slot is not None:
            self._tracker.free_slot(slot, "freed by its TaskExecutor", now)
        return self.check(now)

    # --- worker groups ----------------------------------------------------------------------------

    def worker_group_started(
        self, request_number: int, group_id: WorkerGroupId, now: float
    ) -> list[SlotManagerAction]:
        """Start the TaskExecutors of a group whose placement group exists now. If the request for
        the group was canceled, release it."""
        return self._after(group_started(self._tracker, request_number, group_id, now), now)

    def worker_group_failed(
        self, request_number: int, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """Request again, with back-off, a placement group that could not be created. (A placement
        group that only waits for room has not failed.)"""
        group_failed(self._tracker, request_number, cause, now)
        return self.check(now)

    def worker_group_lost(
        self, group_id: WorkerGroupId, cause: str, now: float
    ) -> list[SlotManagerAction]:
        """Release a group that was lost, or that lost a bundle because a node died. It is requested
        again if a job still needs it."""
        group = self._tracker.groups.started.get(group_id)
        actions: list[SlotManagerAction] = []
        if group is not None:
            self._tracker.release_group(group, cause, now, actions)
        return actions + self.check(now)

    def recover_worker_group(
        self,
        group_id: WorkerGroupId,
        bundles: tuple[ResourceProfile, ...],
        slots_per_bundle: int,
        owner: WorkerGroupOwner | None,
        live_bundles: tuple[int, ...],
        now: float,
    ) -> list[SlotManagerAction]:
        """Add a worker group that an earlier ResourceManager started. If no job claims it, it is
        released after the idle timeout. *live_bundles*: bundles whose TaskExecutor is alive and
        will register again; until then they count as starting."""
        recovered = recover_group(
            self._tracker, group_id, bundles, slots_per_bundle, owner, live_bundles, now
        )
        return self._after(recovered, now)

    # --- nodes ------------------------------------------------------------------------------------

    def block_nodes(self, nodes: Iterable[BlockedNode], now: float) -> list[SlotManagerAction]:
        """Give no more slots on these nodes to jobs for a while. Jobs keep the slots that they
        have."""
        for node in nodes:
            until = self._tracker.blocklist.block(node, now)
            self._tracker.timetable.set(("blocked", node.node_id), until)
            give_from_node(self._tracker, node.node_id)
        return self.check(now)

    def unblock_node(self, node_id: str, now: float) -> list[SlotManagerAction]:
        """Unblock a node.  Nothing changes if the node is not blocked."""
        if self._tracker.blocklist.unblock(node_id):
            self._tracker.timetable.remove(("blocked", node_id))
            give_from_node(self._tracker, node_id)
        return self.check(now)

    def blocked_nodes(self) -> tuple[BlockedNode, ...]:
        """Return the blocked nodes, in the order in which they were blocked."""
        return self._tracker.blocklist.all()

    # --- time -------------------------------------------------------------------------------------

    def check(self, now: float) -> list[SlotManagerAction]:
        """Carry out everything that is due: timeouts, releases of idle groups, delayed retries, and
        consequences of earlier events."""
        tracker = self._tracker
        actions: list[SlotManagerAction] = []
        for key in tracker.timetable.pop_due(now):
            match cast("tuple[object, ...]", key):
                case (
                    "slot",
                    ManagedSlot(state=SlotState.PENDING) as slot,
                ):  # no report since the request
                    timeout = tracker.settings.slot_request_timeout
                    self._refused(slot, f"no answer to the request for {timeout:g} s", now)
                case ("refused", ManagedSlot() as slot):
                    tracker.index.allow(slot)
                case ("refused", Worker() as worker):
                    worker.refuses_dynamic = False
                    tracker.index.capacity_changed(worker)
                case ("start", WorkerGroupId() as group_id, int(index)):
                    start_failed(self._tracker, group_id, index, "it did not register in time", now)
                case ("idle", WorkerGroupId() as group_id):
                    group = tracker.groups.started.get(group_id)
                    if group is not None:
                        idle_timeout_over(tracker, group, now, actions)
                case ("room", int(number)):
                    # later requests would find nothing more to release
                    if next(iter(tracker.groups.requests), None) == number:
                        room_is_missing(tracker, now, actions)
                case ("released", WorkerGroupId() as group_id):
                    tracker.groups.released.pop(group_id, None)
                case ("retry", WorkerGroupOwner() as owner):
                    tracker.to_check[owner.job_id] = None
                case ("retry", ResourceProfile()):
                    tracker.workers_to_count = True
                case ("blocked", str(node_id)):
                    if tracker.blocklist.is_over(node_id, now):
                        give_from_node(self._tracker, node_id)
        self._checked_at = now
        return actions + check_requirements(tracker, now)

    def next_check_time(self) -> float | None:
        """Return when to call :meth:`check` next; None if no check is needed before another
        event."""
        return self._tracker.timetable.next()

    # --- questions --------------------------------------------------------------------------------

    def shortages(
        self, job_id: JobID, now: float, cluster: ClusterResources
    ) -> tuple[ResourceShortage, ...]:
        """Explain to users why the job's slots are missing; empty if the job requires no slots or
        has all."""
        requirements = self._tracker.jobs.get(job_id)
        return () if requirements is None else explain(self._tracker, requirements, now, cluster)

    @property
    def has_shortage(self) -> bool:
        """Whether any job has fewer slots than it requires."""
        return bool(self._tracker.short)

    def worker_groups_of(self, job_id: JobID) -> tuple[WorkerGroupId, ...]:
        """Return the ids of the worker groups that belong to the job alone."""
        groups = self._tracker.groups
        owned = (groups.of_owner(owner) for owner in groups.owners_of_job(job_id))
        return tuple(group.group_id for group in owned if group is not None)

    def worker_groups(self) -> tuple[WorkerGroupId, ...]:
        """Return the ids of all groups that are started and not released."""
        return tuple(self._tracker.groups.started)

    def task_executors_of(self, job_id: JobID) -> tuple[ResourceID, ...]:
        """Return the TaskExecutors with slots that are allocated to the job or requested for it."""
        slots = self._tracker.index.slots_of_job(job_id)
        return tuple(dict.fromkeys(slot.worker.location.resource_id for slot in slots))

    def task_executors(self) -> tuple[TaskExecutorInfo, ...]:
        """Return information about the registered TaskExecutors, oldest first."""
        return tuple(map(task_executor_info, self._tracker.workers.values()))

    def numbers_of_slots(self) -> tuple[int, int]:
        """Return (number of all slots, number of free slots) of the registered TaskExecutors."""
        total = free = 0
        for worker in self._tracker.workers.values():
            total += worker.number_of_slots
            free += worker.number_static - worker.used_static
        return total, free

    def story_of(self, resource_id: ResourceID) -> str:
        """Return the history of a TaskExecutor and its slots, one line per event. Empty if the
        TaskExecutor is not registered."""
        worker = self._tracker.workers.get(resource_id)
        return "" if worker is None else str(worker.story)

    def shut_down(self, reason: str) -> list[SlotManagerAction]:
        """Cancel all requests and release all groups."""
        tracker = self._tracker
        actions: list[SlotManagerAction] = []
        for job_id in tuple(tracker.jobs):
            tracker.forget_requirements(job_id)
        for request in list(tracker.groups.requests.values()):
            tracker.cancel_request(request, actions)
        for group in list(tracker.groups.started.values()):
            tracker.release_group(group, reason, self._checked_at, actions)
        return actions

    # ----------------------------------------------------------------------------------------------

    def _slot(self, slot_id: SlotID, allocation_id: AllocationID) -> ManagedSlot | None:
        worker = self._tracker.workers.get(slot_id.resource_id)
        if worker is None:
            return None
        slot = worker.dynamic.get(allocation_id) or worker.slots.get(slot_id.slot_index)
        return slot if slot is not None and slot.is_held_by(allocation_id) else None

    def _after(self, actions: list[SlotManagerAction], now: float) -> list[SlotManagerAction]:
        return actions + self.check(now)

    def _refused(self, slot: ManagedSlot, cause: str, now: float) -> None:
        tracker = self._tracker
        tracker.free_slot(slot, cause, now)
        until = now + REFUSED_SLOT_DELAY
        if slot.is_dynamic:
            slot.worker.refuses_dynamic = True
            tracker.index.capacity_changed(slot.worker)
            tracker.timetable.set(("refused", slot.worker), until)
        else:
            tracker.index.refuse(slot)
            tracker.timetable.set(("refused", slot), until)
