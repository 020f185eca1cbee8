"""Telling of many things when they do not fit into one message."""

from __future__ import annotations

import asyncio

from flinkray.actors.gateways.task_reports import MOST_REPORTS
from flinkray.actors.shared.notifications import BatchedSender
from flinkray.core.error_text import MOST_BYTES
from flinkray.core.errors import FrameTooLargeError
from flinkray.core.ids import (
    ExecutionAttemptID,
    ExecutionGraphID,
    ExecutionVertexID,
    JobID,
    JobVertexID,
)
from flinkray.rpc import LocalRpcService, RpcEndpoint
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import MAX_FRAME_SIZE
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.scheduler.shared.tasks import TaskExecutionState
from flinkray.testing.virtual_time import on_virtual_time

ATTEMPT = ExecutionAttemptID(
    ExecutionGraphID(bytes(16)), ExecutionVertexID(JobVertexID(bytes(16)), 0), 0
)


class Receiver:
    """Takes messages of so many letters."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.attempts = 0
        self.told: list[tuple[str, ...]] = []

    async def send(self, things: tuple[str, ...]) -> None:
        self.attempts += 1
        if sum(map(len, things)) > self.limit:
            raise FrameTooLargeError("too large")
        self.told.append(things)


def batches_to(receiver: Receiver) -> BatchedSender[str]:
    endpoint = RpcEndpoint(LocalRpcService(), "teller")
    endpoint.start()
    return BatchedSender(endpoint, receiver.send, 100, lambda text: text[:3])


@on_virtual_time
async def test_batch_too_large_for_one_message_is_split_in_order() -> None:
    receiver = Receiver(limit=10)
    batches = batches_to(receiver)
    sent = asyncio.Event()
    batches.add([f"thing {number}" for number in range(8)])
    batches.when_sent(sent.set)
    await sent.wait()
    assert receiver.told == [(f"thing {number}",) for number in range(8)]
    assert receiver.attempts == 15


@on_virtual_time
async def test_item_too_large_for_a_message_is_sent_without_details() -> None:
    receiver = Receiver(limit=5)
    batches = batches_to(receiver)
    sent = asyncio.Event()
    batches.add(["one", "a long story", "two"])
    batches.when_sent(sent.set)
    await sent.wait()
    assert [thing for message in receiver.told for thing in message] == ["one", "a l", "two"]


@on_virtual_time
async def test_unsendable_item_does_not_block_other_items() -> None:
    receiver = Receiver(limit=2)
    batches = batches_to(receiver)
    sent = asyncio.Event()
    batches.add(["one", "no"])
    batches.when_sent(sent.set)
    await sent.wait()
    assert receiver.told == [("no",)]
    assert receiver.attempts <= 5, "one that cannot be told is not tried for ever"


def test_a_full_batch_of_failures_with_the_longest_texts_fits_into_a_message() -> None:
    text = "x" * MOST_BYTES
    failed = TaskExecutionState(JobID(bytes(16)), ATTEMPT, ExecutionState.FAILED, text, text)
    assert len(codec.encode((failed,) * MOST_REPORTS)) < MAX_FRAME_SIZE


def test_shortened_task_state_fits_into_the_smallest_frame() -> None:
    text = "\U0001f600" * MOST_BYTES
    failed = TaskExecutionState(JobID(bytes(16)), ATTEMPT, ExecutionState.FAILED, text, text)
    assert len(codec.encode(failed.shortened())) < 4096
    assert failed.shortened().failure is not None
