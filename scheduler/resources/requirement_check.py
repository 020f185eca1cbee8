"""The requirement check: what is started and asked for so that jobs get what they require."""

from __future__ import annotations

from flinkray.core.ids import JobID
from flinkray.scheduler.resources.idle_groups import look_after_groups
from flinkray.scheduler.resources.slot_books import SlotBooks
from flinkray.scheduler.resources.slot_manager_actions import SlotManagerAction
from flinkray.scheduler.resources.worker_demand import redundant_workers_missing, workers_for
from flinkray.scheduler.shared.slots import (
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    WorkerGroupOwner,
)


def check_requirements(books: SlotBooks, now: float) -> list[SlotManagerAction]:
    """Bring workers and slots in line with the requirements; a second call in a row changes
    nothing.

    Looks at what has changed since the last call only.
    """
    actions: list[SlotManagerAction] = []
    while books.has_changes:
        _check_jobs(books, now, actions)
        if books.workers_to_count or books.settings.redundant_workers:
            books.workers_to_count = False
            _count_shared_workers(books, now, actions)
        look_after_groups(books, now, actions)
    return actions


def _check_jobs(books: SlotBooks, now: float, actions: list[SlotManagerAction]) -> None:
    to_check, books.to_check = books.to_check, {}
    if books.index.has_grown:
        books.index.has_grown = False
        to_check.update(dict.fromkeys(books.short))
    jobs = [job_id for job_id in to_check if job_id in books.jobs]
    for job_id in sorted(jobs, key=books.order.__getitem__):
        requirements = books.jobs[job_id]
        before = _missing_of_shared(books, job_id)
        for owner in books.groups.owners_of_job(job_id):
            if owner not in books.bundles_wanted:
                _give_up_request(books, owner, actions)
        _ask_shared_workers(books, requirements, now, actions)
        for requirement in requirements.requirements:
            if requirement.constraint is not None:
                _check_own_group(books, requirements, requirement.constraint, now, actions)
        _note_missing(books, requirements)
        if _missing_of_shared(books, job_id) != before:
            books.workers_to_count = True


def _note_missing(books: SlotBooks, requirements: ResourceRequirements) -> None:
    missing = books.missing(requirements)
    if missing:
        books.short[requirements.job_id] = missing
    else:
        books.short.pop(requirements.job_id, None)


def _missing_of_shared(books: SlotBooks, job_id: JobID) -> list[ResourceRequirement]:
    """What was missing of shared workers at the last look."""
    return [missing for missing in books.short.get(job_id, ()) if missing.constraint is None]


# --- worker groups of a job's own -----------------------------------------------------------------


def _check_own_group(
    books: SlotBooks,
    requirements: ResourceRequirements,
    constraint: SameWorkerGroup,
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    owner = WorkerGroupOwner(requirements.job_id, constraint.name)
    wanted = books.bundles_wanted[owner]
    request = books.groups.request_of_owner(owner)
    if request is not None and request.profiles != wanted:
        books.cancel_request(request, actions)
        request = None
    group = books.groups.of_owner(owner)
    if group is not None and group.profiles != wanted:
        books.release_group(group, "its job requires another set of slots now", now, actions)
        group = None
    if group is not None:
        for _, bundle in sorted(group.empty.items()):
            books.start_task_executor(group, bundle, now, actions)
        workers = books.index.workers_of_owner(owner)
        for worker in sorted(workers, key=lambda worker: worker.location.bundle_index):
            for _ in range(worker.available_static()):
                books.request_slot(worker.next_static(), requirements, constraint, now, actions)
    elif request is None and _may_request_group(books, owner, now):
        books.exhausted.discard((owner.job_id, owner))
        if books.exceeds_limit(len(wanted)):
            books.exhausted.add((owner.job_id, owner))
        else:
            books.request_group(wanted, 1, owner, now, actions)


def _give_up_request(
    books: SlotBooks, owner: WorkerGroupOwner, actions: list[SlotManagerAction]
) -> None:
    """A group that is there already waits for the idle time-out."""
    request = books.groups.request_of_owner(owner)
    if request is not None:
        books.cancel_request(request, actions)


def _may_request_group(books: SlotBooks, owner: WorkerGroupOwner | None, now: float) -> bool:
    failures = books.groups.failures.get(owner)
    if failures is not None and failures.not_before > now:
        return False
    delay = books.start_rate.delay(now)
    if delay:
        books.deadlines.set(("retry", owner), now + delay)
    return not delay


# --- shared workers -------------------------------------------------------------------------------


def _ask_shared_workers(
    books: SlotBooks,
    requirements: ResourceRequirements,
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    """Ask for free slots for a job."""
    for requirement in books.missing(requirements):
        if requirement.constraint is not None:
            continue
        for _ in range(requirement.count):
            slot = books.index.best_shared(requirement.profile)
            if slot is None:
                break
            books.request_slot(slot, requirements, None, now, actions)


def _count_shared_workers(books: SlotBooks, now: float, actions: list[SlotManagerAction]) -> None:
    """Start as many shared workers as are wanted, and give up requests for more."""
    settings, groups = books.settings, books.groups
    waiting = {
        job_id: missing for job_id in books.short if (missing := _missing_of_shared(books, job_id))
    }
    missing = [requirement for per_job in waiting.values() for requirement in per_job]
    wanted = workers_for(missing, settings.shared_worker_profile, settings.shared_slot_profile)
    wanted += _redundant_workers(books)
    if books.waits_for_shared_workers != (wanted > 0):
        books.waits_for_shared_workers = wanted > 0
        books.to_look_after.update(dict.fromkeys(groups.shared_starting))
    wanted -= groups.number_of_shared_workers_coming
    requested = len(groups.shared_requests)
    if requested > max(0, wanted):
        requests = list(groups.shared_requests.values())
        for request in reversed(requests[max(0, wanted) :]):
            books.cancel_request(request, actions)
    wanted -= requested
    for group in tuple(groups.shared_empty.values()):
        for _, bundle in sorted(group.empty.items()):
            if wanted > 0 and not books.exceeds_limit(group.slots_per_bundle):
                books.start_task_executor(group, bundle, now, actions)
                wanted -= 1
    books.exhausted.difference_update((job_id, None) for job_id in waiting)
    if wanted > 0 and _may_request_group(books, None, now):
        slots = settings.shared_worker_slots
        for _ in range(wanted):
            if books.exceeds_limit(slots):
                books.exhausted.update((job_id, None) for job_id in waiting)
                break
            books.request_group((settings.shared_worker_profile,), slots, None, now, actions)


def _redundant_workers(books: SlotBooks) -> int:
    settings = books.settings
    if not settings.redundant_workers or not books.users_of_shared_workers:
        return 0
    return redundant_workers_missing(
        settings.redundant_workers, settings.shared_worker_slots, books.index.free_shared
    )
