"""Defines SlotBook, through which a SlotPool accesses the slots and requests of one constraint."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from flinkray.core.ids import AllocationID, ResourceID, SlotRequestId
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.shared.slots import AllocatedSlot, ResourceRequirement, ResourceShortage
from flinkray.scheduler.slots.slot_requests import (
    HeldSlot,
    SlotAllocated,
    SlotEvent,
    SlotRequestFailure,
    SlotRequests,
)


class SlotBook(Protocol):
    """Interface to the slots and requests of a pool that belong to one constraint of its job (a
    worker group), or to none. Times are in monotonic seconds. After every change the pool reads the
    :meth:`requirements`."""

    # --- questions --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the pool can drop the book, because it has no slots, requests or requirements."""

    @property
    def number_pending(self) -> int:
        """Number of unanswered requests."""

    def slots(self) -> tuple[AllocatedSlot, ...]:
        """Return all slots in the book, oldest first."""

    def slots_on(self, resource_id: ResourceID) -> tuple[AllocatedSlot, ...]:
        """Return the book's slots on one TaskExecutor, oldest first."""

    def holds(self, allocation_id: AllocationID) -> bool: ...

    def slot(self, allocation_id: AllocationID) -> AllocatedSlot:
        """Return the slot with this id, which must be in the book."""

    def is_reserved(self, allocation_id: AllocationID) -> bool:
        """Return whether the slot is reserved for a request; False if it is free or not in this
        book."""

    # --- requirements of the job ------------------------------------------------------------------

    def declare(self, requirements: Sequence[ResourceRequirement], now: float) -> None:
        """Set how many slots the job requires beyond those of its requests (SP-21)."""

    def requirements(self, now: float) -> tuple[ResourceRequirement, ...]:
        """Return the requirements to declare to the ResourceManager, after all changes until
        *now*."""

    def request(self, wanted: SlotRequests, timeout: float, now: float) -> list[SlotAllocated]:
        """Reserve free slots for these requests; requests without a fitting slot wait for *timeout*
        seconds.

        Raises:
            ValueError: a request is pending already, or is not possible.
        """

    def serve(self) -> list[SlotAllocated]:
        """Reserve free slots for waiting requests, and return an answer for each request that got
        one."""

    def cancel(self, request_ids: Collection[SlotRequestId], now: float) -> None:
        """Cancel requests.  Requests that are not pending are ignored."""

    def give_back(self, allocation_id: AllocationID, now: float) -> None:
        """Free a reserved slot that the job has returned. The caller must call :meth:`serve`
        next."""

    def keep(self, is_kept: bool, required: Sequence[ResourceRequirement], now: float) -> None:
        """Set whether all slots are kept and wanted, because the job restarts and will request its
        slots again (SP-26). *required*: requirements of the job when the restart began."""

    # --- requests that end without a slot ---------------------------------------------------------

    def fail_short(self, shortages: Sequence[ResourceShortage], now: float) -> list[SlotEvent]:
        """Fail requests that will get no slot because of these shortages, and return the answers to
        them (SP-16, SP-28)."""

    def fail_late(self, now: float) -> list[SlotEvent]:
        """Fail requests that have timed out, and return the answers to them (SP-14)."""

    def fail_all(self, failure: SlotRequestFailure, reason: str, now: float) -> list[SlotEvent]:
        """Fail all requests, and return the answers to them."""

    def next_deadline(self) -> float:
        """Return when :meth:`fail_late` next fails a request. Infinite if another event must come
        first."""

    # --- slots that come and go -------------------------------------------------------------------

    def outdated_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """Return the slot in the book that no longer exists, because its TaskExecutor offers *slot*
        in its place; None if there is none. Whether *slot* is wanted does not matter."""

    def match(self, slot: AllocatedSlot, now: float) -> ResourceProfile | None:
        """Return the required profile that an offered slot would fulfil; None if the slot is not
        wanted."""

    def replaced_by(self, slot: AllocatedSlot) -> AllocatedSlot | None:
        """Return the slot in the book that must be removed before *slot*, which is wanted, can be
        added; None if there is none."""

    def add(self, slot: AllocatedSlot, matched: ResourceProfile, now: float) -> None:
        """Add a free slot that fulfils the required profile *matched*. Then the caller must call
        :meth:`serve`."""

    def take_over(self, restored: HeldSlot, now: float) -> bool:
        """Add a free slot that the job had under an earlier JobMaster, even if it is not required
        yet. Returns False if no requirement could use the slot. If True, the caller must call
        :meth:`serve`."""

    def restore(self, restored: HeldSlot, now: float) -> None:
        """Add a slot of the job's previous pool, with its reservation if it was reserved."""

    def remove(self, allocation_id: AllocationID, now: float) -> None:
        """Remove a slot that no longer exists, with the request that had the slot."""

    def useless(self) -> tuple[AllocationID, ...]:
        """Return the free slots that no future request can get."""

    # --- time -------------------------------------------------------------------------------------

    def idle_too_long(self, timeout: float, now: float) -> tuple[AllocationID, ...]:
        """Return the slots beyond the requirements that were idle for *timeout* seconds (SP-07)."""

    def idle_deadline(self, timeout: float) -> float:
        """Return when :meth:`idle_too_long` next returns slots. Infinite if another event must come
        first."""
