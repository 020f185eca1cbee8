"""Defines SlotLedger, a JobMaster's record of the slots and requests in its SlotPool."""

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
)
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    HeldSlot,
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
    """The request for which a slot is reserved."""

    request_id: SlotRequestId
    profile: ResourceProfile
    """Requested profile."""


class SlotLedger:
    """A JobMaster's record of its SlotPool's slots, requests and answers, for the case that the
    pool dies. Then the JobMaster sends the record to the next pool, and the job continues.

    A message that was lost with its pool may or may not have had an effect. The ledger counts every
    message sent to the pool, and trusts every message received. Heartbeats of TaskExecutors correct
    errors. Slots are indexed by TaskExecutor, for the heartbeats to each (JM-08).
    """

    def __init__(self) -> None:
        self._slots: dict[AllocationID, AllocatedSlot] = {}
        self._on: dict[ResourceID, dict[AllocationID, None]] = {}
        self._constraints: dict[AllocationID, SameWorkerGroup] = {}
        """Constraints of the slots that were offered with one."""
        self._used: dict[AllocationID, _Use] = {}
        self._pending: dict[SlotRequestId, tuple[SlotRequest, SlotRequests]] = {}
        """Pending request, with the message that contained it (without the message's requests)."""
        self._totals: Counter[ResourceProfile] = Counter()
        """Slots that the pool requires now without a constraint, by profile; at least 0."""
        self._requirements: ResourceRequirements | None = None
        self._worker_groups: dict[str, ResourceRequirement] = {}
        """Name of a constraint -> last requirement of the worker group."""
        self._kept: dict[str, None] = {}
        """Names of constraints whose worker groups stay required while the job restarts."""

    # --- messages to the pool ---------------------------------------------------------------------

    def set_requirements(self, requirements: ResourceRequirements) -> None:
        """Record new requirements, which replace all totals (SP-21)."""
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
        """Record that a restart of the job begins or ends. Worker groups that are required when it
        begins stay required until it ends."""
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

    # --- events of slots --------------------------------------------------------------------------

    def add(self, slot: AllocatedSlot, constraint: SameWorkerGroup | None = None) -> None:
        """Record that the pool has the slot. *constraint*: the worker group constraint under which
        the slot was offered; None for other slots."""
        self._slots[slot.allocation_id] = slot
        self._on.setdefault(slot.location.resource_id, {})[slot.allocation_id] = None
        if constraint is not None:
            self._constraints[slot.allocation_id] = constraint

    def adopted(self, slots: Iterable[HeldSlot]) -> None:
        """Record slots that the job had under an earlier JobMaster. The caller must send them to
        the pool (:meth:`restored`)."""
        for restored in slots:
            allocation_id = restored.slot.allocation_id
            self.add(restored.slot, restored.constraint)
            if restored.request_id is not None:
                profile = restored.profile or restored.slot.profile
                self._used[allocation_id] = _Use(restored.request_id, profile)
                if restored.constraint is None:
                    self._totals[profile] += 1
                else:
                    self._note_worker_group(profile, restored.constraint)

    def remove(self, allocations: Iterable[AllocationID]) -> None:
        """Forget slots that no longer exist.  Unknown slots are ignored."""
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
        """Forget the slots of a lost TaskExecutor."""
        self.remove(self.on(resource_id))

    def told(self, events: Iterable[SlotEvent]) -> None:
        """Record answers and losses that the pool has reported: slots given to requests, failed
        requests, lost slots."""
        for event in events:
            match event:
                case SlotAllocated(request_id, slot):
                    pending = self._pending.pop(request_id, None)
                    if slot.allocation_id in self._slots:
                        profile = slot.profile if pending is None else pending[1].profile
                        self._used[slot.allocation_id] = _Use(request_id, profile)
                        if pending is None and slot.allocation_id not in self._constraints:
                            # canceled too late for the pool, which counts the slot until it is
                            # returned
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

    # --- information for another pool -------------------------------------------------------------

    def requirements(self) -> ResourceRequirements | None:
        """Return the slots that the job has declared without requests: the total without the slots
        of pending requests and reserved slots. None if no requirements were ever set."""
        set_last = self._requirements
        if set_last is None:
            return None
        rest = Counter(self._totals)
        rest.subtract(w.profile for _, w in self._pending.values() if w.constraint is None)
        rest.subtract(use.profile for a, use in self._used.items() if a not in self._constraints)
        constrained = tuple(r for r in set_last.requirements if r.constraint is not None)
        free = tuple(ResourceRequirement(p, n) for p, n in rest.items() if n > 0)
        return replace(set_last, requirements=free + constrained)

    def restored(self) -> Iterator[HeldSlot]:
        """Yield all slots in the record, oldest first, each with the request for which it is
        reserved, to be sent to the pool that replaces a dead one."""
        for allocation_id, slot in self._slots.items():
            use = self._used.get(allocation_id)
            constraint = self._constraints.get(allocation_id)
            if use is None:
                yield HeldSlot(slot, constraint)
            else:
                yield HeldSlot(slot, constraint, use.request_id, use.profile)

    def pending(self) -> list[SlotRequests]:
        """Return the unanswered requests, in their order. Requests of the same profile are combined
        in one message."""
        alike: dict[SlotRequests, list[SlotRequest]] = {}
        for request, made_in in self._pending.values():
            alike.setdefault(made_in, []).append(request)
        return [replace(made_in, requests=tuple(some)) for made_in, some in alike.items()]

    def kept_worker_groups(self) -> tuple[ResourceRequirement, ...]:
        """Return the requirements of the worker groups that stay required because the job restarts,
        whether or not their slots are requested or reserved."""
        return tuple(self._worker_groups[name] for name in self._kept)

    # --- questions --------------------------------------------------------------------------------

    def on(self, resource_id: ResourceID) -> tuple[AllocationID, ...]:
        """Return the allocation ids of the recorded slots on one TaskExecutor, oldest first."""
        return tuple(self._on.get(resource_id, ()))

    def all(self) -> tuple[AllocatedSlot, ...]:
        """Return all slots in the record, oldest first."""
        return tuple(self._slots.values())
