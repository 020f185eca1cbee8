"""The slots that a job wants and has: the decisions of a SlotPool."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirements,
    ResourceShortage,
    SameWorkerGroup,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.slots.pool_requirements import PoolRequirements
from flinkray.scheduler.slots.pooled_slots import FreeSlotInfo, PooledSlot, PooledSlots
from flinkray.scheduler.slots.slot_pool_actions import (
    DeclareRequirements,
    FreeSlot,
    SlotPoolAction,
    SlotsChanged,
)
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    RestoredSlot,
    ReturnSlots,
    SlotAllocated,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
    TaskExecutorWithoutSlots,
)
from flinkray.scheduler.slots.slot_reservations import SlotReservations
from flinkray.scheduler.slots.worker_group_slots import WorkerGroupSlots

_IN_THE_WAY = "not required, and the cluster has no room for slots that are"


class DeclarativeSlotPool:
    """Accepts offered slots as far as they are required, gives them to requests, and gives back
    what is not required.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds.  Every change takes constant time per slot and request concerned.

    A total can be set (:meth:`set_requirements`): then the job uses the slots it is told of as it
    likes.  Or slots are requested (:meth:`request_slots`): each request raises the total by one
    until it fails, is cancelled, or its slot is returned.  Requests with a constraint require the
    worker group as a whole; see :mod:`flinkray.scheduler.slots.worker_group_slots`.
    """

    def __init__(
        self,
        job_id: JobID,
        job_master_address: str,
        *,
        idle_timeout: float = 50.0,
        request_timeout: float = 300.0,
        takeover_timeout: float = 60.0,
        spread_out: bool = False,
    ) -> None:
        """*idle_timeout*, seconds: how long a slot beyond the requirements is kept.
        *takeover_timeout*, seconds: how long slots of a past JobMaster's pool are waited for.
        *request_timeout*, seconds: of requests that have none of their own.  *spread_out*: requests
        are served from the least utilised TaskExecutor."""
        self._job_id = job_id
        self._job_master_address = job_master_address
        self._idle_timeout = idle_timeout
        self._request_timeout = request_timeout
        self._takeover_timeout = takeover_timeout
        self._awaited: dict[AllocationID, float] = {}
        """Slots that past JobMasters' pools had, with the time until which they may be offered."""
        self._task_executors: dict[ResourceID, WorkerLocation] = {}
        self._slots = PooledSlots()
        self._needs = PoolRequirements(self._slots)
        self._reservations = SlotReservations(
            self._slots,
            self._needs,
            request_timeout=request_timeout,
            late_slots_for=idle_timeout,
            spread_out=spread_out,
        )
        self._groups: dict[str, WorkerGroupSlots] = {}
        """By the names of constraints; those that hold or want nothing may be left out."""
        self._declared: ResourceRequirements | None = None
        self._job_restarting = False
        self._is_room_missing = False
        """Whether the job waits for slots that the cluster has no room for."""
        self._closed = False
        self._story = Story(f"the slot pool of job {job_id}")

    # --- what it has ------------------------------------------------------------------------------

    @property
    def requirements(self) -> ResourceRequirements | None:
        """What was declared last; to be declared again whenever a ResourceManager is connected
        (SP-27)."""
        return self._declared

    @property
    def slots(self) -> tuple[AllocatedSlot, ...]:
        """All slots held, oldest first."""
        return tuple(pooled.slot for pooled in self._slots.all()) + tuple(
            slot for group in self._groups.values() for slot in group.slots()
        )

    def slots_of(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """The slots held on one TaskExecutor, used and free (SP-10)."""
        of_groups = (slot for group in self._groups.values() for slot in group.slots())
        return tuple(pooled.slot for pooled in self._slots.on(resource_id)) + tuple(
            slot for slot in of_groups if slot.location.resource_id == resource_id
        )

    def free_slots(self) -> tuple[FreeSlotInfo, ...]:
        """The slots that are not reserved, with the utilisation of their TaskExecutors (SP-11)."""
        return self._slots.free_slots()

    def number_required(self, profile: ResourceProfile) -> int:
        """The job's total of a profile."""
        return self._needs.required(profile)

    def number_fulfilled(self, profile: ResourceProfile) -> int:
        """How many slots, used or free, are matched to a profile."""
        return self._slots.fulfilled(profile)

    @property
    def number_pending(self) -> int:
        """Requests that are not answered."""
        return len(self._reservations) + sum(g.number_pending for g in self._groups.values())

    def story(self) -> str:
        """What has happened to the pool, a line per event."""
        return str(self._story)

    # --- what the job wants -----------------------------------------------------------------------

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotPoolAction]:
        """Overwrite the total (SP-21)."""
        self._require_open("take requirements")
        if requirements.job_id != self._job_id:
            raise ValueError(
                f"the slot pool of job {self._job_id} got requirements of job {requirements.job_id}"
            )
        self._job_master_address = requirements.job_master_address
        self._needs.set(r for r in requirements.requirements if r.constraint is None)
        constrained = {r.constraint.name: r for r in requirements.requirements if r.constraint}
        for name in constrained:
            self._group(name)
        for name, group in self._groups.items():
            group.declare(constrained.get(name), now)
        count = sum(requirement.count for requirement in requirements.requirements)
        self._story.add(now, f"{count} slots are required")
        self._needs.update(now)
        return self._declare(always=True)

    def request_slots(self, wanted: SlotRequests, now: float) -> list[SlotPoolAction]:
        """Serve requests from free slots, and let the others wait for offers.

        Raises:
            ValueError: one of them is pending already.
        """
        self._require_open("take requests")
        allocated = self._request(wanted, now)
        kind = "batch requests" if wanted.is_batch else "requests"
        if wanted.constraint is not None:
            kind += f" for bundles of worker group {wanted.constraint.name!r}"
        count = len(wanted.requests)
        self._story.add(
            now, f"{count} {kind} for slots of {wanted.profile}, {len(allocated)} served at once"
        )
        return [*allocated, *self._needs_changed(now)]

    def _request(self, wanted: SlotRequests, now: float) -> list[SlotAllocated]:
        constraint = wanted.constraint
        if constraint is None:
            return self._reservations.request(wanted, now)
        group = self._group(constraint.name)
        timeout = self._request_timeout if wanted.timeout is None else wanted.timeout
        group.request(wanted.requests, wanted.profile, constraint.size, timeout, now)
        return group.serve()

    def _group(self, name: str) -> WorkerGroupSlots:
        return self._groups.setdefault(name, WorkerGroupSlots(name))

    def cancel_requests(self, cancelled: CancelSlotRequests, now: float) -> list[SlotPoolAction]:
        """Forget pending requests; a slot that comes for one may serve another (SP-05)."""
        self._reservations.cancel(cancelled.request_ids)
        for group in self._groups.values():
            group.cancel(cancelled.request_ids, now)
        return self._needs_changed(now)

    def return_slots(self, returned: ReturnSlots, now: float) -> list[SlotPoolAction]:
        """Reserved slots are free again, and serve pending requests (SP-02); each lowers the total
        by one (SP-28).  Slots that are not reserved are ignored."""
        freed = []
        for allocation_id in returned.allocations:
            pooled = self._slots.get(allocation_id)
            if pooled is not None and not pooled.is_free:
                self._needs.decrease(pooled.matched, 1)
                self._slots.free(pooled, now)
                freed.append(pooled)
                continue
            group = self._group_with(allocation_id)
            if group is not None:
                group.give_back(allocation_id, now)
        actions: list[SlotPoolAction] = [*self._reservations.serve(freed)]
        return [*actions, *self._serve_groups(now), *self._needs_changed(now)]

    def _group_with(self, allocation_id: AllocationID) -> WorkerGroupSlots | None:
        return next((g for g in self._groups.values() if g.holds(allocation_id)), None)

    def _serve_groups(self, now: float) -> list[SlotPoolAction]:
        """Free bundles go to the requests that wait for them; what is of no use goes back."""
        actions: list[SlotPoolAction] = []
        useless: list[AllocationID] = []
        for group in self._groups.values():
            actions += group.serve()
            useless += group.useless()
        if useless:
            reason = "it is not of the worker group that the job uses now"
            actions += self.release_slots(tuple(useless), reason, now)
        return actions

    def not_enough_resources(
        self, shortages: tuple[ResourceShortage, ...], now: float
    ) -> list[SlotPoolAction]:
        """What the ResourceManager says it cannot provide now, the whole list: requests that it is
        not going to fulfil fail (SP-13, SP-16, SP-28).  While it waits for room, slots that the job
        does not need are not kept: they may be what is in the way."""
        self._is_room_missing = any(s.awaits_room or s.exhausted for s in shortages)
        failed = self._reservations.fail_short(s for s in shortages if s.constraint is None)
        for group in self._groups.values():
            failed += group.fail_short(shortages, now)
        return [*failed, *self._needs_changed(now), *self._release_idle(now)]

    def resource_manager_changed(self, now: float) -> list[SlotPoolAction]:
        """Another ResourceManager is connected, or none: what the last one could not provide does
        not count any more."""
        return [] if self._closed else self.not_enough_resources((), now)

    def set_job_restarting(self, restarting: bool, now: float) -> list[SlotPoolAction]:
        """While the job restarts every offered slot is kept, required or not (SP-26), and worker
        groups that were required stay so."""
        self._job_restarting = restarting
        for group in self._groups.values():
            group.keep(restarting, now)
        return [*self._needs_changed(now), *self._release_idle(now)]

    def restore(self, slots: Iterable[RestoredSlot], now: float) -> list[SlotPoolAction]:
        """Slots of the job's last pool, which has died: they are held, and reserved, as they were.

        To be told before the requests that were pending there.  What of it has gone meanwhile is
        told as it always is.
        """
        self._require_open("restore slots")
        count = 0
        for restored in slots:
            slot, constraint, profile = restored.slot, restored.constraint, restored.profile
            if self._held(slot.allocation_id) is not None:
                continue
            count += 1
            self._task_executors[slot.location.resource_id] = slot.location
            if constraint is not None:
                self._group(constraint.name).restore(restored, constraint.size, now)
                continue
            pooled = PooledSlot(slot, profile or slot.profile, now)
            self._slots.add(pooled)
            if restored.request_id is not None:
                self._needs.increase(pooled.matched, 1)
                self._slots.reserve(pooled, restored.request_id)
        self._story.add(now, f"{count} slots of the last pool are held")
        self._needs.update(now)
        return self._declare(always=True)

    # --- what outlives a JobMaster ----------------------------------------------------------------

    def expect_slots(self, allocations: Iterable[AllocationID], now: float) -> None:
        """The job had these under a JobMaster that is lost: they are taken when they are offered,
        required or not (yet), as those of a job that restarts."""
        self._require_open("expect slots")
        until = now + self._takeover_timeout
        for allocation_id in allocations:
            if self._held(allocation_id) is None:
                self._awaited[allocation_id] = until
        self._story.add(now, f"{len(self._awaited)} slots of past JobMasters are awaited")

    def handed_over(self, now: float) -> tuple[AllocationID, ...]:
        """What the pool of the job's next JobMaster is to expect: all that is held here, and what
        has not come yet."""
        awaited = (a for a, until in self._awaited.items() if until > now)
        return tuple(dict.fromkeys((*(s.allocation_id for s in self.slots), *awaited)))

    def _was_awaited(self, allocation_id: AllocationID, now: float) -> bool:
        until = self._awaited.pop(allocation_id, None)
        return until is not None and until > now

    # --- TaskExecutors ----------------------------------------------------------------------------

    def register_task_executor(self, location: WorkerLocation, now: float) -> list[SlotPoolAction]:
        """From now on offers of that TaskExecutor are looked at.

        Another process under the same name (address or pid differ) replaces the old one, whose
        slots are gone.
        """
        self._require_open("register a TaskExecutor")
        known = self._task_executors.get(location.resource_id)
        actions: list[SlotPoolAction] = []
        if known is not None and known != location:
            reason = f"{location.resource_id} is another process now (pid {location.pid})"
            actions = self.release_task_executor(location.resource_id, reason, now)
        self._task_executors[location.resource_id] = location
        return actions

    def release_task_executor(
        self, resource_id: ResourceID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The TaskExecutor is gone, its slots with it (no FreeSlot: nobody is there to hear it)."""
        self._task_executors.pop(resource_id, None)
        lost = [slot.allocation_id for slot in self.slots_of(resource_id)]
        return self._lose(lost, reason, now)

    def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...], now: float
    ) -> tuple[SlotOfferAnswer, list[SlotPoolAction]]:
        """Take the offers that are required; the same offer again is accepted again (SP-03)."""
        location = self._task_executors.get(resource_id)
        if location is None or self._closed:
            return SlotOfferAnswer(()), []
        actions: list[SlotPoolAction] = []
        accepted: list[AllocationID] = []
        gained: list[AllocatedSlot] = []
        free: list[PooledSlot] = []
        for offer in offers:
            held = self._held(offer.allocation_id)
            if held is not None:
                if (held.location, held.slot_index) == (location, offer.slot_index):
                    accepted.append(offer.allocation_id)
                continue
            other = self._slots.at(resource_id, offer.slot_index)
            if other is not None:
                # A TaskExecutor has one allocation per slot: the older one must be gone.
                older, reason = other.slot.allocation_id, "its slot is offered under another id"
                actions += self._lose((older,), reason, now)
            slot = AllocatedSlot(offer.allocation_id, offer.slot_index, offer.profile, location)
            was_awaited = self._was_awaited(offer.allocation_id, now)
            if offer.constraint is not None:
                is_wanted = self._add_to_group(slot, offer.constraint, now, actions)
                if was_awaited and not is_wanted:
                    is_wanted = self._keep_in_group(slot, offer.constraint, now)
            else:
                matched = self._what_it_is_for(offer.profile, now)
                if was_awaited and matched is None:
                    matched = offer.profile
                is_wanted = matched is not None
                if matched is not None:
                    free.append(PooledSlot(slot, matched, now))
                    self._slots.add(free[-1])
                    self._reservations.slot_came(offer.profile)
            if is_wanted:
                gained.append(slot)
                accepted.append(offer.allocation_id)
            else:
                self._story.add(now, f"offer {offer.allocation_id.short()} refused: not required")
        if gained:
            self._story.add(now, f"{len(gained)} slots accepted from {resource_id}")
            actions.append(SlotsChanged(tuple(gained), ()))
            actions += self._reservations.serve(free)
            actions += self._serve_groups(now)
            actions += self._needs_changed(now)
        return SlotOfferAnswer(tuple(accepted)), actions

    def _held(self, allocation_id: AllocationID) -> AllocatedSlot | None:
        pooled = self._slots.get(allocation_id)
        if pooled is not None:
            return pooled.slot
        group = self._group_with(allocation_id)
        return None if group is None else group.slot(allocation_id)

    def _add_to_group(
        self,
        slot: AllocatedSlot,
        constraint: SameWorkerGroup,
        now: float,
        actions: list[SlotPoolAction],
    ) -> bool:
        """Whether the slot is wanted, and has been added."""
        group = self._groups.get(constraint.name)
        if group is None or not group.accepts(slot):
            return False
        replaced = group.what_it_replaces(slot)
        if replaced is not None:
            reason = "another TaskExecutor is in its bundle"
            if replaced.location == slot.location:
                reason = "its slot is offered under another id"
            actions += self._lose((replaced.allocation_id,), reason, now)
            if self._groups.get(constraint.name) is not group:  # that was all that was wanted of it
                return False
        group.add(slot, now)
        return True

    def _keep_in_group(self, slot: AllocatedSlot, constraint: SameWorkerGroup, now: float) -> bool:
        """Take a slot of a worker group that the job does not require at present; False: it
        requires another one, or has another slot in that bundle."""
        group = self._group(constraint.name)
        if group.is_required or group.what_it_replaces(slot) is not None:
            return False
        group.restore(RestoredSlot(slot, constraint), constraint.size, now)
        return True

    # --- slots that go ----------------------------------------------------------------------------

    def fail_allocation(
        self, allocation_id: AllocationID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The slot is of no use any more; unknown allocations are ignored."""
        return self.release_slots((allocation_id,), reason, now)

    def release_slots(
        self, allocations: tuple[AllocationID, ...], reason: str, now: float
    ) -> list[SlotPoolAction]:
        """Slots are given back to their TaskExecutors, whatever the requirements are.

        Those that were reserved are lost for their requests and lower the total by one each, free
        ones do not (SP-25, SP-28).
        """
        found = [slot for a in allocations if (slot := self._held(a)) is not None]
        lost = self._lose([slot.allocation_id for slot in found], reason, now)
        return _free_at_task_executors(found, reason) + lost

    def close(self, reason: str) -> list[SlotPoolAction]:
        """Free every slot, fail every request and declare empty requirements; later offers are
        refused (SP-06)."""
        if self._closed:
            return []
        self._closed = True
        actions = _free_at_task_executors(self.slots, reason)
        actions += self._reservations.fail_all(reason)
        for group in self._groups.values():
            actions += group.fail_all(SlotRequestFailure.POOL_CLOSED, reason, -inf)
        self._groups.clear()
        self._task_executors.clear()
        self._slots = PooledSlots()
        self._needs = PoolRequirements(self._slots)
        return actions if self._declared is None else actions + self._declare(always=True)

    # --- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> list[SlotPoolAction]:
        """Fail requests whose time is over (SP-14, SP-15), and give back what has been beyond the
        requirements for the idle time-out (SP-07, SP-23)."""
        if self._closed:
            return []
        actions: list[SlotPoolAction] = [*self._reservations.fail_late(now)]
        for group in self._groups.values():
            actions += group.fail_late(now)
        actions += self._needs_changed(now)
        return actions + self._release_idle(now)

    @property
    def _patience(self) -> float:
        """Seconds for which slots beyond the requirements are kept; those of a job that restarts
        are about to be required again."""
        is_scarce = self._is_room_missing and not self._job_restarting
        return 0.0 if is_scarce else self._idle_timeout

    def _release_idle(self, now: float) -> list[SlotPoolAction]:
        patience = self._patience
        idle = self._needs.idle_too_long(patience, now)
        for group in self._groups.values():
            idle += group.idle_too_long(patience, now)
        reason = f"not required for {patience:g} s" if patience else _IN_THE_WAY
        return self.release_slots(idle, reason, now) if idle else []

    def next_deadline(self) -> float | None:
        """When :meth:`time_passed` has something to do next; None: not before another event."""
        idle = self._needs.idle_deadline(self._patience)
        deadline = min(self._reservations.next_deadline(), idle)
        for group in self._groups.values():
            deadline = min(deadline, group.next_deadline(), group.idle_deadline(self._patience))
        return None if deadline == inf else deadline

    # ----------------------------------------------------------------------------------------------

    def _what_it_is_for(self, offered: ResourceProfile, now: float) -> ResourceProfile | None:
        """The required profile that an offered slot is to fulfil; None: it is not wanted."""
        missing = self._needs.missing_profile_for(offered)
        if missing is not None:
            return missing
        late = self._reservations.is_late_slot(offered, now)
        if late is not None:
            return late
        return offered if self._job_restarting else None

    def _lose(self, lost: Iterable[AllocationID], reason: str, now: float) -> list[SlotPoolAction]:
        """These are held, and are gone."""
        reserved: list[AllocationID] = []
        gone: list[AllocationID] = []
        places: dict[ResourceID, None] = {}
        for allocation_id in lost:
            gone.append(allocation_id)
            pooled = self._slots.get(allocation_id)
            if pooled is not None:
                places[pooled.slot.location.resource_id] = None
                if not pooled.is_free:
                    reserved.append(allocation_id)
                    self._needs.decrease(pooled.matched, 1)
                self._slots.remove(pooled)
                continue
            group = self._group_with(allocation_id)
            assert group is not None
            places[group.slot(allocation_id).location.resource_id] = None
            if group.is_reserved(allocation_id):
                reserved.append(allocation_id)
            group.remove(allocation_id, now)
        if not gone:
            return []
        empty = [
            TaskExecutorWithoutSlots(place)
            for place in places
            if place in self._task_executors and not self.slots_of(place)
        ]
        self._story.add(now, f"{len(gone)} slots left: {reason}")
        self._reservations.slots_went(now)
        actions: list[SlotPoolAction] = [SlotsChanged((), tuple(gone))]
        if reserved:
            actions.append(SlotsLost(tuple(reserved), reason))
        return [*actions, *empty, *self._needs_changed(now)]

    def _needs_changed(self, now: float) -> list[SlotPoolAction]:
        self._needs.update(now)
        return self._declare()

    def _declare(self, always: bool = False) -> list[SlotPoolAction]:
        self._groups = {name: g for name, g in self._groups.items() if not g.is_over}
        own = tuple(r for g in self._groups.values() if (r := g.requirement) is not None)
        requirements = ResourceRequirements(
            self._job_id, self._job_master_address, self._needs.declared() + own
        )
        if not always:
            if requirements == self._declared:
                return []
            if self._declared is None and not requirements.requirements:
                return []
        self._declared = requirements
        return [DeclareRequirements(requirements)]

    def _require_open(self, wanted: str) -> None:
        if self._closed:
            raise self._story.illegal(f"{wanted} after it was closed")


def _free_at_task_executors(slots: Iterable[AllocatedSlot], reason: str) -> list[SlotPoolAction]:
    return [FreeSlot(slot.location, slot.allocation_id, reason) for slot in slots]
