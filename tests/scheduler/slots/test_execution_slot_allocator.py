"""ExecutionSlotAllocator: physical slots of the pool shared out among subtasks."""

from __future__ import annotations

import pytest

from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionVertexID,
    JobVertexID,
    ResourceID,
)
from flinkray.scheduler.slots.execution_slot_allocator import (
    ExecutionSlotAllocator,
    LogicalSlotAllocated,
    LogicalSlotFailed,
    SlotAllocatorAction,
)
from flinkray.scheduler.slots.logical_slots import FailPayload
from flinkray.scheduler.slots.slot_requests import (
    CancelSlotRequests,
    ReturnSlots,
    SlotAllocated,
    SlotRequestFailed,
    SlotRequestFailure,
    SlotRequests,
    SlotsLost,
)
from flinkray.scheduler.slots.slot_sharing import SharingVertex, slot_sharing_groups
from tests.scheduler.builders import GRAPH, SMALL, allocated_slot, allocation, id_of, one, only


def subtask(vertex: int, index: int = 0) -> ExecutionVertexID:
    return ExecutionVertexID(id_of(JobVertexID, vertex), index)


def attempt(vertex: int, index: int = 0, number: int = 0) -> ExecutionAttemptID:
    return ExecutionAttemptID(GRAPH, subtask(vertex, index), number)


ALL = [subtask(1, 0), subtask(1, 1), subtask(2, 0), subtask(2, 1)]


def allocator(**settings: bool) -> ExecutionSlotAllocator:
    """Of two vertices with two subtasks each, which share two slots."""
    vertices = [SharingVertex(id_of(JobVertexID, n), 2, "default", SMALL) for n in (1, 2)]
    return ExecutionSlotAllocator(slot_sharing_groups(vertices), **settings)


def answer(
    of: ExecutionSlotAllocator, requests: SlotRequests, *allocations: int
) -> list[SlotAllocatorAction]:
    return of.slot_events(
        SlotAllocated(request.request_id, allocated_slot(number))
        for request, number in zip(requests.requests, allocations, strict=False)
    )


def deployed() -> ExecutionSlotAllocator:
    """All four subtasks run, in slots 1 and 2."""
    slots = allocator()
    actions = answer(slots, one(slots.allocate(ALL), SlotRequests), 1, 2)
    for action in only(actions, LogicalSlotAllocated):
        assert action.slot.try_assign_payload(ExecutionAttemptID(GRAPH, action.slot.vertex, 0))
    return slots


def test_slots_of_all_subtasks_of_a_job_are_requested_by_one_message() -> None:
    """SP-20: one request for each slot, not for each subtask."""
    requests = one(allocator().allocate(ALL), SlotRequests)
    assert [r.vertices for r in requests.requests] == [
        (subtask(1, 0), subtask(2, 0)),
        (subtask(1, 1), subtask(2, 1)),
    ]
    assert [r.preferred_allocations for r in requests.requests] == [(), ()]
    assert requests.profile == SMALL
    assert not requests.is_batch


def test_slot_is_shared_by_subtasks_that_waited_for_it_and_later_subtasks() -> None:
    """SP-20."""
    slots = allocator()
    requests = one(slots.allocate([subtask(1, 0)]), SlotRequests)
    (first,) = answer(slots, requests, 1)
    (later,) = slots.allocate([subtask(2, 0)])
    assert isinstance(first, LogicalSlotAllocated)
    assert isinstance(later, LogicalSlotAllocated)
    assert first.slot.slot.allocation_id == later.slot.slot.allocation_id == allocation(1)
    assert first.slot is not later.slot


def test_subtask_with_a_slot_or_pending_request_cannot_request_again() -> None:
    slots = allocator()
    assert slots.has_nothing(subtask(1, 0))
    requests = one(slots.allocate([subtask(1, 0)]), SlotRequests)
    for _ in range(2):
        assert not slots.has_nothing(subtask(1, 0))
        with pytest.raises(ValueError, match="waits for one"):
            slots.allocate([subtask(1, 0)])
        answer(slots, requests, 1)


def test_slot_request_that_fails_fails_all_subtasks_that_wait_for_the_slot() -> None:
    """SP-20."""
    slots = allocator()
    requests = one(slots.allocate(ALL), SlotRequests)
    failed = SlotRequestFailed(
        requests.requests[0].request_id, SlotRequestFailure.TIMED_OUT, "none came"
    )
    actions = slots.slot_events([failed])
    assert [(a.vertex, a.reason) for a in only(actions, LogicalSlotFailed)] == [
        (subtask(1, 0), "none came"),
        (subtask(2, 0), "none came"),
    ]
    assert slots.waiting.total() == 1
    assert one(slots.allocate([subtask(1, 0)]), SlotRequests).requests != requests.requests


