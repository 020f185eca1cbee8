"""Compares requirements with slots: requests slots that jobs require, and starts as many workers as
are needed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from math import ceil

from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.idle_groups import look_after_groups
from flinkray.scheduler.resources.resource_tracker import ResourceTracker
from flinkray.scheduler.resources.slot_index import Service, service_of
from flinkray.scheduler.resources.slot_manager_actions import SlotManagerAction
from flinkray.scheduler.resources.worker_groups import GroupKind
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    WorkerGroupOwner,
    profile_of_slot,
    size_of,
    times_it_fits,
)


def check_requirements(tracker: ResourceTracker, now: float) -> list[SlotManagerAction]:
    """Request the slots that jobs require, start workers for the missing slots, and release worker
    groups that are not needed. Considers only what has changed since the last call, so that a
    second call in a row does nothing."""
    actions: list[SlotManagerAction] = []
    while tracker.has_changes:
        _check_jobs(tracker, now, actions)
        if tracker.workers_to_count or tracker.settings.redundant_workers:
            tracker.workers_to_count = False
            _count_shared_workers(tracker, now, actions)
        look_after_groups(tracker, now, actions)
    return actions


def _check_jobs(tracker: ResourceTracker, now: float, actions: list[SlotManagerAction]) -> None:
    to_check, tracker.to_check = tracker.to_check, {}
    if tracker.index.has_grown:
        tracker.index.has_grown = False
        to_check.update(dict.fromkeys(tracker.short))
    jobs = [job_id for job_id in to_check if job_id in tracker.jobs]
    for job_id in sorted(jobs, key=tracker.order.__getitem__):
        requirements = tracker.jobs[job_id]
        before = _missing_of_shared(tracker, job_id)
        for owner in tracker.groups.owners_of_job(job_id):
            if owner not in tracker.bundles_wanted:
                _give_up_request(tracker, owner, actions)
        _ask_shared_workers(tracker, requirements, now, actions)
        for requirement in requirements.requirements:
            if requirement.constraint is not None:
                _check_own_group(tracker, requirements, requirement.constraint, now, actions)
        _note_missing(tracker, requirements)
        if _missing_of_shared(tracker, job_id) != before:
            tracker.workers_to_count = True


def _note_missing(tracker: ResourceTracker, requirements: ResourceRequirements) -> None:
    missing = tracker.missing(requirements)
    if missing:
        tracker.short[requirements.job_id] = missing
    else:
        tracker.short.pop(requirements.job_id, None)


def _missing_of_shared(tracker: ResourceTracker, job_id: JobID) -> list[ResourceRequirement]:
    return [missing for missing in tracker.short.get(job_id, ()) if missing.constraint is None]


# --- worker groups of a job's own -----------------------------------------------------------------


def _check_own_group(
    tracker: ResourceTracker,
    requirements: ResourceRequirements,
    constraint: SameWorkerGroup,
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    owner = WorkerGroupOwner(requirements.job_id, constraint.name)
    wanted = tracker.bundles_wanted[owner]
    request = tracker.groups.request_of_owner(owner)
    if request is not None and request.profiles != wanted:
        tracker.cancel_request(request, actions)
        request = None
    group = tracker.groups.of_owner(owner)
    if group is not None and group.profiles != wanted:
        tracker.release_group(group, "its job requires another set of slots now", now, actions)
        group = None
    if group is not None:
        for _, bundle in sorted(group.empty.items()):
            tracker.start_task_executor(group, bundle, now, actions)
        workers = tracker.index.workers_of_owner(owner)
        for worker in sorted(workers, key=lambda worker: worker.location.bundle_index):
            for _ in range(worker.available_static()):
                tracker.request_slot(worker.next_static(), requirements, constraint, now, actions)
    elif request is None and _may_request_group(tracker, owner, now):
        tracker.exhausted.discard((owner.job_id, owner))
        if tracker.exceeds_limit(len(wanted)):
            tracker.exhausted.add((owner.job_id, owner))
        else:
            tracker.request_group(wanted, 1, owner, now, actions)


def _give_up_request(
    tracker: ResourceTracker, owner: WorkerGroupOwner, actions: list[SlotManagerAction]
) -> None:
    """Cancel the owner's unanswered request for a group. If the group exists already, it is
    released after the idle timeout."""
    request = tracker.groups.request_of_owner(owner)
    if request is not None:
        tracker.cancel_request(request, actions)


def _may_request_group(tracker: ResourceTracker, kind: GroupKind, now: float) -> bool:
    failures = tracker.groups.failures.get(kind)
    if failures is not None and failures.not_before > now:
        return False
    delay = tracker.start_rate.delay(now)
    if delay:
        tracker.timetable.set(("retry", kind), now + delay)
    return not delay


# --- shared workers -------------------------------------------------------------------------------


def _ask_shared_workers(
    tracker: ResourceTracker,
    requirements: ResourceRequirements,
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    for requirement in tracker.missing(requirements):
        if requirement.constraint is not None:
            continue
        for _ in range(requirement.count):
            slot = tracker.index.best_shared(requirement.profile)
            if slot is None:
                break
            tracker.request_slot(slot, requirements, None, now, actions)


def _count_shared_workers(
    tracker: ResourceTracker, now: float, actions: list[SlotManagerAction]
) -> None:
    """Start as many shared workers of each size as the jobs and the reserve need, and cancel
    requests for workers beyond that."""
    settings, groups = tracker.settings, tracker.groups
    waiting: dict[ResourceProfile, dict[JobID, list[ResourceRequirement]]] = {}
    for job_id in tracker.short:
        for missing in _missing_of_shared(tracker, job_id):
            worker = settings.shared_worker_for(missing.profile)
            waiting.setdefault(worker, {}).setdefault(job_id, []).append(missing)
    workers = dict.fromkeys((settings.shared_worker_profile, *waiting))
    workers.update(dict.fromkeys(r.profiles[0] for r in groups.shared_requests.values()))
    workers.update(dict.fromkeys(sorted(tracker.shared_workers_awaited, key=size_of)))
    for worker in workers:
        _count_workers(tracker, worker, waiting.get(worker, {}), now, actions)


def _count_workers(
    tracker: ResourceTracker,
    worker: ResourceProfile,
    waiting: dict[JobID, list[ResourceRequirement]],
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    """Do this for the shared workers of one size. *waiting*: the slots that jobs miss."""
    settings, groups = tracker.settings, tracker.groups
    slots = settings.slots_of(worker)
    missing = [requirement for per_job in waiting.values() for requirement in per_job]
    wanted = workers_for(missing, worker, profile_of_slot(worker, slots))
    if worker == settings.shared_worker_profile:
        wanted += _redundant_workers(tracker)
    if (worker in tracker.shared_workers_awaited) != (wanted > 0):
        tracker.shared_workers_awaited ^= {worker}
        tracker.to_look_after.update(dict.fromkeys(groups.shared_starting))
    wanted -= groups.shared_workers_coming[worker]
    requests = groups.shared_requests_of(worker)
    for request in reversed(requests[max(0, wanted) :]):
        tracker.cancel_request(request, actions)
    wanted -= len(requests)
    for group in [group for group in groups.shared_empty.values() if group.kind == worker]:
        for _, bundle in sorted(group.empty.items()):
            if wanted > 0 and not tracker.exceeds_limit(group.slots_per_bundle):
                tracker.start_task_executor(group, bundle, now, actions)
                wanted -= 1
    tracker.exhausted.difference_update((job_id, worker) for job_id in waiting)
    if wanted > 0 and _may_request_group(tracker, worker, now):
        for _ in range(wanted):
            if tracker.exceeds_limit(slots):
                unserved = _jobs_without_workers(tracker, worker, waiting)
                tracker.exhausted.update((job_id, worker) for job_id in unserved)
                break
            tracker.request_group((worker,), slots, None, now, actions)


def _jobs_without_workers(
    tracker: ResourceTracker,
    worker: ResourceProfile,
    waiting: dict[JobID, list[ResourceRequirement]],
) -> list[JobID]:
    """Return the jobs that must go without workers, because the workers being started are too few
    for all. The workers are counted for the jobs in the order of the jobs' ranks."""
    groups, slot = tracker.groups, profile_of_slot(worker, tracker.settings.slots_of(worker))
    coming = groups.shared_workers_coming[worker] + len(groups.shared_requests_of(worker))
    jobs = sorted(waiting, key=tracker.order.__getitem__)

    def are_too_few_for(number: int) -> bool:
        missing = [requirement for job_id in jobs[: number + 1] for requirement in waiting[job_id]]
        return workers_for(missing, worker, slot) > coming

    return jobs[bisect_left(range(len(jobs)), True, key=are_too_few_for) :]


