"""The requirement check: what has to be started, asked for and released so that jobs get what they
require."""

from __future__ import annotations

from math import ceil

from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.matching import match_slots, size_of
from flinkray.scheduler.slot_books import SlotBooks
from flinkray.scheduler.slot_manager_actions import SlotManagerAction
from flinkray.scheduler.slots import ResourceRequirement, ResourceRequirements
from flinkray.scheduler.worker_groups import BundleState, WorkerGroup
from flinkray.scheduler.workers import ManagedSlot, SlotState


def check_requirements(books: SlotBooks, now: float) -> list[SlotManagerAction]:
    """Bring workers and slots in line with the requirements; a second call in a row changes
    nothing."""
    actions: list[SlotManagerAction] = []
    for requirements in books.jobs.values():
        if requirements.dedicated_workers:
            _check_dedicated(books, requirements, now, actions)
    waiting = _check_shared(books, now, actions)
    _release_idle_groups(books, waiting, now, actions)
    return actions


def bundles_for(requirements: ResourceRequirements) -> tuple[ResourceProfile, ...]:
    """The bundles of the worker group that a job with dedicated workers needs."""
    return tuple(r.profile for r in requirements.requirements for _ in range(r.count))


def missing_slots(
    books: SlotBooks, requirements: ResourceRequirements
) -> tuple[ResourceRequirement, ...]:
    """What the job has neither been given nor is being given."""
    slots = _counting_slots(books, requirements)
    return match_slots(requirements.requirements, [s.profile for s in slots]).missing


def _counting_slots(books: SlotBooks, requirements: ResourceRequirements) -> list[ManagedSlot]:
    """The job's slots that count for its requirements: of its own group, or of shared workers."""
    owner = requirements.job_id if requirements.dedicated_workers else None
    return [
        slot
        for slot in books.slots_of_job(requirements.job_id)
        if (group := books.groups.started.get(slot.worker.location.worker_group)) is not None
        and group.is_known
        and group.job_id == owner
    ]


# --- dedicated workers ----------------------------------------------------------------------------


def _check_dedicated(
    books: SlotBooks,
    requirements: ResourceRequirements,
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    job_id = requirements.job_id
    wanted = bundles_for(requirements)
    request = books.groups.request_of_job(job_id)
    if request is not None and request.profiles != wanted:
        books.cancel_request(request, actions)
        request = None
    group = books.groups.of_job(job_id)
    if not wanted:
        return
    if group is not None and group.profiles != wanted:
        books.release_group(group, "its job requires another set of slots now", now, actions)
        group = None
    if group is not None:
        _use_group(books, group, requirements, now, actions)
    elif request is None and _may_request_group(books, job_id, now):
        books.request_group(wanted, 1, job_id, now, actions)


def _may_request_group(books: SlotBooks, job_id: JobID | None, now: float) -> bool:
    failures = books.groups.failures.get(job_id)
    return failures is None or failures.not_before <= now


def _use_group(
    books: SlotBooks,
    group: WorkerGroup,
    requirements: ResourceRequirements,
    now: float,
    actions: list[SlotManagerAction],
) -> None:
    for _, bundle in sorted(group.bundles.items()):
        if bundle.state is BundleState.EMPTY:
            books.start_task_executor(group, bundle, now, actions)
    for worker in books.workers_of(group):
        for slot in worker.free_slots(now):
            books.request_slot(slot, requirements, now, actions)


# --- shared workers -------------------------------------------------------------------------------


def _check_shared(books: SlotBooks, now: float, actions: list[SlotManagerAction]) -> int:
    """The number of slots for which shared workers are being started."""
    waiting = 0
    for requirements in books.jobs.values():
        if not requirements.dedicated_workers:
            waiting += _give_free_slots(books, requirements, now, actions)
    per_worker = books.settings.shared_worker_slots
    workers_wanted = ceil(waiting / per_worker)
    coming = [g for g in _shared_groups(books) if g.count(BundleState.STARTING) > 0]
    workers_wanted -= sum(group.count(BundleState.STARTING) for group in coming)
    for group in _shared_groups(books):
        for _, bundle in sorted(group.bundles.items()):
            if bundle.state is BundleState.EMPTY and workers_wanted > 0:
                books.start_task_executor(group, bundle, now, actions)
                workers_wanted -= 1
    requests = [r for r in books.groups.requests.values() if r.job_id is None]
    for request in reversed(requests[max(0, workers_wanted) :]):
        books.cancel_request(request, actions)
    if _may_request_group(books, None, now):
        for _ in range(workers_wanted - len(requests)):
            profile = books.settings.shared_worker_profile
            books.request_group((profile,), per_worker, None, now, actions)
    return waiting


def _shared_groups(books: SlotBooks) -> list[WorkerGroup]:
    return [g for g in books.groups.started.values() if g.job_id is None and g.is_known]


def _give_free_slots(
    books: SlotBooks,
    requirements: ResourceRequirements,
    now: float,
    actions: list[SlotManagerAction],
) -> int:
    """Ask for free slots for a job; the number of slots it still waits for and new workers could
    give.

    Of the slots that hold the profile the smallest is taken; of equal ones that on the fullest
    worker, so that idle workers can go; then the oldest worker's first.
    """
    waiting = 0
    for requirement in missing_slots(books, requirements):
        for _ in range(requirement.count):
            candidates = [
                slot
                for group in _shared_groups(books)
                for worker in books.workers_of(group)
                for slot in worker.free_slots(now)
                if requirement.profile.fits_into(slot.profile)
            ]
            if candidates:
                best = min(candidates, key=lambda s: (size_of(s.profile), _number_free(s)))
                books.request_slot(best, requirements, now, actions)
            elif requirement.profile.fits_into(books.settings.shared_slot_profile):
                waiting += 1
    return waiting


def _number_free(slot: ManagedSlot) -> int:
    return sum(other.state is SlotState.FREE for other in slot.worker.slots.values())


# --- idle workers ---------------------------------------------------------------------------------


def _is_needed(books: SlotBooks, group: WorkerGroup, waiting: int) -> bool:
    """Whether the group must not be released, however long that lasts."""
    if not group.is_known:
        return False
    if group.job_id is None:
        is_coming = waiting > 0 and group.count(BundleState.STARTING) > 0
        return is_coming or not books.is_unused(group)
    requirements = books.jobs.get(group.job_id)
    if requirements is None:
        return False
    return bool(requirements.requirements) or not books.is_unused(group)


def _release_idle_groups(
    books: SlotBooks, waiting: int, now: float, actions: list[SlotManagerAction]
) -> None:
    timeout = books.settings.idle_timeout
    for group in list(books.groups.started.values()):
        if _is_needed(books, group, waiting):
            group.unneeded_since = None
            continue
        if group.unneeded_since is None:
            group.unneeded_since = now
        if group.job_id is None and group.is_known and not books.has_live_bundle(group):
            books.release_group(group, "its TaskExecutor is gone and not needed", now, actions)
        elif now >= group.unneeded_since + timeout:
            books.release_group(group, f"not needed for {timeout:g} s", now, actions)
