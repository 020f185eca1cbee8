"""Registers TaskExecutors and worker groups in the SlotManager's tracker, and records failed
starts."""

from __future__ import annotations

from flinkray.core.ids import WorkerGroupId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.reports.job_info import TaskExecutorInfo
from flinkray.scheduler.resources.resource_tracker import ResourceTracker
from flinkray.scheduler.resources.slot_manager_actions import (
    ReleaseWorkerGroup,
    SlotManagerAction,
    StopTaskExecutor,
)
from flinkray.scheduler.resources.worker_groups import BundleState, WorkerGroup
from flinkray.scheduler.resources.workers import SlotState, Worker
from flinkray.scheduler.shared.slots import SlotReport, WorkerGroupOwner, WorkerLocation
from flinkray.scheduler.shared.story import Story

# --- TaskExecutors --------------------------------------------------------------------------------


def register_task_executor(
    tracker: ResourceTracker,
    location: WorkerLocation,
    total_profile: ResourceProfile,
    report: SlotReport,
    now: float,
) -> list[SlotManagerAction]:
    """Register a TaskExecutor, in place of another process that registered under the same name.
    Returns a StopTaskExecutor if it is not wanted: its group is released, its bundle has a
    TaskExecutor already, or its resources are too small."""
    actions: list[SlotManagerAction] = []
    resource_id = location.resource_id
    if location.worker_group in tracker.groups.released:
        reason = f"worker group {location.worker_group} is released"
        return [StopTaskExecutor(resource_id, location.address, reason)]
    known = tracker.workers.get(resource_id)
    if known is not None and known.location == location:
        known.story.add(now, "registered again")
        apply_report(tracker, known, report, now)
        return []
    if known is not None:
        cause = f"another process registered under its name (pid {location.pid})"
        tracker.drop_worker(known, cause, now, actions)
    group = _group_of(tracker, location, total_profile)
    bundle = group.bundles[location.bundle_index]
    where = f"bundle {location.bundle_index} of {group.text} on {location.node_ip}"
    if bundle.state is BundleState.REGISTERED:
        reason = f"{where} has a TaskExecutor, {bundle.resource_id}"
        return [*actions, StopTaskExecutor(resource_id, location.address, reason)]
    is_used = any(status.allocation_id is not None for status in report.slots)
    if not is_used and not bundle.profile.fits_into(total_profile):
        reason = f"{where} was to have {bundle.profile}, and it has {total_profile}"
        start_failed(tracker, group.group_id, bundle.index, reason, now)
        return [*actions, StopTaskExecutor(resource_id, location.address, reason)]
    story = Story(f"TaskExecutor {resource_id}", limit=200)
    story.add(now, f"registered from {where}, pid {location.pid}")
    worker = Worker(
        location,
        total_profile,
        now,
        story,
        tracker.index,
        number=tracker.next_number(),
        owner=group.owner,
        is_usable=group.is_known and location.node_id not in tracker.blocklist,
    )
    tracker.add_worker(worker, group)
    apply_report(tracker, worker, report, now)
    if group.is_shared and worker.is_unused and tracker.exceeds_limit(0):
        reason = f"there would be more than {tracker.settings.max_slots} slots"
        tracker.release_group(group, reason, now, actions)
    return actions


def apply_report(tracker: ResourceTracker, worker: Worker, report: SlotReport, now: float) -> None:
    """Apply a slot report.  The next check considers jobs that had or have slots on the worker."""
    if worker.agrees_with(report):
        return
    tracker.slots_changed(worker)
    worker.apply_report(report, now)
    tracker.slots_changed(worker)


def start_failed(
    tracker: ResourceTracker, group_id: WorkerGroupId, bundle_index: int, cause: str, now: float
) -> None:
    """Empty the bundle in which a TaskExecutor could not be started. Ignored if none is being
    started there."""
    group = tracker.groups.started.get(group_id)
    bundle = group.bundles.get(bundle_index) if group else None
    if group is not None and bundle is not None and bundle.state is BundleState.STARTING:
        tracker.empty_bundle(group, bundle, cause, lived=0.0, now=now)


def give_from_node(tracker: ResourceTracker, node_id: str) -> None:
    """Update whether slots on this node can be given, because the node was blocked or unblocked."""
    for worker in tracker.workers.values():
        group = tracker.groups.started.get(worker.location.worker_group)
        if worker.location.node_id == node_id and group is not None:
            tracker.give_from(worker, group)


