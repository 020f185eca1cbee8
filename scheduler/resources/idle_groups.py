"""Decides how long idle worker groups are kept, and releases them."""

from __future__ import annotations

from flinkray.scheduler.resources.resource_tracker import ResourceTracker
from flinkray.scheduler.resources.slot_manager_actions import (
    AskWhetherReleasable,
    SlotManagerAction,
)
from flinkray.scheduler.resources.worker_groups import WorkerGroup


def look_after_groups(
    tracker: ResourceTracker, now: float, actions: list[SlotManagerAction]
) -> None:
    """Check each worker group that has changed since the last call: start the idle timeout of a
    group that no job needs, and stop the timeout of a group that is needed. Release unneeded shared
    groups that have no TaskExecutors."""
    while tracker.to_look_after:
        to_look_after, tracker.to_look_after = tracker.to_look_after, {}
        for group_id in to_look_after:
            group = tracker.groups.started.get(group_id)
            if group is not None:
                _look_after(tracker, group, now, actions)


def room_is_missing(tracker: ResourceTracker, now: float, actions: list[SlotManagerAction]) -> None:
    """Release unneeded groups at once, because there is no room for a requested worker group."""
    for group in list(tracker.groups.started.values()):
        if group.unneeded_since is not None and not _patience(tracker, group, now):
            idle_timeout_over(tracker, group, now, actions)


def idle_timeout_over(
    tracker: ResourceTracker, group: WorkerGroup, now: float, actions: list[SlotManagerAction]
) -> None:
    """Release a group that was not needed for the idle timeout. A job's own group, or a group
    without TaskExecutors, is released at once. The TaskExecutors of a shared group are first asked
    whether they can be released (SM-15), unless the reserve of free slots needs the group: then it
    stays."""
    if group.unneeded_since is None:
        return
    workers = tracker.workers_of(group) if group.is_shared else []
    if workers and _is_redundant_reserve(tracker, group):
        tracker.timetable.set(("idle", group.group_id), now + tracker.settings.idle_timeout)
    elif workers:
        names = tuple(worker.location.resource_id for worker in workers)
        actions.append(AskWhetherReleasable(group.group_id, names))
        # Retry if there is no answer.
        tracker.timetable.set(("idle", group.group_id), now + tracker.settings.idle_timeout)
    else:
        _release(tracker, group, now, actions)


def may_be_released(
    tracker: ResourceTracker, group: WorkerGroup, now: float, actions: list[SlotManagerAction]
) -> None:
    """Release the group, whose TaskExecutors have agreed, unless it is needed again by now or the
    reserve of free slots needs it. (Other groups may have been released in the meantime, and jobs
    may have taken slots.)"""
    since = group.unneeded_since
    if since is None or now < since + _patience(tracker, group, now):
        return
    if not _is_redundant_reserve(tracker, group):
        _release(tracker, group, now, actions)


def _release(
    tracker: ResourceTracker, group: WorkerGroup, now: float, actions: list[SlotManagerAction]
) -> None:
    reason = f"not needed for {tracker.settings.idle_timeout:g} s"
    if not _patience(tracker, group, now):
        reason = "not needed, and others wait for room"
    tracker.release_group(group, reason, now, actions)


def _look_after(
    tracker: ResourceTracker, group: WorkerGroup, now: float, actions: list[SlotManagerAction]
) -> None:
    if _is_needed(tracker, group):
        group.unneeded_since = None
        tracker.timetable.remove(("idle", group.group_id))
        return
    if group.is_shared and len(group.empty) == len(group.bundles):
        tracker.release_group(group, "its TaskExecutor is gone and not needed", now, actions)
    elif group.unneeded_since is None:
        group.unneeded_since = now
        tracker.timetable.set(("idle", group.group_id), now + tracker.settings.idle_timeout)
        if not _patience(tracker, group, now):
            idle_timeout_over(tracker, group, now, actions)


def _patience(tracker: ResourceTracker, group: WorkerGroup, now: float) -> float:
    """Return the seconds for which the unneeded group is kept. 0 while a request waits for room,
    unless the group is unknown or its job has no JobMaster."""
    may_be_claimed = not group.is_known or (
        group.owner is not None and group.owner.job_id not in tracker.jobs
    )
    if tracker.is_waiting_for_room(now) and not may_be_claimed:
        return 0.0
    return tracker.settings.idle_timeout


def _is_needed(tracker: ResourceTracker, group: WorkerGroup) -> bool:
    """Return whether a job uses slots of the group or waits for them, so that no timeout may
    release the group."""
    if not group.is_known:
        return False
    if group.owner is None:
        is_coming = group.number_starting > 0 and group.kind in tracker.shared_workers_awaited
        return is_coming or not tracker.is_unused(group)
    return group.owner in tracker.bundles_wanted or not tracker.is_unused(group)


def _is_redundant_reserve(tracker: ResourceTracker, group: WorkerGroup) -> bool:
    """Return whether the group must stay, because otherwise fewer slots would be free than the
    reserve that the settings ask for (redundant workers). Always False if no job uses shared
    workers."""
    settings = tracker.settings
    if not settings.redundant_workers or not tracker.users_of_shared_workers:
        return False
    if group.kind != settings.shared_worker_profile:
        return False
    free = tracker.index.free_shared[settings.shared_worker_profile]
    left = free - sum(w.available_static() for w in tracker.workers_of(group))
    return left < settings.redundant_workers * settings.shared_worker_slots