def test_lost_slot_fails_all_subtasks_that_share_it() -> None:
    """SP-20: the lost slot is not returned to the pool."""
    slots = deployed()
    actions = slots.slot_events([SlotsLost((allocation(1),), "its node died")])
    assert actions == [
        FailPayload(attempt(1, 0), "its node died"),
        FailPayload(attempt(2, 0), "its node died"),
    ]
    assert slots.payload_ended([attempt(1, 0), attempt(2, 0)]) == []
    assert slots.logical_slot(subtask(1, 0)) is None
    assert slots.logical_slot(subtask(1, 1)) is not None


def test_logical_slot_whose_slot_was_lost_accepts_no_attempt_and_is_not_returned() -> None:
    """SP-19, SP-20"""
    slots = deployed()
    lost, kept = slots.logical_slot(subtask(1, 0)), slots.logical_slot(subtask(1, 1))
    assert lost is not None
    assert kept is not None
    slots.slot_events([SlotsLost((allocation(1),), "its node died")])
    assert lost.is_released
    assert lost.release_slot("again") == []
    lost.payload_ended()
    assert not lost.wants_to_return
    assert not lost.try_assign_payload(attempt(1, 0, number=1))
    assert not kept.is_released


def test_slot_returns_to_the_pool_with_the_last_subtask() -> None:
    """SP-02, SP-20."""
    slots = deployed()
    assert slots.payload_ended([attempt(1, 0)]) == []
    assert slots.payload_ended([attempt(2, 0)]) == [
        ReturnSlots((allocation(1),), "its task has ended")
    ]


def test_loss_of_a_slot_that_was_returned_does_not_affect_its_replacement() -> None:
    """SP-02, SP-20."""
    slots = deployed()
    slots.payload_ended([attempt(1, 0), attempt(2, 0)])
    (later,) = answer(slots, one(slots.allocate([subtask(1, 0)]), SlotRequests), 3)
    assert isinstance(later, LogicalSlotAllocated)
    assert slots.slot_events([SlotsLost((allocation(1),), "its node died")]) == []
    assert slots.logical_slot(subtask(1, 0)) is later.slot
    (shares,) = slots.allocate([subtask(2, 0)])
    assert isinstance(shares, LogicalSlotAllocated)
    assert shares.slot.slot.allocation_id == allocation(3)


def test_released_logical_slots_are_returned_once_their_attempts_have_ended() -> None:
    """SP-19."""
    slots = deployed()
    both = [subtask(1, 0), subtask(2, 0)]
    assert slots.release(both, "cancelled") == [
        FailPayload(attempt(1, 0), "cancelled"),
        FailPayload(attempt(2, 0), "cancelled"),
    ]
    assert slots.release(both, "again") == []
    ended = slots.payload_ended([attempt(1, 0), attempt(2, 0)], "cancelled")
    assert ended == [ReturnSlots((allocation(1),), "cancelled")]


def test_end_of_an_earlier_attempt_does_not_free_the_slot_of_the_current_attempt() -> None:
    slots = deployed()
    slots.payload_ended([attempt(1, 0)])
    (again,) = slots.allocate([subtask(1, 0)])
    assert isinstance(again, LogicalSlotAllocated)
    assert again.slot.try_assign_payload(attempt(1, 0, number=1))
    slots.payload_ended([attempt(1, 0, number=0)])
    assert slots.logical_slot(subtask(1, 0)) is again.slot


def test_slot_request_after_a_failure_prefers_the_previous_slot_of_the_group() -> None:
    """The state is on the node of the previous slot."""
    slots = deployed()
    slots.payload_ended([ExecutionAttemptID(GRAPH, v, 0) for v in ALL])
    requests = one(slots.allocate(ALL), SlotRequests)
    assert [r.preferred_allocations for r in requests.requests] == [
        (allocation(1),),
        (allocation(2),),
    ]


def test_slot_request_prefers_input_locations_of_all_its_subtasks() -> None:
    here, there = ResourceID("here"), ResourceID("there")
    near = {subtask(1, 0): (here,), subtask(2, 0): (there, here)}
    requests = one(allocator().allocate(ALL, near=near), SlotRequests)
    assert requests.requests[0].preferred_task_executors == (here, there)
    assert requests.requests[1].preferred_task_executors == ()


def test_slot_request_is_cancelled_once_no_subtask_waits_for_the_slot_any_more() -> None:
    slots = allocator()
    requests = one(slots.allocate(ALL), SlotRequests)
    assert slots.cancel([subtask(1, 0)], "not needed") == []
    first = requests.requests[0].request_id
    assert slots.cancel([subtask(2, 0)], "not needed") == [
        CancelSlotRequests((first,), "not needed")
    ]
    assert slots.cancel([subtask(2, 0)], "again") == []


def test_slot_that_arrives_after_its_request_was_cancelled_is_returned() -> None:
    slots = allocator()
    requests = one(slots.allocate(ALL), SlotRequests)
    slots.cancel(ALL, "not needed")
    returned = only(answer(slots, requests, 1, 2), ReturnSlots)
    assert [r.allocations for r in returned] == [(allocation(1),), (allocation(2),)]
    assert all(slots.logical_slot(v) is None for v in ALL)
