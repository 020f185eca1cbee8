"""RegionSlots, as a job sees it."""

from __future__ import annotations

import pytest

from flinkray.scheduler.slots.slot_requests import SlotAllocated, SlotEvent, SlotsLost
from tests.scheduler.graphs import job
from tests.scheduler.tasks_under_test import TasksUnderTest


@pytest.mark.parametrize("number_lost", [1, 2])
def test_slot_that_came_and_was_lost_by_one_word_of_the_pool_is_asked_for_again(
    number_lost: int,
) -> None:
    """A region that waited for it would wait for ever."""
    tasks = TasksUnderTest(job(a=2, b=2, edges=["a -> b"]))
    tasks.tell("start")
    events: list[SlotEvent] = []
    for number, request_id in enumerate(list(tasks.wanted)):
        del tasks.wanted[request_id]
        slot = tasks.new_slot()
        events.append(SlotAllocated(request_id, slot))
        if number < number_lost:
            events.append(SlotsLost((slot.allocation_id,), "killed"))
        else:
            tasks.reserved[slot.allocation_id] = slot
    assert tasks.deployed(tasks.tell("slot_events", events)) == ""
    assert len(tasks.wanted) == number_lost
    assert sorted(tasks.deployed(tasks.give()).split()) == ["a1#0", "a2#0", "b1#0", "b2#0"]
