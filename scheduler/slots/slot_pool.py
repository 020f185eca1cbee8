"""The slots that a job wants and has: the decisions of a SlotPool."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceRequirements,
    ResourceShortage,
    SameWorkerGroup,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.shared.story import Story
from flinkray.scheduler.slots.pooled_slots import FreeSlotInfo
from flinkray.scheduler.slots.slot_book import SlotBook
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
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
    TaskExecutorWithoutSlots,
)
from flinkray.scheduler.slots.unconstrained_slots import UnconstrainedSlots
from flinkray.scheduler.slots.worker_group_slots import WorkerGroupSlots

_IN_THE_WAY = "not required, and the cluster has no room for slots that are"
_OFFERED_ANEW = "its slot is offered under another id"


class DeclarativeSlotPool:
    """Accepts offered slots as far as they are required, gives them to requests, and gives back
    what is not required.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds.  Every change takes constant time per slot and request concerned.

    A total can be set (:meth:`set_requirements`): then the job uses the slots it is told of as it
    likes.  Or slots are requested (:meth:`request_slots`): each request raises the total by one
    until it fails, is cancelled, or its slot is returned.  Requests with a constraint require the
    worker group as a whole.

    Which slot is wanted, and who gets it, is decided for each constraint by a
    :class:`~flinkray.scheduler.slots.slot_book.SlotBook` of its own: :class:`UnconstrainedSlots`
    where there is none, and else :class:`WorkerGroupSlots`.
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
        self._unconstrained = UnconstrainedSlots(late_slots_for=idle_timeout, spread_out=spread_out)
        self._books: dict[str | None, SlotBook] = {None: self._unconstrained}
        """By the names of constraints; those that are over may be left out."""
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
        return tuple(slot for book in self._books.values() for slot in book.slots())

    def slots_of(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """The slots held on one TaskExecutor, used and free (SP-10)."""
        return tuple(slot for book in self._books.values() for slot in book.slots_on(resource_id))

    def free_slots(self) -> tuple[FreeSlotInfo, ...]:
        """The slots without a constraint that are not reserved, with the utilisation of their
        TaskExecutors (SP-11)."""
        return self._unconstrained.free_slots()

    def number_required(self, profile: ResourceProfile) -> int:
        """The job's total of a profile, without a constraint."""
        return self._unconstrained.number_required(profile)

    def number_fulfilled(self, profile: ResourceProfile) -> int:
        """How many slots without a constraint, used or free, are matched to a profile."""
        return self._unconstrained.number_fulfilled(profile)

    @property
    def number_pending(self) -> int:
        """Requests that are not answered."""
        return sum(book.number_pending for book in self._books.values())

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
        declared = self._by_book(requirements.requirements)
        for book in self._books.values():
            book.declare(declared.get(book, []), now)
        count = sum(requirement.count for requirement in requirements.requirements)
        self._story.add(now, f"{count} slots are required")
        return self._declare(now, always=True)

    def request_slots(self, wanted: SlotRequests, now: float) -> list[SlotPoolAction]:
        """Serve requests from free slots, and let the others wait for offers.

        Raises:
            ValueError: one of them is pending already.
        """
        self._require_open("take requests")
        timeout = self._request_timeout if wanted.timeout is None else wanted.timeout
        allocated = self._book(wanted.constraint).request(wanted, timeout, now)
        self._story.add(now, f"{wanted}, {len(allocated)} served at once")
        return [*allocated, *self._declare(now)]

    def cancel_requests(self, cancelled: CancelSlotRequests, now: float) -> list[SlotPoolAction]:
        """Forget pending requests; a slot that comes for one may serve another (SP-05)."""
        for book in self._books.values():
            book.cancel(cancelled.request_ids, now)
        return self._declare(now)

    def return_slots(self, returned: ReturnSlots, now: float) -> list[SlotPoolAction]:
        """Reserved slots are free again, and serve pending requests (SP-02); each lowers the total
        by one (SP-28).  Slots that are not reserved are ignored."""
        for allocation_id in returned.allocations:
            book = self._book_with(allocation_id)
            if book is not None:
                book.give_back(allocation_id, now)
        return [*self._serve(now), *self._declare(now)]

    def _serve(self, now: float) -> list[SlotPoolAction]:
        """Free slots go to the requests that wait for them; what is of no use goes back."""
        actions: list[SlotPoolAction] = []
        useless: list[AllocationID] = []
        for book in self._books.values():
            actions += book.serve()
            useless += book.useless()
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
        actions: list[SlotPoolAction] = []
        for book in self._books.values():
            actions += book.fail_short(shortages, now)
        actions += self._declare(now)
        return actions + self._release_idle(now)

    def resource_manager_changed(self, now: float) -> list[SlotPoolAction]:
        """Another ResourceManager is connected, or none: what the last one could not provide does
        not count any more."""
        return [] if self._closed else self.not_enough_resources((), now)

    def set_job_restarting(
        self, restarting: bool, worker_groups: Iterable[ResourceRequirement], now: float
    ) -> list[SlotPoolAction]:
        """While the job restarts every offered slot is kept, required or not (SP-26), and
        *worker_groups*, which were required when that began, stay so."""
        self._job_restarting = restarting
        required = self._by_book(worker_groups)
        for book in self._books.values():
            book.keep(restarting, required.get(book, []), now)
        return [*self._declare(now), *self._release_idle(now)]

    def restore(self, slots: Iterable[RestoredSlot], now: float) -> list[SlotPoolAction]:
        """Slots of the job's last pool, which has died: they are held, and reserved, as they were.

        To be told before the requests that were pending there.  What of it has gone meanwhile is
        told as it always is.
        """
        self._require_open("restore slots")
        count = 0
        for restored in slots:
            slot = restored.slot
            if self._book_with(slot.allocation_id) is None:
                count += 1
                self._task_executors[slot.location.resource_id] = slot.location
                self._book(restored.constraint).restore(restored, now)
        self._story.add(now, f"{count} slots of the last pool are held")
        return self._declare(now, always=True)

    # --- what outlives a JobMaster ----------------------------------------------------------------

    def expect_slots(self, allocations: Iterable[AllocationID], now: float) -> None:
        """The job had these under a JobMaster that is lost: they are taken when they are offered,
        required or not (yet), as those of a job that restarts."""
        self._require_open("expect slots")
        until = now + self._takeover_timeout
        for allocation_id in allocations:
            if self._book_with(allocation_id) is None:
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
        for offer in offers:
            held = self._held(offer.allocation_id)
            if held is not None:
                if (held.location, held.slot_index) == (location, offer.slot_index):
                    accepted.append(offer.allocation_id)
                continue
            slot = AllocatedSlot(offer.allocation_id, offer.slot_index, offer.profile, location)
            for book in self._books.values():
                older = book.outdated_by(slot)
                if older is not None:
                    actions += self._lose((older.allocation_id,), _OFFERED_ANEW, now)
            was_awaited = self._was_awaited(offer.allocation_id, now)
            is_taken = self._add(slot, offer.constraint, now, actions)
            if was_awaited and not is_taken:
                restored = RestoredSlot(slot, offer.constraint)
                is_taken = self._book(offer.constraint).take_over(restored, now)
            if is_taken:
                gained.append(slot)
                accepted.append(offer.allocation_id)
            else:
                self._story.add(now, f"offer {offer.allocation_id.short()} refused: not required")
        if gained:
            self._story.add(now, f"{len(gained)} slots accepted from {resource_id}")
            actions.append(SlotsChanged(tuple(gained), ()))
            actions += self._serve(now)
            actions += self._declare(now)
        return SlotOfferAnswer(tuple(accepted)), actions

    def _held(self, allocation_id: AllocationID) -> AllocatedSlot | None:
        book = self._book_with(allocation_id)
        return None if book is None else book.slot(allocation_id)

    def _add(
        self,
        slot: AllocatedSlot,
        constraint: SameWorkerGroup | None,
        now: float,
        actions: list[SlotPoolAction],
    ) -> bool:
        """Whether the slot is wanted, and has been added."""
        name = _name_of(constraint)
        book = self._books.get(name)
        matched = None if book is None else book.match(slot, now)
        if book is None or matched is None:
            return False
        replaced = book.replaced_by(slot)
        if replaced is not None:
            reason = "another TaskExecutor is in its bundle"
            if replaced.location == slot.location:
                reason = _OFFERED_ANEW
            actions += self._lose((replaced.allocation_id,), reason, now)
            if self._books.get(name) is not book:  # that was all that was wanted of it
                return False
        book.add(slot, matched, now)
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
        for book in self._books.values():
            actions += book.fail_all(SlotRequestFailure.POOL_CLOSED, reason, -inf)
        self._unconstrained = UnconstrainedSlots(late_slots_for=0.0, spread_out=False)
        self._books = {None: self._unconstrained}
        return actions if self._declared is None else actions + self._declare(-inf, always=True)

    # --- time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> list[SlotPoolAction]:
        """Fail requests whose time is over (SP-14, SP-15), and give back what has been beyond the
        requirements for the idle time-out (SP-07, SP-23)."""
        if self._closed:
            return []
        actions: list[SlotPoolAction] = []
        for book in self._books.values():
            actions += book.fail_late(now)
        actions += self._declare(now)
        return actions + self._release_idle(now)

    @property
    def _patience(self) -> float:
        """Seconds for which slots beyond the requirements are kept; those of a job that restarts
        are about to be required again."""
        is_scarce = self._is_room_missing and not self._job_restarting
        return 0.0 if is_scarce else self._idle_timeout

    def _release_idle(self, now: float) -> list[SlotPoolAction]:
        patience = self._patience
        idle = tuple(a for b in self._books.values() for a in b.idle_too_long(patience, now))
        reason = f"not required for {patience:g} s" if patience else _IN_THE_WAY
        return self.release_slots(idle, reason, now)

    def next_deadline(self) -> float | None:
        """When :meth:`time_passed` has something to do next; None: not before another event."""
        deadline = inf
        for book in self._books.values():
            deadline = min(deadline, book.next_deadline(), book.idle_deadline(self._patience))
        return None if deadline == inf else deadline

    # ----------------------------------------------------------------------------------------------

    def _book(self, constraint: SameWorkerGroup | None) -> SlotBook:
        """The one for a constraint, a new one if need be."""
        name = _name_of(constraint)
        book = self._books.get(name)
        if book is None:
            assert name is not None  # the book of those without a constraint is never over
            book = self._books[name] = WorkerGroupSlots(name)
        return book

    def _by_book(
        self, requirements: Iterable[ResourceRequirement]
    ) -> dict[SlotBook, list[ResourceRequirement]]:
        by_book: dict[SlotBook, list[ResourceRequirement]] = {}
        for requirement in requirements:
            by_book.setdefault(self._book(requirement.constraint), []).append(requirement)
        return by_book

    def _book_with(self, allocation_id: AllocationID) -> SlotBook | None:
        return next((book for book in self._books.values() if book.holds(allocation_id)), None)

    def _lose(self, lost: Iterable[AllocationID], reason: str, now: float) -> list[SlotPoolAction]:
        """These are held, and are gone."""
        reserved: list[AllocationID] = []
        gone: list[AllocationID] = []
        places: dict[ResourceID, None] = {}
        for allocation_id in lost:
            gone.append(allocation_id)
            book = self._book_with(allocation_id)
            assert book is not None
            places[book.slot(allocation_id).location.resource_id] = None
            if book.is_reserved(allocation_id):
                reserved.append(allocation_id)
            book.remove(allocation_id, now)
        if not gone:
            return []
        empty = [
            TaskExecutorWithoutSlots(place)
            for place in places
            if place in self._task_executors and not self.slots_of(place)
        ]
        self._story.add(now, f"{len(gone)} slots left: {reason}")
        actions: list[SlotPoolAction] = [SlotsChanged((), tuple(gone))]
        if reserved:
            actions.append(SlotsLost(tuple(reserved), reason))
        return [*actions, *empty, *self._declare(now)]

    def _declare(self, now: float, *, always: bool = False) -> list[SlotPoolAction]:
        """What is required, if it is not what was declared last."""
        self._books = {name: book for name, book in self._books.items() if not book.is_over}
        declared = tuple(r for book in self._books.values() for r in book.requirements(now))
        requirements = ResourceRequirements(self._job_id, self._job_master_address, declared)
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


def _name_of(constraint: SameWorkerGroup | None) -> str | None:
    return None if constraint is None else constraint.name


def _free_at_task_executors(slots: Iterable[AllocatedSlot], reason: str) -> list[SlotPoolAction]:
    return [FreeSlot(slot.location, slot.allocation_id, reason) for slot in slots]
