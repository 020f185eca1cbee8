"""What a task is told of checkpoints: when it is not there yet, runs, and has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.actors.task_process.task_checkpoints import TaskCheckpointOrders, barrier_of
from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    TriggerCheckpoint,
)
from flinkray.scheduler.checkpoints.properties import CheckpointProperties, synchronous_savepoint
from flinkray.streaming.records.elements import Barrier
from flinkray.streaming.task.task_mailbox import TaskMailbox


def trigger(checkpoint_id: int) -> TriggerCheckpoint:
    properties = CheckpointProperties(SnapshotKind.CHECKPOINT)
    return TriggerCheckpoint(checkpoint_id, 5, properties, "/d/chk-1", 0, is_whole=False)


class Task:
    """Writes down what its thread does."""

    def __init__(self) -> None:
        self.mailbox = TaskMailbox()
        self.did: list[Any] = []

    def trigger_checkpoint(self, barrier: Barrier) -> None:
        self.did.append(("trigger", barrier.checkpoint_id))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.did.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int, latest_completed: int) -> None:
        self.did.append(("aborted", checkpoint_id, latest_completed))

    def run(self) -> list[Any]:
        self.mailbox.run_pending()
        return self.did


class Answers:
    def __init__(self) -> None:
        self.all: list[Any] = []

    def decline(self, checkpoint_id: int, reason: CheckpointFailureReason, text: str = "") -> None:
        self.all.append((checkpoint_id, reason))

    def aborted(self, checkpoint_id: int) -> None:
        self.all.append((checkpoint_id, "aborted"))


class Source:
    """Calls back when the test says so."""

    def __init__(self) -> None:
        self.waiting: dict[int, Callable[[], None]] = {}

    def trigger(self, checkpoint_id: int, then: Callable[[], None]) -> None:
        self.waiting[checkpoint_id] = then

    def checkpointed(self, checkpoint_id: int) -> None:
        raise AssertionError("the task says that")


class Ordered:
    """One task, its orders and its answers."""

    def __init__(self, source: Source | None = None) -> None:
        self.task: Any = Task()
        self.answers = Answers()
        self.orders = TaskCheckpointOrders(self.answers, lambda function: function(), source)


NOT_READY = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
CLOSING = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_CLOSING


def test_task_that_is_not_open_yet_declines_a_checkpoint_trigger() -> None:
    it = Ordered()
    it.orders.order(trigger(1))
    assert it.answers.all == [(1, NOT_READY)]
    it.orders.attach(it.task)
    assert it.task.run() == []
    it.orders.order(trigger(2))
    assert it.task.run() == [("trigger", 2)]


def test_checkpoint_outcomes_that_arrive_before_a_task_opens_are_delivered_in_order() -> None:
    it = Ordered()
    it.orders.order(CheckpointAborted(3, 2))
    it.orders.order(CheckpointCompleted(4))
    it.orders.attach(it.task)
    it.orders.order(CheckpointCompleted(5))
    assert it.task.run() == [("aborted", 3, 2), ("complete", 4), ("complete", 5)]
    assert it.answers.all == []


@pytest.mark.parametrize("how", ["its thread has ended", "its mailbox is closed", "never opened"])
def test_ended_task_declines_checkpoints_that_are_triggered_or_aborted(how: str) -> None:
    """Files of a checkpoint that was aborted before may still be written."""
    it = Ordered()
    if how != "never opened":
        it.orders.attach(it.task)
    if how == "its mailbox is closed":
        it.task.mailbox.quiesce()
    else:
        it.orders.ended()
    it.orders.order(trigger(1))
    it.orders.order(CheckpointCompleted(2))
    it.orders.order(CheckpointAborted(3, 0))
    assert it.answers.all == [(1, CLOSING), (3, "aborted")]
    assert it.task.run() == []


def test_task_that_opens_after_it_was_ended_declines_checkpoints() -> None:
    it = Ordered()
    it.orders.ended()
    it.orders.attach(it.task)
    it.orders.order(trigger(1))
    it.orders.order(CheckpointAborted(2, 0))
    assert it.answers.all == [(1, CLOSING), (2, "aborted")]


def test_source_is_triggered_once_it_has_all_splits_assigned_before_the_checkpoint() -> None:
    """CP-32."""
    source = Source()
    it = Ordered(source)
    it.orders.attach(it.task)
    it.orders.order(trigger(1))
    assert it.task.run() == []
    source.waiting.pop(1)()
    assert it.task.run() == [("trigger", 1)]


def test_source_that_ends_before_it_has_its_splits_declines_the_checkpoint() -> None:
    source = Source()
    it = Ordered(source)
    it.orders.attach(it.task)
    it.orders.order(trigger(1))
    it.orders.ended()
    source.waiting.pop(1)()
    assert it.answers.all == [(1, CLOSING)]


def test_barrier_has_all_fields_of_the_checkpoint_trigger() -> None:
    order = TriggerCheckpoint(
        7,
        5,
        synchronous_savepoint(is_drain=True),
        "/d/savepoint-1",
        6,
        is_whole=True,
        is_unaligned=True,
        alignment_timeout=0.25,
    )
    assert barrier_of(order) == Barrier(
        7,
        5,
        savepoint=True,
        stops=True,
        drains=True,
        unaligned=True,
        alignment_timeout=250,
        directory="/d/savepoint-1",
        latest_completed=6,
        is_whole=True,
    )
    plain = barrier_of(trigger(1))
    assert plain == Barrier(1, 5, directory="/d/chk-1")
