"""A JobMaster's side of what it and its SlotPool know of slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import (
    AllocatedSlot,
    ResourceRequirement,
    ResourceRequirements,
    SameWorkerGroup,
    SlotOffer,
    SlotOfferAnswer,
)
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    RestoredSlot,
    ReturnSlots,
    SlotAllocated,
    SlotEvent,
    SlotRequest,
    SlotRequestFailed,
    SlotRequests,
    SlotsLost,
    TaskExecutorWithoutSlots,
)


@dataclass(frozen=True, slots=True)
class _Use:
    """Whom a slot is reserved for."""

    request_id: SlotRequestId
    profile: ResourceProfile
    """That was asked for."""


class SlotLedger:
    """Keeps what the pool holds, what it was asked for and what it has answered, so that another
    pool can be told all of it when this one dies: the job does not notice.

    A message that died with its pool may or may not have had an effect.  The ledger counts what was
    said, and believes what was heard.  Where that is not what TaskExecutors have, heartbeats tell.

    Slots are found by TaskExecutor, for the heartbeats to each (JM-08).
    """

    def __init__(self) -> None:
        self._slots: dict[AllocationID, AllocatedSlot] = {}
        self._on: dict[ResourceID, dict[AllocationID, None]] = {}
        self._constraints: dict[AllocationID, SameWorkerGroup] = {}
        """Of the slots that were offered with one."""
        self._used: dict[AllocationID, _Use] = {}
        self._pending: dict[SlotRequestId, tuple[SlotRequest, SlotRequests]] = {}
        """With the message in which each was made, but for its requests."""
        self._totals: Counter[ResourceProfile] = Counter()
        """What the pool requires now without a constraint; never below nothing, as there."""
        self._requirements: ResourceRequirements | None = None
        """As they were set last."""
        self._worker_groups: dict[str, ResourceRequirement] = {}
        """What was required of each last, by the names of constraints."""
        self._kept: dict[str, None] = {}
        """Those that stay required while the job restarts."""

    # --- what the pool is told --------------------------------------------------------------------

    def set_requirements(self, requirements: ResourceRequirements) -> None:
        """They take the place of all totals (SP-21)."""
        self._requirements = requirements
        self._totals = Counter()
        for requirement in requirements.requirements:
            if requirement.constraint is None:
                self._totals[requirement.profile] += requirement.count
            else:
                self._note_worker_group(requirement.profile, requirement.constraint)

    def requested(self, wanted: SlotRequests) -> None:
        made_in = replace(wanted, requests=())
        for request in wanted.requests:
            self._pending[request.request_id] = request, made_in
        if wanted.constraint is None:
            self._totals[wanted.profile] += len(wanted.requests)
        else:
            self._note_worker_group(wanted.profile, wanted.constraint)

    def _note_worker_group(self, profile: ResourceProfile, constraint: SameWorkerGroup) -> None:
        requirement = ResourceRequirement(profile, constraint.size, constraint)
        self._worker_groups[constraint.name] = requirement

    def job_restarting(self, is_restarting: bool) -> None:
        """It begins to, or does no more: worker groups that are required now stay so meanwhile."""
        if not is_restarting:
            self._kept.clear()
            return
        constraints = [made_in.constraint for _, made_in in self._pending.values()]
        constraints += [self._constraints.get(allocation_id) for allocation_id in self._used]
        if self._requirements is not None:
            constraints += [r.constraint for r in self._requirements.requirements]
        self._kept.update((one.name, None) for one in constraints if one is not None)

    def cancelled(self, cancelled: CancelSlotRequests) -> None:
        for request_id in cancelled.request_ids:
            self._ended(request_id)

    def returned(self, returned: ReturnSlots) -> None:
        for allocation_id in returned.allocations:
            self._free(allocation_id)

    def offered(self, offers: Iterable[SlotOffer]) -> None:
        """To be told before the pool says which of them it takes."""
        for offer in offers:
            if offer.constraint is not None:
                self._constraints[offer.allocation_id] = offer.constraint

    def offer_answered(self, offers: Iterable[SlotOffer], answer: SlotOfferAnswer) -> None:
        """What the pool has not taken goes back; the others it tells, before or after."""
        for offer in offers:
            if offer.allocation_id not in answer.accepted:
                self._constraints.pop(offer.allocation_id, None)

    # --- what is heard of slots -------------------------------------------------------------------

    def add(self, slot: AllocatedSlot) -> None:
        """The pool has it."""
        self._slots[slot.allocation_id] = slot
        self._on.setdefault(slot.location.resource_id, {})[slot.allocation_id] = None

    def adopted(self, slots: Iterable[RestoredSlot]) -> None:
        """The job has had them before this JobMaster; the pool is to be told (:meth:`restored`)."""
        for restored in slots:
            allocation_id = restored.slot.allocation_id
            self.add(restored.slot)
            if restored.constraint is not None:
                self._constraints[allocation_id] = restored.constraint
            if restored.request_id is not None:
                profile = restored.profile or restored.slot.profile
                self._used[allocation_id] = _Use(restored.request_id, profile)
                if restored.constraint is None:
                    self._totals[profile] += 1
                else:
                    self._note_worker_group(profile, restored.constraint)

    def remove(self, allocations: Iterable[AllocationID]) -> None:
        """They are gone; unknown ones are ignored."""
        for allocation_id in allocations:
            slot = self._slots.pop(allocation_id, None)
            if slot is not None:
                self._free(allocation_id)
                self._constraints.pop(allocation_id, None)
                resource_id = slot.location.resource_id
                del self._on[resource_id][allocation_id]
                if not self._on[resource_id]:
                    del self._on[resource_id]

    def remove_all_on(self, resource_id: ResourceID) -> None:
        """The TaskExecutor is lost."""
        self.remove(self.on(resource_id))

    def told(self, events: Iterable[SlotEvent]) -> None:
        """What the pool says of requests and of what is reserved."""
        for event in events:
            match event:
                case SlotAllocated(request_id, slot):
                    pending = self._pending.pop(request_id, None)
                    if slot.allocation_id in self._slots:
                        profile = slot.profile if pending is None else pending[1].profile
                        self._used[slot.allocation_id] = _Use(request_id, profile)
                        if pending is None and slot.allocation_id not in self._constraints:
                            # cancelled too late for the pool, which counts it until it is returned
                            self._totals[profile] += 1
                    elif pending is not None:  # of a TaskExecutor that is lost
                        self._decrease(pending[1])
                case SlotRequestFailed(request_id):
                    self._ended(request_id)
                case SlotsLost(allocations):
                    for allocation_id in allocations:
                        self._free(allocation_id)
                case TaskExecutorWithoutSlots():
                    pass  # as it follows from what was lost

    def _ended(self, request_id: SlotRequestId) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None:
            self._decrease(pending[1])

    def _decrease(self, made_in: SlotRequests) -> None:
        if made_in.constraint is None:
            self._totals[made_in.profile] = max(0, self._totals[made_in.profile] - 1)

    def _free(self, allocation_id: AllocationID) -> None:
        use = self._used.pop(allocation_id, None)
        if use is not None and allocation_id not in self._constraints:
            self._totals[use.profile] = max(0, self._totals[use.profile] - 1)

    # --- what another pool is to be told ----------------------------------------------------------

    def requirements(self) -> ResourceRequirements | None:
        """What is required beside what is pending and used; None: nothing was ever set."""
        set_last = self._requirements
        if set_last is None:
            return None
        rest = Counter(self._totals)
        rest.subtract(w.profile for _, w in self._pending.values() if w.constraint is None)
        rest.subtract(use.profile for a, use in self._used.items() if a not in self._constraints)
        constrained = tuple(r for r in set_last.requirements if r.constraint is not None)
        free = tuple(ResourceRequirement(p, n) for p, n in rest.items() if n > 0)
        return replace(set_last, requirements=free + constrained)

    def restored(self) -> Iterator[RestoredSlot]:
        """All slots, each with whom it is reserved for, oldest first."""
        for allocation_id, slot in self._slots.items():
            use = self._used.get(allocation_id)
            constraint = self._constraints.get(allocation_id)
            if use is None:
                yield RestoredSlot(slot, constraint)
            else:
                yield RestoredSlot(slot, constraint, use.request_id, use.profile)

    def pending(self) -> list[SlotRequests]:
        """The requests that are not answered, in their order, those made alike by one message."""
        alike: dict[SlotRequests, list[SlotRequest]] = {}
        for request, made_in in self._pending.values():
            alike.setdefault(made_in, []).append(request)
        return [replace(made_in, requests=tuple(some)) for made_in, some in alike.items()]

    def kept_worker_groups(self) -> tuple[ResourceRequirement, ...]:
        """Those that are required, whatever is pending or used, as the job restarts."""
        return tuple(self._worker_groups[name] for name in self._kept)

    # --- questions --------------------------------------------------------------------------------

    def on(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """The allocations on one TaskExecutor, oldest first."""
        return tuple(self._on.get(resource_id, ()))

    def all(self) -> tuple[AllocatedSlot, ...]:
        """Oldest first."""
        return tuple(self._slots.values())
