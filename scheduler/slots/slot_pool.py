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
    ReturnSlots,
    SlotRequests,
    SlotsLost,
    TaskExecutorWithoutSlots,
)
from flinkray.scheduler.slots.slot_reservations import SlotReservations


class DeclarativeSlotPool:
    """Accepts offered slots as far as they are required, gives them to requests, and gives back
    what is not required.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds.  Every change takes constant time per slot and request concerned.

    A total can be set (:meth:`set_requirements`): then the job uses the slots it is told of as it
    likes.  Or slots are requested (:meth:`request_slots`): each request raises the total by one
    until it fails, is cancelled, or its slot is returned.
    """

    def __init__(
        self,
        job_id: JobID,
        job_master_address: str,
        *,
        idle_timeout: float = 50.0,
        request_timeout: float = 300.0,
        spread_out: bool = False,
    ) -> None:
        """*idle_timeout*, seconds: how long a slot beyond the requirements is kept.
        *request_timeout*, seconds: of requests that have none of their own.  *spread_out*: requests
        are served from the least utilised TaskExecutor."""
        self._job_id = job_id
        self._job_master_address = job_master_address
        self._idle_timeout = idle_timeout
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
        self._dedicated_workers = False
        self._declared: ResourceRequirements | None = None
        self._job_restarting = False
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
        return tuple(pooled.slot for pooled in self._slots.all())

    def slots_of(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """The slots held on one TaskExecutor, used and free (SP-10)."""
        return tuple(pooled.slot for pooled in self._slots.on(resource_id))

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
        return len(self._reservations)

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
        self._dedicated_workers = requirements.dedicated_workers
        self._needs.set(requirements.requirements)
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
        allocated = self._reservations.request(wanted, now)
        kind = "batch requests" if wanted.is_batch else "requests"
        count = len(wanted.requests)
        self._story.add(
            now, f"{count} {kind} for slots of {wanted.profile}, {len(allocated)} served at once"
        )
        return [*allocated, *self._needs_changed(now)]

    def cancel_requests(self, cancelled: CancelSlotRequests, now: float) -> list[SlotPoolAction]:
        """Forget pending requests; a slot that comes for one may serve another (SP-05)."""
        self._reservations.cancel(cancelled.request_ids)
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
        return [*self._reservations.serve(freed), *self._needs_changed(now)]

    def not_enough_resources(
        self, shortages: tuple[ResourceShortage, ...], now: float
    ) -> list[SlotPoolAction]:
        """What the ResourceManager says it cannot provide now, the whole list: requests that it is
        not going to fulfil fail (SP-13, SP-16, SP-28)."""
        return [*self._reservations.fail_short(shortages), *self._needs_changed(now)]

    def set_job_restarting(self, restarting: bool) -> None:
        """While the job restarts every offered slot is kept, required or not (SP-26)."""
        self._job_restarting = restarting

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
        return self._lose(self._slots.on(resource_id), reason, now)

    def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...], now: float
    ) -> tuple[SlotOfferAnswer, list[SlotPoolAction]]:
        """Take the offers that are required; the same offer again is accepted again (SP-03)."""
        location = self._task_executors.get(resource_id)
        if location is None or self._closed:
            return SlotOfferAnswer(()), []
        actions: list[SlotPoolAction] = []
        accepted: list[AllocationID] = []
        gained: list[PooledSlot] = []
        for offer in offers:
            held = self._slots.get(offer.allocation_id)
            if held is not None:
                if (held.slot.location, held.slot.slot_index) == (location, offer.slot_index):
                    accepted.append(offer.allocation_id)
                continue
            other = self._slots.at(resource_id, offer.slot_index)
            if other is not None:
                # A TaskExecutor has one allocation per slot: the older one must be gone.
                actions += self._lose((other,), "its slot is offered under another id", now)
            matched = self._what_it_is_for(offer.profile, now)
            if matched is None:
                self._story.add(now, f"offer {offer.allocation_id.short()} refused: not required")
                continue
            slot = AllocatedSlot(offer.allocation_id, offer.slot_index, offer.profile, location)
            gained.append(PooledSlot(slot, matched, now))
            self._slots.add(gained[-1])
            self._reservations.slot_came(offer.profile)
            accepted.append(offer.allocation_id)
        if gained:
            self._story.add(now, f"{len(gained)} slots accepted from {resource_id}")
            actions.append(SlotsChanged(tuple(pooled.slot for pooled in gained), ()))
            actions += self._reservations.serve(gained)
            actions += self._needs_changed(now)
        return SlotOfferAnswer(tuple(accepted)), actions

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

        Those that were reserved are lost for who had them and lower the total by one each, free
        ones do not (SP-25, SP-28).
        """
        found = [pooled for a in allocations if (pooled := self._slots.get(a)) is not None]
        return _free_at_task_executors(found, reason) + self._lose(found, reason, now)

    def close(self, reason: str) -> list[SlotPoolAction]:
        """Free every slot, fail every request and declare empty requirements; later offers are
        refused (SP-06)."""
        if self._closed:
            return []
        self._closed = True
        actions = _free_at_task_executors(self._slots.all(), reason)
        actions += self._reservations.fail_all(reason)
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
        actions += self._needs_changed(now)
        idle = self._needs.idle_too_long(self._idle_timeout, now)
        reason = f"not required for {self._idle_timeout:g} s"
        return actions + (self.release_slots(idle, reason, now) if idle else [])

    def next_deadline(self) -> float | None:
        """When :meth:`time_passed` has something to do next; None: not before another event."""
        idle = self._needs.idle_deadline(self._idle_timeout)
        deadline = min(self._reservations.next_deadline(), idle)
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

    def _lose(self, lost: Iterable[PooledSlot], reason: str, now: float) -> list[SlotPoolAction]:
        reserved: list[AllocationID] = []
        gone: list[AllocationID] = []
        empty: list[SlotPoolAction] = []
        for pooled in lost:
            gone.append(pooled.slot.allocation_id)
            if not pooled.is_free:
                reserved.append(pooled.slot.allocation_id)
                self._needs.decrease(pooled.matched, 1)
            where = pooled.slot.location.resource_id
            if self._slots.remove(pooled) and where in self._task_executors:
                empty.append(TaskExecutorWithoutSlots(where))
        if not gone:
            return []
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
        requirements = ResourceRequirements(
            self._job_id,
            self._job_master_address,
            self._needs.declared(),
            self._dedicated_workers,
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


def _free_at_task_executors(slots: Iterable[PooledSlot], reason: str) -> list[SlotPoolAction]:
    return [FreeSlot(pooled.slot.location, pooled.slot.allocation_id, reason) for pooled in slots]
