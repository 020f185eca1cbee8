"""What a cluster and its Ray say of resources at one moment, and what of it cannot be.

A sample is no snapshot: those who are asked answer one after the other.  Ray and the
ResourceManager are asked before and after the TaskExecutors, and what is compared between two of
them is what was the same both times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flinkray.core.ids import AllocationID, JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.reports.job_info import ClusterOverview

NOTHING = ResourceProfile(0.0)


@dataclass(frozen=True)
class Slot:
    index: int
    """-1: of a dynamic one that its TaskExecutor has not confirmed."""
    profile: ResourceProfile
    job_id: JobID | None = None
    allocation_id: AllocationID | None = None
    is_dynamic: bool = False

    @property
    def is_free(self) -> bool:
        return self.allocation_id is None


@dataclass(frozen=True)
class Worker:
    """A TaskExecutor, as it knows itself or as the ResourceManager knows it."""

    name: str
    group: str
    bundle: int
    total: ResourceProfile
    free: ResourceProfile
    """As it is counted there."""
    number_of_slots: int
    """Static ones."""
    slots: tuple[Slot, ...]
    owner: JobID | None = None
    """As the ResourceManager has it: the job whose own the group is."""

    @property
    def assigned(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if not slot.is_free)


@dataclass(frozen=True)
class Manager:
    """The ResourceManager."""

    workers: Mapping[str, Worker]
    groups: Mapping[str, tuple[ResourceProfile, ...]]
    """The worker groups that it has started, with their bundles."""
    number_of_slots: int
    """Of all workers, as its index counts them."""


@dataclass(frozen=True)
class Group:
    """A placement group of Ray."""

    name: str
    state: str
    bundles: tuple[ResourceProfile, ...]
    nodes: tuple[str | None, ...]
    """Where each bundle is."""


@dataclass(frozen=True)
class RayState:
    nodes: Mapping[str, ResourceProfile]
    """Node -> all that it has."""
    available: Mapping[str, ResourceProfile]
    """Node -> what is free there; Ray's head hears of it a moment later."""
    groups: Mapping[str, Group]


@dataclass(frozen=True)
class Claim:
    """What a live actor has been given by Ray: of a bundle, or of a node."""

    actor: str
    node: str
    profile: ResourceProfile
    group: str | None = None
    bundle: int | None = None


@dataclass(frozen=True)
class Sample:
    ray_before: RayState
    claims: tuple[Claim, ...]
    manager_before: Manager
    executors: tuple[Worker, ...]
    """Those that live and answer."""
    overview: ClusterOverview
    manager_after: Manager
    ray_after: RayState


def jobs_with_slots(sample: Sample) -> Counter[JobID]:
    """How many slots each has, as the TaskExecutors say."""
    slots = chain.from_iterable(executor.assigned for executor in sample.executors)
    return Counter(slot.job_id for slot in slots if slot.job_id is not None)


# --- what holds at every moment -------------------------------------------------------------------


def violations(sample: Sample) -> list[str]:
    """What cannot be, however much happened while the sample was taken."""
    managers = (sample.manager_before, sample.manager_after)
    found = [*_of_workers("a TaskExecutor says", sample.executors)]
    for manager in managers:
        found += _of_workers("the ResourceManager says", manager.workers.values())
        found += _of_manager(manager)
    found += _different_jobs(sample)
    for state in (sample.ray_before, sample.ray_after):
        found += _of_nodes(state.nodes, _reserved(state.groups))
    found += _of_claims(sample)
    found += _of_places(sample)
    found += _of_overview(sample.overview)
    return list(dict.fromkeys(found))


def _of_workers(who: str, workers: Iterable[Worker]) -> Iterator[str]:
    workers = tuple(workers)
    for worker in workers:
        for problem in _of_worker(worker):
            yield f"{who}: {worker.name} {problem}"
    allocations = Counter(
        slot.allocation_id for worker in workers for slot in worker.slots if not slot.is_free
    )
    for allocation_id, count in allocations.items():
        if count > 1:
            yield f"{who}: allocation {allocation_id} has {count} slots"
    places = Counter((worker.group, worker.bundle) for worker in workers)
    for (group, bundle), count in places.items():
        if count > 1:
            yield f"{who}: {count} TaskExecutors are in bundle {bundle} of {group}"


def _of_worker(worker: Worker) -> Iterator[str]:
    holders: dict[int, list[Slot]] = defaultdict(list)
    for slot in worker.slots:
        if slot.index >= 0:
            holders[slot.index].append(slot)
        if (slot.job_id is None) != slot.is_free:
            yield f"has a slot that is half free: {slot}"
        if worker.owner is not None and slot.job_id not in (None, worker.owner):
            yield f"is job {worker.owner}'s own, and has a slot of job {slot.job_id}"
    for index, slots in holders.items():
        if len(slots) > 1:
            yield f"has slot {index} {len(slots)} times, for jobs {[s.job_id for s in slots]}"
    static = [slot for slot in worker.slots if not slot.is_dynamic]
    if len(static) != worker.number_of_slots:
        free = sum(slot.is_free for slot in static)
        yield (
            f"has {worker.number_of_slots} slots, but {free} are free and "
            f"{len(static) - free} assigned"
        )
    assigned = _sum(slot.profile for slot in worker.assigned)
    if not assigned.fits_into(worker.total):
        yield f"has {worker.total}, and assigned slots of {assigned}"
    elif assigned + worker.free != worker.total:
        yield f"has {worker.total}; assigned are {assigned}, and free {worker.free}"


