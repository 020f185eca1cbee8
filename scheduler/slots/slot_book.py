"""What a SlotPool asks of those who keep its slots and requests, one for each constraint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirement, ResourceShortage
from flinkray.scheduler.slots.slot_requests import (
    RestoredSlot,
    SlotAllocated,
    SlotEvent,
    SlotRequestFailure,
    SlotRequests,
)


class SlotBook(Protocol):
    """What the pool holds and owes under one constraint of its job, or without one.

    Times are in monotonic seconds.  After every change the pool asks for the :meth:`requirements`.
    """

    # --- questions --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether there is nothing here that has to be remembered."""

    @property
    def number_pending(self) -> int:
        """Requests that are not answered."""

    def slots(self) -> tuple[AllocatedSlot, ...]:
        """All that are held, oldest first."""

    def slots_on(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """Those of one TaskExecutor, oldest first."""

    def holds(self, allocation_id: AllocationID) -> bool: ...

    def slot(self, allocation_id: AllocationID) -> AllocatedSlot:
        """One that is held."""

    def is_reserved(self, allocation_id: AllocationID) -> bool:
        """Whether a request has got it; False: it is free, or not held."""

    # --- what the job wants -----------------------------------------------------------------------

    def declare(self, requirements: Sequence[ResourceRequirement], now: float) -> None:
        """What the job requires without requests, all of it (SP-21)."""

    def requirements(self, now: float) -> tuple[ResourceRequirement, ...]:
        """What the ResourceManager is to be told, after all that has changed until *now*."""

    def request(self, wanted: SlotRequests, timeout: float, now: float) -> list[SlotAllocated]:
        """Serve requests from free slots, and let the others wait for *timeout* seconds.

        Raises:
            ValueError: one of them is pending already, or cannot be.
        """

    def serve(self) -> list[SlotAllocated]:
        """Give what has come, or was given back, to those who wait for it."""

    def cancel(self, request_ids: Collection[SlotRequestId], now: float) -> None:
        """Those that are not pending are ignored."""

    def give_back(self, allocation_id: AllocationID, now: float) -> None:
        """A slot that is held is free from now on, if it was reserved.  To be followed by
        :meth:`serve`."""

    def keep(self, is_kept: bool, required: Sequence[ResourceRequirement], now: float) -> None:
        """Whether the job restarts: it will want again what it does not ask for now (SP-26), and
        what was *required* of it when the restart began."""

    # --- requests that end without a slot ---------------------------------------------------------

    def fail_short(self, shortages: Sequence[ResourceShortage], now: float) -> list[SlotEvent]:
        """Requests that, as far as these shortages are theirs, no slot will come for (SP-16,
        SP-28)."""

    def fail_late(self, now: float) -> list[SlotEvent]:
        """Requests whose time is over (SP-14)."""

    def fail_all(self, failure: SlotRequestFailure, reason: str, now: float) -> list[SlotEvent]:
        """No request is served any more."""

    def next_deadline(self) -> float:
        """When :meth:`fail_late` has something to do; infinite: not before another event."""

    # --- slots that come and go -------------------------------------------------------------------

    def outdated_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """The slot that must be gone because this one is offered, wanted or not, under whatever
        constraint."""

    def match(self, slot: AllocatedSlot, now: float) -> ResourceProfile | None:
        """The required profile that an offered slot is to fulfil; None: it is not wanted."""

    def replaced_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """The slot that has to go before this one, which is wanted, can be added."""

    def add(self, slot: AllocatedSlot, matched: ResourceProfile, now: float) -> None:
        """A free slot joins, for what it was matched to.  To be followed by :meth:`serve`."""

    def take_over(self, restored: RestoredSlot, now: float) -> bool:
        """Add a free slot of the job's past though it is not required, or not yet; False: it
        cannot be of use.  To be followed by :meth:`serve`."""

    def restore(self, restored: RestoredSlot, now: float) -> None:
        """A slot that the last pool held, reserved or free."""

    def remove(self, allocation_id: AllocationID, now: float) -> None:
        """A slot that is held is gone; its request, if it has one, does not count any more."""

    def useless(self) -> tuple[AllocationID, ...]:
        """Free slots that no request can get, whatever comes."""

    # --- time -------------------------------------------------------------------------------------

    def idle_too_long(self, timeout: float, now: float) -> tuple[AllocationID, ...]:
        """Slots beyond what is required that were idle for *timeout* seconds (SP-07)."""

    def idle_deadline(self, timeout: float) -> float:
        """When :meth:`idle_too_long` has something to tell; infinite: not before another event."""
