"""Finds slots by job, and workers with free capacity, without a scan of all workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappop, heappush

from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.resources.workers import ManagedSlot, SlotState, Worker, WorkerListener
from flinkray.scheduler.shared.slots import WorkerGroupOwner, size_of


class Service(Enum):
    """How a worker can provide a slot of a given profile, decided by :func:`service_of`."""

    STATIC = "by one of its static slots"
    DYNAMIC = "by a slot that is cut out of what is free"
    NOT = "not at all"


def service_of(
    profile: ResourceProfile, total: ResourceProfile, slot_profile: ResourceProfile
) -> Service:
    """Decide how a worker provides a slot of this profile.
    A static slot is used if the profile fits once but not twice, or is zero.  Otherwise a dynamic
    slot of this size is used, if the worker is large enough.  A worker with accelerators or other
    named resources provides whole slots, and only for profiles with exactly these resources."""
    if profile.extended or total.extended:
        is_same = profile.extended == slot_profile.extended == total.extended
        return Service.STATIC if is_same and profile.fits_into(slot_profile) else Service.NOT
    if profile.fits_into(slot_profile) and (
        profile.is_zero() or not (profile + profile).fits_into(slot_profile)
    ):
        return Service.STATIC
    return Service.DYNAMIC if profile.fits_into(total) else Service.NOT


@dataclass(slots=True, eq=False)
class _Shape:
    """What workers of the same size have in common: their total resources and their static
    slots."""

    total: ResourceProfile
    slot_profile: ResourceProfile
    number_static: int
    services: dict[ResourceProfile, Service] = field(default_factory=dict)

    def service_of(self, profile: ResourceProfile) -> Service:
        service = self.services.get(profile)
        if service is None:
            service = service_of(profile, self.total, self.slot_profile)
            self.services[profile] = service
        return service


@dataclass(slots=True, eq=False)
class _Bucket:
    """Shared workers of the same size (shape) that have the same free capacity."""

    shape: _Shape
    available_static: int
    takes_dynamic: bool
    free: ResourceProfile
    heap: list[tuple[int, Worker]] = field(default_factory=list)
    """(number, worker), ordered by age; may contain workers that have changed their bucket."""


_MOST_BUCKETS = 256
"""Number of buckets above which buckets without workers are removed."""

_Key = tuple[int, int, int, bool, ResourceProfile | None]
"""(shape, available static slots, used static slots, takes dynamic slots, their size)"""


class SlotIndex(WorkerListener):
    """Indexes all slots and workers of the SlotManager; follows every change of a slot. The time to
    choose a slot is proportional to the number of different capacities."""

    def __init__(self, spread_out: bool) -> None:
        """Make an empty index. *spread_out*: take slots from the least used worker instead of the
        fullest (SM-13)."""
        self._spread_out = spread_out
        self._of_job: dict[JobID, dict[ManagedSlot, None]] = {}
        self._counts: dict[tuple[JobID, WorkerGroupOwner | None], Counter[ResourceProfile]] = {}
        """(job, owner of the workers) -> number of the job's slots on these workers, by profile."""
        self._shapes: dict[tuple[ResourceProfile, ResourceProfile, int], tuple[int, _Shape]] = {}
        self._buckets: dict[_Key, _Bucket] = {}
        self._bucket_of: dict[Worker, tuple[_Key, int]] = {}
        self._shared_totals: Counter[ResourceProfile] = Counter()
        self._owned: dict[WorkerGroupOwner, dict[Worker, None]] = {}
        """Workers owned by jobs that have a slot to give."""
        self.number_of_slots = 0
        """Number of static slots of all workers."""
        self.free_shared: Counter[ResourceProfile] = Counter()
        """Number of static slots that can be given now, by total resources of the shared worker."""
        self.has_grown = False
        """Whether a worker has more to give than before; the caller resets the flag."""

    # --- answers ----------------------------------------------------------------------------------

    def slots_of_job(self, job_id: JobID) -> list[ManagedSlot]:
        """Return all slots that are requested for the job or allocated to it."""
        return list(self._of_job.get(job_id, ()))

    def counts(self, job_id: JobID, owner: WorkerGroupOwner | None) -> Counter[ResourceProfile]:
        """Return profile -> number of the job's slots on workers of *owner* (None: on shared
        workers)."""
        return self._counts.get((job_id, owner), Counter())

    def workers_of_owner(self, owner: WorkerGroupOwner) -> list[Worker]:
        """Return the workers of the owner's group that have slots to give."""
        return list(self._owned.get(owner, ()))

    def shared_totals(self) -> list[ResourceProfile]:
        """Return the different total resources of the existing shared workers, busy or not."""
        return [total for total, number in self._shared_totals.items() if number]

    def best_shared(self, profile: ResourceProfile) -> ManagedSlot | None:
        """Choose the slot to give for this profile; None if no shared worker can give one. The
        smallest fitting slots are preferred; then the fullest worker, so that idle workers can be
        released, or the least used one with *spread_out*; then the oldest worker."""
        best: Worker | None = None
        best_rank: tuple[object, ...] = ()
        best_service = Service.NOT
        for key, bucket in self._buckets.items():
            if not bucket.heap:
                continue
            service = bucket.shape.service_of(profile)
            rank = self._rank(bucket, profile, service)
            if rank is None:
                continue
            worker = self._oldest(key, bucket)
            if worker is None:
                continue
            whole_rank = (*rank, worker.number)
            if best is None or whole_rank < best_rank:
                best, best_rank, best_service = worker, whole_rank, service
        if best is None:
            return None
        if best_service is Service.STATIC:
            return best.next_static()
        return best.new_dynamic_slot(profile)

    def _rank(
        self, bucket: _Bucket, profile: ResourceProfile, service: Service
    ) -> tuple[object, ...] | None:
        if service is Service.STATIC and bucket.available_static:
            shape = bucket.shape
            left = bucket.available_static / shape.number_static
            return size_of(shape.slot_profile), -left if self._spread_out else left
        if service is Service.DYNAMIC and bucket.takes_dynamic and profile.fits_into(bucket.free):
            left = bucket.free.cpu
            return size_of(bucket.shape.total), -left if self._spread_out else left
        return None

    def _oldest(self, key: _Key, bucket: _Bucket) -> Worker | None:
        while bucket.heap:
            number, worker = bucket.heap[0]
            if self._bucket_of.get(worker) == (key, number):
                return worker
            heappop(bucket.heap)
        return None

    # --- workers ----------------------------------------------------------------------------------

    def add_worker(self, worker: Worker) -> None:
        """Add a worker, which may have allocated slots already."""
        for slot in {*worker.slots.values(), *worker.dynamic.values()}:
            self.after_change(slot)
        self._shared_totals[worker.total_profile] += worker.owner is None
        self.capacity_changed(worker)

    def remove_worker(self, worker: Worker) -> None:
        """Remove a worker from the index.  The worker keeps its slots."""
        for slot in {*worker.slots.values(), *worker.dynamic.values()}:
            self.before_change(slot)
        self._shared_totals[worker.total_profile] -= worker.owner is None
        is_usable, worker.is_usable = worker.is_usable, False
        self.capacity_changed(worker)
        worker.is_usable = is_usable

    def refuse(self, slot: ManagedSlot) -> None:
        """Exclude this free slot: it is given to no job until :meth:`allow` is called."""
        if not slot.is_refused and slot.state is SlotState.FREE:
            slot.is_refused = True
            slot.worker.refused_static += 1
            self.capacity_changed(slot.worker)

    def allow(self, slot: ManagedSlot) -> None:
        """Let a free slot be given again that :meth:`refuse` has excluded."""
        if slot.is_refused:
            slot.is_refused = False
            slot.worker.refused_static -= 1
            self.capacity_changed(slot.worker)

    # --- changes ----------------------------------------------------------------------------------

    def before_change(self, slot: ManagedSlot) -> None:
        worker = slot.worker
        if slot.is_refused:
            slot.is_refused = False
            worker.refused_static -= 1
        if not slot.is_dynamic:
            worker.number_static -= 1
            self.number_of_slots -= 1
        if slot.state is SlotState.FREE:
            return
        if slot.is_dynamic:
            worker.dynamic_used -= slot.profile
        else:
            worker.used_static -= 1
        assert slot.job_id is not None
        of_job = self._of_job[slot.job_id]
        del of_job[slot]
        if not of_job:
            del self._of_job[slot.job_id]
        self._count(slot.job_id, worker.owner, slot.profile, -1)

    def after_change(self, slot: ManagedSlot) -> None:
        worker = slot.worker
        if not slot.is_dynamic:
            worker.number_static += 1
            worker.slot_profile = slot.profile
            self.number_of_slots += 1
        if slot.state is SlotState.FREE:
            return
        if slot.is_dynamic:
            worker.dynamic_used += slot.profile
        else:
            worker.used_static += 1
        assert slot.job_id is not None
        self._of_job.setdefault(slot.job_id, {})[slot] = None
        self._count(slot.job_id, worker.owner, slot.profile, 1)

    def _count(
        self, job_id: JobID, owner: WorkerGroupOwner | None, profile: ResourceProfile, change: int
    ) -> None:
        counts = self._counts.setdefault((job_id, owner), Counter())
        counts[profile] += change
        if not counts[profile]:
            del counts[profile]
        if not counts:
            del self._counts[job_id, owner]

    def capacity_changed(self, worker: Worker) -> None:
        available = worker.available_static()
        if worker.owner is not None:
            self._owned_changed(worker, worker.owner, available)
        else:
            self._shared_changed(worker, available)

    def _owned_changed(self, worker: Worker, owner: WorkerGroupOwner, available: int) -> None:
        if available:
            self._owned.setdefault(owner, {})[worker] = None
            self.has_grown = True
        else:
            with_slots = self._owned.get(owner)
            if with_slots is not None:
                with_slots.pop(worker, None)
                if not with_slots:
                    del self._owned[owner]

    def _shared_changed(self, worker: Worker, available: int) -> None:
        before = self._bucket_of.pop(worker, None)
        old_key = None if before is None else before[0]
        if old_key is not None:
            self.free_shared[worker.total_profile] -= old_key[1]
        takes_dynamic = worker.is_usable and not worker.refuses_dynamic
        if not (available or takes_dynamic):
            return
        number, shape = self._shape_of(worker)
        used = worker.dynamic_used if worker.dynamic else None
        key = (number, available, worker.used_static, takes_dynamic, used)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _MOST_BUCKETS:
                self._buckets = {k: kept for k, kept in self._buckets.items() if kept.heap}
            bucket = _Bucket(shape, available, takes_dynamic, worker.free_profile)
            self._buckets[key] = bucket
        self._bucket_of[worker] = (key, worker.number)
        self.free_shared[worker.total_profile] += available
        if old_key != key:
            heappush(bucket.heap, (worker.number, worker))
            self._compact(key, bucket)
            self.has_grown |= old_key is None or (
                available > old_key[1] or worker.used_static <= old_key[2]
            )

    def _compact(self, key: _Key, bucket: _Bucket) -> None:
        """Remove the entries of workers that are gone from the heap, which has too many of them: a
        worker that comes and goes leaves an entry each time."""
        if len(bucket.heap) > 16 + 4 * len(self._bucket_of):
            there = ((n, w) for n, w in bucket.heap if self._bucket_of.get(w) == (key, n))
            bucket.heap = list(dict.fromkeys(there))
            heapify(bucket.heap)

    def _shape_of(self, worker: Worker) -> tuple[int, _Shape]:
        key = (worker.total_profile, worker.slot_profile, worker.number_static)
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = (len(self._shapes), _Shape(*key))
        return known
