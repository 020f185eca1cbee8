"""LogicalSlot: one payload, given back once."""

from __future__ import annotations

from flinkray.core.ids import ExecutionAttemptID, ExecutionVertexID
from flinkray.scheduler.slots.logical_slots import FailPayload, LogicalSlot
from tests.scheduler.builders import GRAPH, VERTEX, allocated_slot

SUBTASK = ExecutionVertexID(VERTEX, 0)
FIRST = ExecutionAttemptID(GRAPH, SUBTASK, 0)
SECOND = ExecutionAttemptID(GRAPH, SUBTASK, 1)


def slot_with_payload() -> LogicalSlot:
    slot = LogicalSlot(SUBTASK, allocated_slot(1))
    assert slot.try_assign_payload(FIRST)
    return slot


def test_second_payload_of_a_logical_slot_is_refused() -> None:
    """SP-19."""
    slot = slot_with_payload()
    assert not slot.try_assign_payload(SECOND)
    assert slot.payload == FIRST


def test_released_logical_slot_refuses_a_payload() -> None:
    """SP-19."""
    slot = LogicalSlot(SUBTASK, allocated_slot(1))
    slot.release("taken away")
    assert not slot.try_assign_payload(FIRST)


def test_logical_slot_whose_slot_died_fails_its_payload_and_is_not_returned() -> None:
    """SP-19."""
    slot = slot_with_payload()
    assert slot.release("its TaskExecutor died") == [FailPayload(FIRST, "its TaskExecutor died")]
    slot.payload_ended()
    assert not slot.wants_to_return


def test_logical_slot_is_released_once_its_payload_has_ended_and_it_was_returned() -> None:
    """SP-19."""
    slot = slot_with_payload()
    assert slot.release_slot("cancelled") == [FailPayload(FIRST, "cancelled")]
    assert not slot.wants_to_return
    assert not slot.is_released
    slot.payload_ended()
    assert slot.wants_to_return
    assert not slot.is_released
    slot.taken_back()
    assert slot.is_released
    assert not slot.wants_to_return


def test_released_logical_slot_whose_payload_has_ended_is_returned_at_once() -> None:
    """SP-19."""
    slot = slot_with_payload()
    slot.payload_ended()
    assert slot.release_slot("finished") == []
    assert slot.wants_to_return


def test_payload_of_a_logical_slot_can_be_replaced_only_by_its_own_next_attempt() -> None:
    slot = slot_with_payload()
    assert not slot.replace_payload(SECOND, FIRST)
    assert slot.replace_payload(FIRST, SECOND)
    assert slot.payload == SECOND
    assert slot.release("its TaskExecutor died") == [FailPayload(SECOND, "its TaskExecutor died")]


def test_payload_of_a_released_logical_slot_cannot_be_replaced_by_the_next_attempt() -> None:
    slot = slot_with_payload()
    slot.release("taken away")
    assert not slot.replace_payload(FIRST, SECOND)
    assert slot.payload == FIRST
