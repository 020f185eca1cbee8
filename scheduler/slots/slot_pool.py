"""Defines the SlotPool of a job, which decides which slots the job requires, holds and uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
    ReturnSlots,
    SlotEvent,
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
    """Accepts offered slots that are required, gives them to requests, and returns excess slots.
    Methods return actions in the order in which they must be carried out.  ``now`` is in monotonic
    seconds.  Every change takes constant time per slot and request concerned.

    The job can set a total (:meth:`set_requirements`) and use the reported slots as it likes, or it
    requests slots (:meth:`request_slots`): each request raises the total by one until it fails, is
    canceled, or its slot is returned.  Requests with a constraint require the whole worker group.
    A :class:`~flinkray.scheduler.slots.slot_book.SlotBook` per constraint decides about its slots.
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
        """Make a pool without slots.

        *idle_timeout*: seconds for which a slot beyond the requirements is kept.
        *takeover_timeout*: seconds of waiting for slots of an earlier JobMaster's pool.
        *request_timeout*: timeout in seconds of requests that have none of their own. *spread_out*:
        serve requests from the least utilised TaskExecutor.
        """
        self._job_id = job_id
        self._job_master_address = job_master_address
        self._idle_timeout = idle_timeout
        self._request_timeout = request_timeout
        self._takeover_timeout = takeover_timeout
        self._awaited: dict[AllocationID, float] = {}
        """Slot of an earlier JobMaster's pool -> time until which the pool waits for its offer."""
        self._task_executors: dict[ResourceID, WorkerLocation] = {}
        self._unconstrained = UnconstrainedSlots(late_slots_for=idle_timeout, spread_out=spread_out)
        self._books: dict[str | None, SlotBook] = {None: self._unconstrained}
        """Books by the names of their constraints; books that are over may be missing."""
        self._declared: ResourceRequirements | None = None
        self._job_restarting = False
        self._is_room_missing = False
        """Whether the job waits for slots for which the cluster has no room."""
        self._closed = False
        self._story = Story(f"the slot pool of job {job_id}")

    # --- contents of the pool ---------------------------------------------------------------------

    @property
    def requirements(self) -> ResourceRequirements | None:
        """The requirements that were declared last; None if none were declared.
        They must be declared again whenever a ResourceManager is connected (SP-27)."""
        return self._declared

    @property
    def slots(self) -> tuple[AllocatedSlot, ...]:
        """All slots in the pool, used and free, oldest first."""
        return tuple(slot for book in self._books.values() for slot in book.slots())

    def slots_of(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """Return the pool's slots on one TaskExecutor, used and free (SP-10)."""
        return tuple(slot for book in self._books.values() for slot in book.slots_on(resource_id))

    def free_slots(self) -> tuple[FreeSlotInfo, ...]:
        """Return the free slots without a constraint, each with the fraction of its TaskExecutor's
        slots in this pool that are in use (SP-11)."""
        return self._unconstrained.free_slots()

    def number_required(self, profile: ResourceProfile) -> int:
        """Return how many slots of the profile the job requires without a constraint."""
        return self._unconstrained.number_required(profile)

    def number_fulfilled(self, profile: ResourceProfile) -> int:
        """Return how many slots without a constraint, used or free, count towards the job's
        requirement of the profile."""
        return self._unconstrained.number_fulfilled(profile)

    @property
    def number_pending(self) -> int:
        """Number of unanswered requests."""
        return sum(book.number_pending for book in self._books.values())

    def story(self) -> str:
        """Return the history of the pool, one line per event."""
        return str(self._story)

    # --- requirements of the job ------------------------------------------------------------------

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotPoolAction]:
        """Replace the numbers of slots that the job requires (SP-21)."""
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
        """Reserve free slots for these requests; the others wait until TaskExecutors offer slots.

        Raises:
            ValueError: a request is pending already.
        """
        self._require_open("take requests")
        timeout = self._request_timeout if wanted.timeout is None else wanted.timeout
        allocated = self._book(wanted.constraint).request(wanted, timeout, now)
        self._story.add(now, f"{wanted}, {len(allocated)} served at once")
        return [*allocated, *self._declare(now)]

    def cancel_requests(self, cancelled: CancelSlotRequests, now: float) -> list[SlotPoolAction]:
        """Remove pending requests.  A slot that arrives for a removed request may serve another
        (SP-05)."""
        for book in self._books.values():
            book.cancel(cancelled.request_ids, now)
        return self._declare(now)

    def return_slots(self, returned: ReturnSlots, now: float) -> list[SlotPoolAction]:
        """Free the reserved slots that the job gives back, which then serve pending requests
        (SP-02). Each lowers the number of required slots by one (SP-28). Slots that are not
        reserved are ignored."""
        for allocation_id in returned.allocations:
            book = self._book_with(allocation_id)
            if book is not None:
                book.give_back(allocation_id, now)
        return [*self._serve(now), *self._declare(now)]

    def _serve(self, now: float) -> list[SlotPoolAction]:
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
        """Fail the requests that will not be fulfilled because of these shortages, which are all
        that the ResourceManager reports (SP-13, SP-16, SP-28). While the job waits for room in the
        cluster, excess slots are returned at once."""
        self._is_room_missing = any(s.awaits_room or s.exhausted for s in shortages)
        actions: list[SlotPoolAction] = []
        for book in self._books.values():
            actions += book.fail_short(shortages, now)
        actions += self._declare(now)
        return actions + self._release_idle(now)

    def resource_manager_changed(self, now: float) -> list[SlotPoolAction]:
        """Forget the shortages that the ResourceManager has reported, because it was replaced or is
        disconnected."""
        return [] if self._closed else self.not_enough_resources((), now)

    def set_job_restarting(
        self, restarting: bool, worker_groups: Iterable[ResourceRequirement], now: float
    ) -> list[SlotPoolAction]:
        """Set whether the job restarts.
        While it restarts, every offered slot is kept, required or not (SP-26), and *worker_groups*,
        which were required when the restart began, stay required."""
        self._job_restarting = restarting
        required = self._by_book(worker_groups)
        for book in self._books.values():
            book.keep(restarting, required.get(book, []), now)
        return [*self._declare(now), *self._release_idle(now)]

    def restore(self, slots: Iterable[HeldSlot], now: float) -> list[SlotPoolAction]:
        """Add the slots of the job's last pool, which has died, with their reservations. Call this
        before the requests that were pending in the last pool are made again, and before
        TaskExecutors are registered. Slots that were lost in the meantime are added, too, until a
        report of their loss removes them."""
        self._require_open("restore slots")
        count = 0
        for restored in slots:
            slot = restored.slot
            if self._book_with(slot.allocation_id) is None:
                count += 1
                self._book(restored.constraint).restore(restored, now)
        self._story.add(now, f"{count} slots of the last pool are held")
        return self._declare(now, always=True)

    # --- slots of earlier JobMasters --------------------------------------------------------------

    def expect_slots(self, allocations: Iterable[AllocationID], now: float) -> None:
        """Wait, for the take-over timeout, for slots that the job had under a lost JobMaster. When
        they are offered, they are accepted even if they are not required (yet)."""
        self._require_open("expect slots")
        until = now + self._takeover_timeout
        for allocation_id in allocations:
            if self._book_with(allocation_id) is None:
                self._awaited[allocation_id] = until
        self._story.add(now, f"{len(self._awaited)} slots of past JobMasters are awaited")

    def handed_over(self, now: float) -> tuple[AllocationID, ...]:
        """Return the slots that the pool of the job's next JobMaster must wait for: all slots in
        this pool, and those that this pool itself still waits for."""
        awaited = (a for a, until in self._awaited.items() if until > now)
        return tuple(dict.fromkeys((*(s.allocation_id for s in self.slots), *awaited)))

    def _was_awaited(self, allocation_id: AllocationID, now: float) -> bool:
        until = self._awaited.pop(allocation_id, None)
        return until is not None and until > now

    # --- TaskExecutors ----------------------------------------------------------------------------

    def register_task_executor(self, location: WorkerLocation, now: float) -> list[SlotPoolAction]:
        """Accept offers of this TaskExecutor from now on.
        A process with another address or pid replaces the old one, whose slots are lost."""
        self._require_open("register a TaskExecutor")
        actions: list[SlotPoolAction] = []
        if any(slot.location != location for slot in self.slots_of(location.resource_id)):
            reason = f"{location.resource_id} is another process now (pid {location.pid})"
            actions = self.release_task_executor(location.resource_id, reason, now)
        self._task_executors[location.resource_id] = location
        return actions

    def release_task_executor(
        self, resource_id: ResourceID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """Forget a lost TaskExecutor with its slots; no FreeSlot is sent to it."""
        self._task_executors.pop(resource_id, None)
        lost = [slot.allocation_id for slot in self.slots_of(resource_id)]
        actions = self._lose(lost, reason, now)
        return [action for action in actions if not isinstance(action, TaskExecutorWithoutSlots)]

    def let_go(self, resource_id: ResourceID) -> bool:
        """Accept no more offers of a TaskExecutor, unless the pool has a slot there. Returns True
        if the pool has none, so that the TaskExecutor is let go."""
        if self.slots_of(resource_id):
            return False
        self._task_executors.pop(resource_id, None)
        return True

    def is_registered(self, location: WorkerLocation) -> bool:
        """Return whether the pool accepts offers of this TaskExecutor process."""
        return self._task_executors.get(location.resource_id) == location

    def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...], now: float
    ) -> tuple[SlotOfferAnswer, list[SlotPoolAction]]:
        """Accept the required slots among the offers.
        A repeated offer is accepted again (SP-03)."""
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
                restored = HeldSlot(slot, offer.constraint)
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
        """Add the slot to the pool if it is wanted, and append what follows to *actions*. Returns
        whether the slot was added."""
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
            if self._books.get(name) is not book:  # nothing else of it was required
                return False
        book.add(slot, matched, now)
        return True

    # --- loss of slots ----------------------------------------------------------------------------

    def fail_allocation(
        self, allocation_id: AllocationID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """Give a slot that can no longer be used back to its TaskExecutor. Unknown allocations are
        ignored."""
        return self.release_slots((allocation_id,), reason, now)

    def release_slots(
        self, allocations: tuple[AllocationID, ...], reason: str, now: float
    ) -> list[SlotPoolAction]:
        """Give slots back to their TaskExecutors, whatever the requirements are. Each reserved slot
        lowers the number of required slots by one; free slots do not (SP-25, SP-28)."""
        found = [slot for a in allocations if (slot := self._held(a)) is not None]
        lost = self._lose([slot.allocation_id for slot in found], reason, now)
        return _free_at_task_executors(found, reason) + lost

    def close(self, reason: str) -> list[SlotPoolAction]:
        """Free every slot, fail every request and declare empty requirements.
        Later offers are refused (SP-06)."""
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
        """Fail requests that have timed out (SP-14, SP-15), and give slots that have been excess
        for the idle timeout back to their TaskExecutors (SP-07, SP-23)."""
        if self._closed:
            return []
        actions: list[SlotPoolAction] = []
        for book in self._books.values():
            actions += book.fail_late(now)
        actions += self._declare(now)
        return actions + self._release_idle(now)

    @property
    def _patience(self) -> float:
        """Seconds for which slots beyond the requirements are kept. 0 if the cluster has no room,
        unless the job restarts and is about to require its slots again."""
        is_scarce = self._is_room_missing and not self._job_restarting
        return 0.0 if is_scarce else self._idle_timeout

    def _release_idle(self, now: float) -> list[SlotPoolAction]:
        patience = self._patience
        idle = tuple(a for b in self._books.values() for a in b.idle_too_long(patience, now))
        reason = f"not required for {patience:g} s" if patience else _IN_THE_WAY
        return self.release_slots(idle, reason, now)

    def next_deadline(self) -> float | None:
        """Return when :meth:`time_passed` must be called next. None if another event must come
        first."""
        deadline = inf
        for book in self._books.values():
            deadline = min(deadline, book.next_deadline(), book.idle_deadline(self._patience))
        return None if deadline == inf else deadline

    # ----------------------------------------------------------------------------------------------

    def _book(self, constraint: SameWorkerGroup | None) -> SlotBook:
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
        empty = [TaskExecutorWithoutSlots(place) for place in places if not self.slots_of(place)]
        self._story.add(now, f"{len(gone)} slots left: {reason}")
        actions: list[SlotPoolAction] = [SlotsChanged((), tuple(gone))]
        if reserved:
            actions.append(SlotsLost(tuple(reserved), reason))
        return [*actions, *empty, *self._declare(now)]

    def _declare(self, now: float, *, always: bool = False) -> list[SlotPoolAction]:
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


@dataclass(frozen=True, slots=True)
class DeclareRequirements:
    """Tell the ResourceManager which slots the job requires from now on."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Tell the slot's TaskExecutor to free the slot.
    The pool has forgotten the slot, whether or not this succeeds."""

    location: WorkerLocation
    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Tell the JobMaster which slots were added to the pool, and which were removed."""

    gained: tuple[AllocatedSlot, ...]
    lost: tuple[AllocationID, ...]


SlotPoolAction = DeclareRequirements | FreeSlot | SlotsChanged | SlotEvent
