"""RegionSlots, as a job sees it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.execution.regions import PipelinedRegions
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job import transitions as t
from flinkray.scheduler.job.region_slots import RegionSlots
from flinkray.scheduler.shared.states import JobStatus
from flinkray.scheduler.slots.slot_requests import (
    SlotAllocated,
    SlotEvent,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from tests.scheduler.builders import one
from tests.scheduler.graphs import execution_graph, job, python_vertex
from tests.scheduler.tasks_under_test import TasksUnderTest


@pytest.mark.parametrize("number_lost", [1, 2])
def test_slot_that_is_allocated_and_lost_in_the_same_event_is_requested_again(
    number_lost: int,
) -> None:
    """Otherwise the region that waits for the slot would wait for ever."""
    tasks = TasksUnderTest(job(a=2, b=2, edges=["a -> b"]))
    tasks.tell(t.StartJob())
    events: list[SlotEvent] = []
    for number, request_id in enumerate(list(tasks.wanted)):
        del tasks.wanted[request_id]
        slot = tasks.new_slot()
        events.append(SlotAllocated(request_id, slot))
        if number < number_lost:
            events.append(SlotsLost((slot.allocation_id,), "killed"))
        else:
            tasks.reserved[slot.allocation_id] = slot
    assert tasks.deployed(tasks.tell(t.SlotsTold(tuple(events)))) == ""
    assert len(tasks.wanted) == number_lost
    assert sorted(tasks.deployed(tasks.give()).split()) == ["a1#0", "a2#0", "b1#0", "b2#0"]


def test_lost_slot_of_a_region_that_fails_in_the_same_event_is_not_requested_again() -> None:
    graph = job(a=2, b=2, edges=["a -> b"], restart_strategy=FixedDelayRestart(1))
    tasks = TasksUnderTest(graph)
    tasks.tell(t.StartJob())
    first, second = list(tasks.wanted)
    slot = tasks.new_slot()
    tasks.wanted.clear()
    events = (
        SlotAllocated(first, slot),
        SlotsLost((slot.allocation_id,), "killed"),
        SlotRequestFailed(second, SlotRequestFailure.TIMED_OUT, "why"),
    )
    tasks.tell(t.SlotsTold(tuple(events)))
    assert tasks.status is JobStatus.RESTARTING
    assert tasks.wanted == {}
    assert len(tasks.deployed(tasks.restart()).split()) == 4


def test_slot_is_not_requested_again_for_a_subtask_that_is_waiting_already() -> None:
    graph = execution_graph(a=2)
    region_slots = RegionSlots(graph, PipelinedRegions(graph))
    assert len(one(region_slots.request((0,)), SlotRequests).requests) == 1
    assert region_slots.request_again(t.RequestSlotsAgain((0, 1)), 2.0) == []
    assert region_slots.requests_made == 1


@pytest.mark.parametrize(("edge", "is_batch"), [("a => b", True), ("a -> b", False)])
def test_slot_requests_of_batch_regions_are_marked_as_batch(edge: str, is_batch: bool) -> None:
    """SP-15, SP-16: such requests wait where streaming requests fail."""
    actions = TasksUnderTest(job(a=1, b=1, edges=[edge])).tell(t.StartJob())
    assert one(actions, SlotRequests).is_batch is is_batch


@pytest.mark.parametrize(
    ("producers", "second"),
    [(4, "a3 b2"), (16, "a9 b2"), (18, "a2 b2")],
)
def test_subtask_shares_its_first_producers_slot_unless_it_has_too_many_producers(
    producers: int, second: str
) -> None:
    tasks = TasksUnderTest(job(a=producers, b=2, edges=["a --> b"]))
    tasks.tell(t.StartJob())
    shared = [
        " ".join(f"{tasks.names[v.job_vertex_id]}{v.subtask_index + 1}" for v in request.vertices)
        for request, _ in tasks.wanted.values()
    ]
    assert [names for names in shared if "b" in names] == ["a1 b1", second]


def test_pending_reason_names_no_slot_size_if_the_profile_is_unspecified() -> None:
    vertex = replace(python_vertex("a"), slot_profile=ResourceProfile(0.0))
    tasks = TasksUnderTest(job(vertices=(vertex,)))
    tasks.tell(t.StartJob())
    assert tasks.scheduler.details().pending_reason == "1 slot has not come yet."


def test_slot_timeout_text_is_complete_without_resource_manager_reason() -> None:
    tasks = TasksUnderTest(job(a=1))
    tasks.tell(t.StartJob())
    request_id, _ = tasks.wanted.popitem()
    failed = SlotRequestFailed(request_id, SlotRequestFailure.TIMED_OUT, "None came.")
    tasks.tell(t.SlotsTold((failed,)))
    assert tasks.ended is not None
    assert "slot request timeout. None came. Lower the" in (tasks.ended.result.failure or "")