def task_executor_info(worker: Worker) -> TaskExecutorInfo:
    """Return information about the worker, for users."""
    slots = {*worker.slots.values(), *worker.dynamic.values()}
    indexes = sorted(slots, key=lambda slot: slot.slot_id.slot_index)
    jobs = (slot.job_id for slot in indexes if slot.job_id is not None)
    free = sum(slot.state is SlotState.FREE for slot in slots)
    return TaskExecutorInfo(worker.location, worker.total_profile, len(slots), free, tuple(jobs))


# --- worker groups --------------------------------------------------------------------------------


def group_started(
    tracker: ResourceTracker, request_number: int, group_id: WorkerGroupId, now: float
) -> list[SlotManagerAction]:
    """Add a worker group whose placement group exists now, and start its TaskExecutors. If the
    request for it was canceled, release it."""
    request = tracker.take_request(request_number)
    if request is None:
        tracker.note_released(group_id, now)
        return [ReleaseWorkerGroup(group_id, "it is not wanted any more")]
    actions: list[SlotManagerAction] = []
    group = WorkerGroup(group_id, request.slots_per_bundle, request.owner)
    group.add_bundles(request.profiles)
    tracker.groups.started[group_id] = group
    tracker.groups.failures.pop(request.kind, None)
    for bundle in group.bundles.values():
        tracker.start_task_executor(group, bundle, now, actions)
    tracker.group_changed(group)
    return actions


def group_failed(tracker: ResourceTracker, request_number: int, cause: str, now: float) -> None:
    """Set when a worker group that could not be created is requested again: after a delay that
    grows with each failure."""
    request = tracker.take_request(request_number)
    if request is not None:
        tracker.start_rate.failed(now)
        not_before = tracker.groups.request_failed(request.kind, cause, now)
        tracker.timetable.set(("retry", request.kind), not_before)


def recover_group(
    tracker: ResourceTracker,
    group_id: WorkerGroupId,
    bundles: tuple[ResourceProfile, ...],
    slots_per_bundle: int,
    owner: WorkerGroupOwner | None,
    live_bundles: tuple[int, ...],
    now: float,
) -> list[SlotManagerAction]:
    """Add a worker group that an earlier ResourceManager started. If the group was released before,
    or its owner has another group, release it instead."""
    if group_id in tracker.groups.released:
        return [ReleaseWorkerGroup(group_id, "it was released before")]
    known = tracker.groups.started.get(group_id)
    if known is not None and known.is_known:
        return []
    if owner is not None and tracker.groups.of_owner(owner) is not None:
        tracker.note_released(group_id, now)
        reason = f"job {owner.job_id} has another worker group {owner.name!r}"
        return [ReleaseWorkerGroup(group_id, reason)]
    group = WorkerGroup(group_id, slots_per_bundle, owner)
    group.add_bundles(bundles)
    tracker.groups.started[group_id] = group
    for index, bundle in group.bundles.items():
        before = known.bundles.get(index) if known is not None else None
        if before is not None and before.resource_id is not None:
            group.registered(bundle, before.resource_id)
        elif index in live_bundles:
            group.starting(bundle)
            timeout = tracker.settings.previous_worker_timeout
            tracker.timetable.set(("start", group_id, index), now + timeout)
    tracker.group_changed(group)
    for worker in tracker.workers_of(group):
        tracker.give_from(worker, group)
    actions: list[SlotManagerAction] = []
    request = None if owner is None else tracker.groups.request_of_owner(owner)
    if request is not None and request.profiles == group.profiles:
        tracker.cancel_request(request, actions)
    return actions


def _group_of(
    tracker: ResourceTracker, location: WorkerLocation, total_profile: ResourceProfile
) -> WorkerGroup:
    """Return the group that a registering TaskExecutor names. The group has the TaskExecutor's
    bundle; an unknown group is added, with ``is_known`` False."""
    group = tracker.groups.started.get(location.worker_group)
    if group is None:
        group = WorkerGroup(location.worker_group, 0, None, is_known=False)
        tracker.groups.started[group.group_id] = group
    if location.bundle_index not in group.bundles:
        group.add_bundle(location.bundle_index, total_profile)
    return group
