"""The slots that a job wants and has: the decisions of a SlotPool."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flinkray.core.ids import AllocationID, JobID, ResourceID
from flinkray.scheduler.matching import match_slots
from flinkray.scheduler.slots import (
    AllocatedSlot,
    ResourceRequirements,
    SlotOffer,
    SlotOfferAnswer,
    WorkerLocation,
)
from flinkray.scheduler.story import Story


@dataclass(frozen=True, slots=True)
class DeclareRequirements:
    """Tell the ResourceManager what the job wants from now on."""

    requirements: ResourceRequirements


@dataclass(frozen=True, slots=True)
class FreeSlot:
    """Tell the slot's TaskExecutor to free it; whether that succeeds or not, the pool has
    forgotten it."""

    location: WorkerLocation
    allocation_id: AllocationID
    reason: str


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """Tell the JobMaster all the slots that the pool holds now."""

    slots: tuple[AllocatedSlot, ...]


SlotPoolAction = DeclareRequirements | FreeSlot | SlotsChanged


class DeclarativeSlotPool:
    """Accepts offered slots as far as they are required, and gives back what is not.

    Events in, actions out, in the order in which they are to be carried out.  ``now`` is in
    monotonic seconds.
    """

    def __init__(self, job_id: JobID, idle_timeout: float = 50.0) -> None:
        """*idle_timeout* in seconds: how long a slot beyond the requirements is kept."""
        self._job_id = job_id
        self._idle_timeout = idle_timeout
        self._task_executors: dict[ResourceID, WorkerLocation] = {}
        self._slots: dict[AllocationID, AllocatedSlot] = {}
        self._excess_since: dict[AllocationID, float] = {}
        self._requirements: ResourceRequirements | None = None
        self._job_restarting = False
        self._closed = False
        self._story = Story(f"the slot pool of job {job_id}")

    @property
    def requirements(self) -> ResourceRequirements | None:
        """What was declared last; to be declared again whenever a ResourceManager is connected
        (SP-27)."""
        return self._requirements

    @property
    def slots(self) -> tuple[AllocatedSlot, ...]:
        """All slots held, oldest first."""
        return tuple(self._slots.values())

    def slots_of(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """The slots held on one TaskExecutor."""
        return tuple(s for s in self._slots.values() if s.location.resource_id == resource_id)

    def set_requirements(
        self, requirements: ResourceRequirements, now: float
    ) -> list[SlotPoolAction]:
        """Replace the requirements (a total)."""
        self._require_open("take requirements")
        if requirements.job_id != self._job_id:
            raise ValueError(
                f"the slot pool of job {self._job_id} got requirements of job {requirements.job_id}"
            )
        self._requirements = requirements
        count = sum(requirement.count for requirement in requirements.requirements)
        self._story.add(now, f"{count} slots are required")
        self._note_excess(now)
        return [DeclareRequirements(requirements)]

    def set_job_restarting(self, restarting: bool) -> None:
        """While the job restarts every offered slot is kept, required or not (SP-26)."""
        self._job_restarting = restarting

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
        for allocation_id in lost:
            self._forget(allocation_id, reason, now)
        return self._changed(now) if lost else []

    def offer_slots(
        self, resource_id: ResourceID, offers: tuple[SlotOffer, ...], now: float
    ) -> tuple[SlotOfferAnswer, list[SlotPoolAction]]:
        """Take the offers that are required; the same offer again is accepted again (SP-03)."""
        location = self._task_executors.get(resource_id)
        if location is None or self._closed:
            return SlotOfferAnswer(()), []
        before = self.slots
        accepted = tuple(o.allocation_id for o in offers if self._accept(location, o, now))
        changed = self.slots != before
        return SlotOfferAnswer(accepted), self._changed(now) if changed else []

    def fail_allocation(
        self, allocation_id: AllocationID, reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The slot is of no use any more; unknown allocations are ignored."""
        return self.release_slots((allocation_id,), reason, now)

    def release_slots(
        self, allocations: tuple[AllocationID, ...], reason: str, now: float
    ) -> list[SlotPoolAction]:
        """The job gives slots back, whatever its requirements are."""
        freed: list[SlotPoolAction] = []
        for allocation_id in allocations:
            slot = self._slots.get(allocation_id)
            if slot is not None:
                self._forget(allocation_id, reason, now)
                freed.append(FreeSlot(slot.location, allocation_id, reason))
        return freed + self._changed(now) if freed else []

    def release_idle_slots(self, now: float) -> list[SlotPoolAction]:
        """Give back what has been beyond the requirements for the idle time-out (SP-07, SP-23)."""
        idle = [a for a, since in self._excess_since.items() if since + self._idle_timeout <= now]
        reason = f"not required for {self._idle_timeout:g} s"
        return self.release_slots(tuple(idle), reason, now)

    def next_deadline(self) -> float | None:
        """When :meth:`release_idle_slots` has something to do next; None: no slot is beyond the
        requirements."""
        if not self._excess_since:
            return None
        return min(self._excess_since.values()) + self._idle_timeout

    def close(self, reason: str) -> list[SlotPoolAction]:
        """Free every slot and declare empty requirements; later offers are refused (SP-06)."""
        if self._closed:
            return []
        self._closed = True
        actions: list[SlotPoolAction] = [
            FreeSlot(slot.location, slot.allocation_id, reason) for slot in self._slots.values()
        ]
        self._slots.clear()
        self._excess_since.clear()
        self._task_executors.clear()
        if self._requirements is not None:
            self._requirements = replace(self._requirements, requirements=())
            actions.append(DeclareRequirements(self._requirements))
        return actions

    def story(self) -> str:
        """What has happened to the pool, a line per event."""
        return str(self._story)

    def _accept(self, location: WorkerLocation, offer: SlotOffer, now: float) -> bool:
        held = self._slots.get(offer.allocation_id)
        if held is not None:
            return held.location == location and held.slot_index == offer.slot_index
        for slot in self.slots_of(location.resource_id):
            if slot.slot_index == offer.slot_index:
                # A TaskExecutor has one allocation per slot: the older one must be gone.
                self._forget(slot.allocation_id, "its slot is offered under another id", now)
        if not (self._job_restarting or self._is_required(offer)):
            self._story.add(now, f"offer {offer.allocation_id.short()} refused: not required")
            return False
        self._slots[offer.allocation_id] = AllocatedSlot(
            offer.allocation_id, offer.slot_index, offer.profile, location
        )
        self._story.add(
            now, f"slot {offer.allocation_id.short()} accepted from {location.resource_id}"
        )
        return True

    def _is_required(self, offer: SlotOffer) -> bool:
        if self._requirements is None:
            return False
        required = self._requirements.requirements
        profiles = [slot.profile for slot in self._slots.values()]
        with_offer = match_slots(required, [*profiles, offer.profile])
        return with_offer.number_missing < match_slots(required, profiles).number_missing

    def _forget(self, allocation_id: AllocationID, reason: str, now: float) -> None:
        del self._slots[allocation_id]
        self._excess_since.pop(allocation_id, None)
        self._story.add(now, f"slot {allocation_id.short()} left: {reason}")

    def _changed(self, now: float) -> list[SlotPoolAction]:
        self._note_excess(now)
        return [SlotsChanged(self.slots)]

    def _note_excess(self, now: float) -> None:
        required = self._requirements.requirements if self._requirements else ()
        matching = match_slots(required, [slot.profile for slot in self._slots.values()])
        for allocation_id, matched in zip(self._slots, matching.matched, strict=True):
            if matched:
                self._excess_since.pop(allocation_id, None)
            else:
                self._excess_since.setdefault(allocation_id, now)

    def _require_open(self, wanted: str) -> None:
        if self._closed:
            raise self._story.illegal(f"{wanted} after it was closed")