def _of_manager(manager: Manager) -> Iterator[str]:
    slots = sum(worker.number_of_slots for worker in manager.workers.values())
    if slots != manager.number_of_slots:
        yield f"the ResourceManager counts {manager.number_of_slots} slots of {slots}"


def _different_jobs(sample: Sample) -> Iterator[str]:
    """Of a slot, or an allocation, that the ResourceManager and a TaskExecutor know."""
    before, after = sample.manager_before.workers, sample.manager_after.workers
    jobs = {
        slot.allocation_id: slot.job_id
        for worker in (*before.values(), *after.values())
        for slot in worker.assigned
    }
    for executor in sample.executors:
        lasting = _assigned(before.get(executor.name)) & _assigned(after.get(executor.name))
        known = {index: job_id for index, job_id, _ in lasting}
        for slot in executor.assigned:
            others = {known.get(slot.index, slot.job_id), jobs.get(slot.allocation_id, slot.job_id)}
            for job_id in others - {slot.job_id}:
                yield (
                    f"slot {slot.index} of {executor.name} is job {slot.job_id}'s there, and "
                    f"job {job_id}'s for the ResourceManager"
                )


def _assigned(worker: Worker | None) -> set[tuple[int, JobID | None, AllocationID | None]]:
    slots = () if worker is None else worker.assigned
    return {(slot.index, slot.job_id, slot.allocation_id) for slot in slots}


def _reserved(groups: Mapping[str, Group]) -> dict[str, ResourceProfile]:
    """Node -> what bundles there have."""
    reserved: dict[str, ResourceProfile] = {}
    for group in groups.values():
        if group.state == "CREATED":
            for node, bundle in zip(group.nodes, group.bundles, strict=True):
                if node is not None:
                    reserved[node] = reserved.get(node, NOTHING) + bundle
    return reserved


def _of_nodes(
    nodes: Mapping[str, ResourceProfile], used: Mapping[str, ResourceProfile]
) -> Iterator[str]:
    for node, profile in used.items():
        if not profile.fits_into(nodes.get(node, NOTHING)):
            yield f"node {node} has {nodes.get(node, NOTHING)}, and reserved are {profile}"


def _of_claims(sample: Sample) -> Iterator[str]:
    """Of actors that lived at one moment between the two looks at the groups."""
    before, after = sample.ray_before.groups, sample.ray_after.groups
    lasting = {
        group_id: group for group_id, group in before.items() if after.get(group_id) == group
    }
    yield from _of_nodes(sample.ray_before.nodes, _used(lasting, sample.claims))
    by_bundle: dict[tuple[str, int], ResourceProfile] = {}
    for claim in sample.claims:
        if claim.group is not None and claim.bundle is not None:
            place = (claim.group, claim.bundle)
            by_bundle[place] = by_bundle.get(place, NOTHING) + claim.profile
    for (group_id, index), profile in by_bundle.items():
        group = before.get(group_id, after.get(group_id))
        bundle = NOTHING if group is None else group.bundles[index]
        if not profile.fits_into(bundle):
            yield f"bundle {index} of {group_id} has {bundle}, and its actors {profile}"


def _used(groups: Mapping[str, Group], claims: Iterable[Claim]) -> dict[str, ResourceProfile]:
    """Node -> what bundles there have, and actors that are in none."""
    used = _reserved(groups)
    for claim in claims:
        if claim.group is None and not claim.profile.is_zero():
            used[claim.node] = used.get(claim.node, NOTHING) + claim.profile
    return used


def _of_places(sample: Sample) -> Iterator[str]:
    """Worker groups are what Ray has reserved, and TaskExecutors what their bundles are."""
    before, after = sample.ray_before.groups, sample.ray_after.groups
    managers = (sample.manager_before, sample.manager_after)
    for group_id in managers[0].groups.keys() & managers[1].groups.keys():
        bundles, group = managers[0].groups[group_id], after.get(group_id)
        if group is None or before.get(group_id, group).state == "REMOVED":
            yield f"the ResourceManager has worker group {group_id}, and Ray has not"
        elif group.bundles != bundles:
            yield f"worker group {group_id} is {bundles}, and Ray has reserved {group.bundles}"
    known = chain.from_iterable(manager.workers.values() for manager in managers)
    for worker in (*sample.executors, *known):
        group = before.get(worker.group, after.get(worker.group))
        if group is None or worker.bundle >= len(group.bundles):
            yield f"{worker.name} is in bundle {worker.bundle} of {worker.group}: there is none"
        elif group.bundles[worker.bundle] != worker.total:
            bundle = group.bundles[worker.bundle]
            yield f"{worker.name} has {worker.total}, and its bundle is {bundle}"