def _redundant_workers(tracker: ResourceTracker) -> int:
    settings = tracker.settings
    if not tracker.users_of_shared_workers:
        return 0
    free = tracker.index.free_shared[settings.shared_worker_profile]
    return redundant_workers_missing(settings.redundant_workers, settings.shared_worker_slots, free)


def workers_for(
    missing: Iterable[ResourceRequirement], worker: ResourceProfile, slot_profile: ResourceProfile
) -> int:
    """Return how many workers are needed to hold the missing slots (SM-10); slots larger than a
    worker are left out. The largest slots come first, each in the first worker with room. Workers
    with the same content are counted together, so that the time does not depend on the number of
    slots."""
    wanted: dict[ResourceProfile, int] = {}
    for requirement in missing:
        service = service_of(requirement.profile, worker, slot_profile)
        if service is not Service.NOT:
            taken = slot_profile if service is Service.STATIC else requirement.profile
            wanted[taken] = wanted.get(taken, 0) + requirement.count
    if not wanted:
        return 0
    opened: list[tuple[ResourceProfile, int]] = []
    """(remaining profile, number of workers with this profile)"""
    for profile in sorted(wanted, key=size_of, reverse=True):
        still = wanted[profile]
        filled: list[tuple[ResourceProfile, int]] = []
        for left, number in opened:
            each = int(min(times_it_fits(profile, left), still))
            if each == 0:
                filled.append((left, number))
                continue
            full = min(number, still // each)
            filled.append((left.reduced_by(profile.times(each)), full))
            still -= full * each
            rest = min(still, each) if full < number else 0
            if rest:
                filled.append((left.reduced_by(profile.times(rest)), 1))
                still -= rest
            unused = number - full - (1 if rest else 0)
            if unused:
                filled.append((left, unused))
        if still:
            each = int(min(times_it_fits(profile, worker), still))
            full, rest = divmod(still, each)
            filled.append((worker.reduced_by(profile.times(each)), full))
            if rest:
                filled.append((worker.reduced_by(profile.times(rest)), 1))
        opened = [(left, number) for left, number in filled if number]
    return sum(number for _, number in opened)


def redundant_workers_missing(redundant: int, slots_per_worker: int, free_slots: int) -> int:
    """Return how many further workers are needed until the slots of *redundant* workers are
    free."""
    return max(0, ceil((redundant * slots_per_worker - free_slots) / slots_per_worker))
