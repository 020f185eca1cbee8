"""in_messages: many requests in messages of bounded size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkray.core.ids import ExecutionVertexID, JobVertexID, ResourceID, SlotRequestId
from flinkray.rpc.wire.codec import encode
from flinkray.scheduler.slots.slot_requests import (
    IDS_PER_MESSAGE,
    SlotRequest,
    SlotRequests,
    in_messages,
)
from tests.scheduler.builders import SMALL, allocation, id_of

FRAME_SIZE = 10 * 2**20


@pytest.mark.parametrize(("requests", "sharing"), [(20_000, 1), (5_000, 8), (300, 1_000)])
def test_slot_requests_are_sent_once_in_order_in_messages_within_the_frame_size(
    requests: int, sharing: int
) -> None:
    vertices = tuple(ExecutionVertexID(id_of(JobVertexID, n), n) for n in range(sharing))
    made = tuple(
        SlotRequest(id_of(SlotRequestId, n), vertices, (allocation(n),)) for n in range(requests)
    )
    messages = list(in_messages(SlotRequests(SMALL, made, is_batch=True, timeout=5.0)))
    assert tuple(request for message in messages for request in message.requests) == made
    assert all((m.is_batch, m.timeout, m.profile) == (True, 5.0, SMALL) for m in messages)
    assert max(len(encode(message)) for message in messages) < FRAME_SIZE
    assert len(messages) < 10


def test_all_ids_of_a_request_count_for_its_message_size() -> None:
    allocations = tuple(allocation(number) for number in range(IDS_PER_MESSAGE // 4))
    vertices = tuple(ExecutionVertexID(id_of(JobVertexID, 1), n) for n in range(len(allocations)))
    names = tuple(ResourceID(f"te-{number}") for number in range(len(allocations)))
    requests = (
        SlotRequest(id_of(SlotRequestId, 1)),
        SlotRequest(id_of(SlotRequestId, 2), vertices, allocations, names),
    )
    assert len(list(in_messages(SlotRequests(SMALL, requests)))) == 2
    without = replace(requests[1], preferred_allocations=(), preferred_task_executors=())
    assert len(list(in_messages(SlotRequests(SMALL, (requests[0], without))))) == 1


def test_empty_slot_requests_need_no_message() -> None:
    assert list(in_messages(SlotRequests(SMALL, ()))) == []