def _of_overview(overview: ClusterOverview) -> Iterator[str]:
    executors = overview.task_executors
    for one in executors:
        name = one.location.resource_id
        if not 0 <= one.free_slots <= one.number_of_slots:
            yield f"the overview has {one.free_slots} free slots of {one.number_of_slots} of {name}"
        if len(one.jobs) > one.number_of_slots - one.free_slots:
            yield f"the overview has jobs {one.jobs} in fewer slots of {name}"
    slots = (overview.slots_available, overview.slots_total)
    counted = (sum(e.free_slots for e in executors), sum(e.number_of_slots for e in executors))
    if slots != counted:
        yield f"the overview has {slots} free and all slots; those of its TaskExecutors: {counted}"
    if not overview.cluster_available.fits_into(overview.cluster_total):
        yield (
            f"the overview has more free than there is: {overview.cluster_available} of "
            f"{overview.cluster_total}"
        )


# --- what holds when nothing happens --------------------------------------------------------------


def differences(sample: Sample, cluster: str) -> list[str]:
    """Where those who were asked do not agree; there are some while something changes.

    *cluster*: how the names of its placement groups begin.
    """
    manager, state = sample.manager_after, sample.ray_after
    found = []
    if sample.manager_before != manager or sample.ray_before.groups != state.groups:
        found.append("something has changed")
    groups = {
        group_id: group.bundles
        for group_id, group in state.groups.items()
        if group.name.startswith(cluster) and group.state != "REMOVED"
    }
    if groups != manager.groups:
        found.append(f"Ray has groups {groups}, and the ResourceManager {manager.groups}")
    bundles = {(group_id, i) for group_id, group in groups.items() for i in range(len(group))}
    places = {(executor.group, executor.bundle) for executor in sample.executors}
    if bundles != places:
        found.append(f"there are bundles {bundles}, and TaskExecutors in {places}")
    there = {executor.name: _assigned(executor) for executor in sample.executors}
    known = {name: _assigned(worker) for name, worker in manager.workers.items()}
    if there != known:
        found.append(f"TaskExecutors have {there}, and the ResourceManager knows {known}")
    shown = {str(one.location.resource_id): set(one.jobs) for one in sample.overview.task_executors}
    jobs = {name: {job_id for _, job_id, _ in slots} for name, slots in there.items()}
    if shown != jobs:
        found.append(f"TaskExecutors have slots of {jobs}, and the overview shows {shown}")
    used = _used(state.groups, sample.claims)
    for node, total in state.nodes.items():
        free = state.available.get(node, NOTHING)
        if used.get(node, NOTHING) + free != total:
            found.append(f"node {node} has {total}: {used.get(node)} reserved, {free} free")
    return found


def _sum(profiles: Iterable[ResourceProfile]) -> ResourceProfile:
    return sum(profiles, NOTHING)


# --- read in the processes of the cluster ---------------------------------------------------------


def task_executor(process: Any) -> Worker | None:
    """Its slots as they are in its books, even if two have one index; None: it has ended."""
    for endpoint in process._service.endpoints():
        if endpoint.endpoint_id == "taskexecutor":
            table, location = endpoint._table, endpoint.location
            assigned = tuple(
                Slot(slot.index, slot.profile, slot.job_id, slot.allocation_id, slot.is_dynamic)
                for slot in table._slots.values()
            )
            free = tuple(
                Slot(status.slot_id.slot_index, status.profile)
                for status in table.report().slots
                if status.allocation_id is None
            )
            return Worker(
                name=str(location.resource_id),
                group=location.worker_group.value,
                bundle=location.bundle_index,
                total=endpoint._arguments.total_profile,
                free=table._free_profile,
                number_of_slots=table._number_of_slots,
                slots=(*assigned, *free),
            )
    return None


def resource_manager(process: Any) -> Manager:
    (endpoint,) = (e for e in process._service.endpoints() if e.endpoint_id == "resourcemanager")
    tracker = endpoint._slots._slot_manager._tracker
    return Manager(
        workers={str(name): _worker(worker) for name, worker in tracker.workers.items()},
        groups={group.group_id.value: group.profiles for group in tracker.groups.started.values()},
        number_of_slots=tracker.index.number_of_slots,
    )


def _worker(worker: Any) -> Worker:
    slots = dict.fromkeys((*worker.slots.values(), *worker.dynamic.values()))
    return Worker(
        name=str(worker.location.resource_id),
        group=worker.location.worker_group.value,
        bundle=worker.location.bundle_index,
        total=worker.total_profile,
        free=worker.free_profile,
        number_of_slots=worker.number_static,
        slots=tuple(
            Slot(
                slot.slot_id.slot_index,
                slot.profile,
                slot.job_id,
                slot.allocation_id,
                slot.is_dynamic,
            )
            for slot in slots
        ),
        owner=None if worker.owner is None else worker.owner.job_id,
    )
