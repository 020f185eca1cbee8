"""A JobMaster's copy of what its SlotPool holds."""

from __future__ import annotations

from flinkray.core.ids import ResourceID
from flinkray.scheduler.slots.held_slots import HeldSlots
from tests.scheduler.builders import allocation, slot_on

TE0, TE1 = ResourceID("te-0"), ResourceID("te-1")


def held() -> HeldSlots:
    slots = HeldSlots()
    for name, number in (("te-0", 1), ("te-1", 2), ("te-0", 3)):
        slots.add(slot_on(name, number))
    return slots


def test_slots_are_found_by_task_executor_oldest_first() -> None:
    slots = held()
    assert slots.on(TE0) == (allocation(1), allocation(3))
    assert slots.on(TE1) == (allocation(2),)
    assert slots.on(ResourceID("nobody")) == ()
    assert slots.all() == (slot_on("te-0", 1), slot_on("te-1", 2), slot_on("te-0", 3))


def test_removed_slots_are_gone_and_unknown_ones_are_ignored() -> None:
    slots = held()
    slots.remove((allocation(9), allocation(1), allocation(2)))
    assert slots.on(TE0) == (allocation(3),)
    assert slots.on(TE1) == ()
    assert slots.all() == (slot_on("te-0", 3),)
    slots.remove((allocation(1),))  # again
    slots.add(slot_on("te-1", 4))
    assert slots.on(TE1) == (allocation(4),)


def test_lost_task_executor_takes_its_slots_along() -> None:
    slots = held()
    slots.remove_all_on(TE0)
    slots.remove_all_on(TE0)
    assert slots.all() == (slot_on("te-1", 2),)
    assert slots.on(TE0) == ()
    slots.clear()
    assert slots.all() == slots.on(TE1) == ()
