"""A thread that restores state goes before the tasks of its process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from flinkray.state import HeapKeyedStateBackend, ValueStateDescriptor, thread_turns
from flinkray.state.key_group_assignment import stable_hash
from flinkray.state.operator_state import OperatorStateBackend
from flinkray.state.thread_turns import SHORT_TURN, first_turn, give_way
from flinkray.streaming.operators.basic import MapOperator
from flinkray.streaming.operators.operator import OperatorState
from flinkray.testing import wait_until


class NotingEvent(threading.Event):
    """Notes each wait. A wait ends only when the event is set."""

    def __init__(self, note: Callable[[], object]) -> None:
        super().__init__()
        self._note = note

    def wait(self, timeout: float | None = None) -> bool:
        self._note()
        return super().wait()


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What happened, in order. A thread that gives way has no limit of time."""
    happened: list[str] = []
    event = NotingEvent(lambda: happened.append("gives way"))
    monkeypatch.setattr(thread_turns, "_none_is_first", event)
    yield happened
    give_way()  # nobody is first any more: returns at once


def test_task_goes_on_when_all_threads_that_restore_state_are_done(story: list[str]) -> None:
    def step() -> None:
        give_way()
        story.append("step")

    task = threading.Thread(target=step)
    with first_turn():
        with first_turn():
            task.start()
            wait_until(lambda: story == ["gives way"], 30, "the task to give way")
        story.append("one is restored")
    task.join()
    assert story == ["gives way", "one is restored", "step"]


def test_task_gives_way_to_nobody_while_no_state_is_restored(story: list[str]) -> None:
    with pytest.raises(ValueError, match="not restored"), first_turn():
        raise ValueError("not restored")
    give_way()
    assert story == []


def test_task_gives_way_no_more_to_a_restore_that_takes_too_long(
    story: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_turns, "LONGEST_FIRST", 0.0)
    with first_turn():
        give_way()
    assert story == []


def test_state_and_timers_are_restored_with_short_turns_of_threads() -> None:
    before = HeapKeyedStateBackend()
    before.context.key = "key"
    before.state(ValueStateDescriptor("state")).update(1)
    before.timer_queue("timers").add(5, "key", None)
    turns: list[float] = []

    def noting(key: object) -> int:
        turns.append(sys.getswitchinterval())
        return stable_hash(key)

    operator = MapOperator(str)
    operator.operator_state = OperatorStateBackend()
    operator.keyed_state = backend = HeapKeyedStateBackend(hash_of=noting)
    operator.restore([OperatorState(before.capture().write())])
    assert turns == pytest.approx([SHORT_TURN])
    backend.state(ValueStateDescriptor("state"))
    assert turns == pytest.approx([SHORT_TURN, SHORT_TURN])
