"""Timers, and the times that programs give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state import HeapKeyedStateBackend
from flinkray.state.errors import StateError
from flinkray.state.table import NO_KEY
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import MAX_TIMESTAMP
from flinkray.streaming.time.given_times import first_wrong, timer_time
from flinkray.streaming.time.time_service import MOST_AT_ONCE, ProcessingTimeService
from flinkray.streaming.time.timers import InternalTimerService
from flinkray.testing.manual_clock import ManualClock


class Timers:
    """A timer service that takes down what fires."""

    def __init__(self, key_groups: KeyGroupRange | None = None) -> None:
        self.clock = ManualClock()
        self.time_service = ProcessingTimeService(self.clock)
        self.state = HeapKeyedStateBackend(128, key_groups)
        self.context = self.state.context
        self.fired: list[tuple[Any, ...]] = []
        self.on_fire: Callable[[int], None] = lambda _: None
        self.service = InternalTimerService(
            self.time_service, self.state, self._event, self._processing
        )

    def _event(self, timestamp: int, key: Any, namespace: Any) -> None:
        self.fired.append(("event", timestamp, self.context.key, namespace))
        assert key == self.context.key
        self.on_fire(timestamp)

    def _processing(self, timestamp: int, key: Any, namespace: Any) -> None:
        self.fired.append(("processing", timestamp, self.context.key, namespace))
        self.on_fire(timestamp)

    def event(self, key: Any, timestamp: int, namespace: Any = None) -> None:
        self.context.key = key
        self.service.register_event_time_timer(namespace, timestamp)

    def processing(self, key: Any, timestamp: int, namespace: Any = None) -> None:
        self.context.key = key
        self.service.register_processing_time_timer(namespace, timestamp)

    def at(self, milliseconds: int) -> None:
        self.clock.set_milliseconds(milliseconds)
        self.time_service.fire_due()


@pytest.fixture
def timers() -> Timers:
    return Timers()


def test_timer_registered_several_times_fires_once(timers: Timers) -> None:
    """ST-19"""
    for _ in range(3):
        timers.event("a", 10, "w1")
        timers.event("a", 10, "w2")
        timers.event("b", 10, "w1")
        timers.processing("a", 10, "w1")
    assert timers.service.number_of_event_time_timers() == 3
    assert timers.service.number_of_event_time_timers("w1") == 2
    assert timers.service.number_of_event_time_timers("w2") == 1
    assert timers.service.number_of_processing_time_timers() == 1


def test_timer_service_knows_the_firing_timer_only_while_it_fires(timers: Timers) -> None:
    told: list[Any] = []
    timers.on_fire = lambda _: told.append(timers.service.firing)
    timers.event("a", 5)
    timers.service.advance_watermark(5)
    assert (told, timers.service.firing) == ([(5, "a", None)], None)


def test_deleted_timers_do_not_fire(timers: Timers) -> None:
    """ST-19"""
    timers.event("a", 10)
    timers.event("b", 10)
    timers.context.key = "a"
    timers.service.delete_event_time_timer(None, 10)
    timers.service.delete_event_time_timer(None, 99)
    timers.service.advance_watermark(20)
    assert timers.fired == [("event", 10, "b", None)]


def test_due_timers_fire_in_order_of_time_with_their_key(timers: Timers) -> None:
    """ST-19"""
    for key, timestamp in (("c", 30), ("a", 10), ("b", 20), ("d", 40)):
        timers.event(key, timestamp)
    timers.service.advance_watermark(30)
    assert [fired[1:3] for fired in timers.fired] == [(10, "a"), (20, "b"), (30, "c")]
    assert timers.context.key is NO_KEY
    assert timers.service.number_of_event_time_timers() == 1


def test_timer_in_the_past_that_a_timer_registers_fires_in_the_same_advance(
    timers: Timers,
) -> None:
    """ST-19"""
    timers.event("a", 10)

    def register_the_next(timestamp: int) -> None:
        if timestamp < 15:
            timers.event("a", timestamp + 5)

    timers.on_fire = register_the_next
    timers.service.advance_watermark(100)
    assert [fired[1] for fired in timers.fired] == [10, 15]


def test_firing_timer_may_delete_another_timer_of_the_same_time(timers: Timers) -> None:
    """ST-19"""
    timers.event("a", 10)
    timers.event("b", 10)

    def delete_b(_: int) -> None:
        timers.context.key = "b"
        timers.service.delete_event_time_timer(None, 10)

    timers.on_fire = delete_b
    timers.service.advance_watermark(10)
    assert [fired[2] for fired in timers.fired] == ["a"]


def test_only_the_earliest_processing_timer_is_scheduled(timers: Timers) -> None:
    """ST-20"""
    for timestamp in (20, 10, 30):
        timers.processing("a", timestamp)
    assert timers.time_service.number_of_timers() == 1
    for due, following in ((10, 20), (20, 30)):
        assert timers.time_service.next_deadline() == due
        timers.at(due)
        assert timers.time_service.number_of_timers() == 1
        assert timers.time_service.next_deadline() == following
    timers.at(30)
    assert timers.time_service.number_of_timers() == 0
    assert [fired[1] for fired in timers.fired] == [10, 20, 30]


def test_timer_registered_while_another_fires_leaves_one_timer_scheduled(timers: Timers) -> None:
    """ST-20"""
    timers.processing("a", 10)
    timers.processing("a", 50)

    def register_another(timestamp: int) -> None:
        if timestamp == 10:
            timers.processing("a", 20)

    timers.on_fire = register_another
    timers.at(10)
    assert timers.time_service.next_deadline() == 20
    assert timers.time_service.number_of_timers() == 1


def test_no_timer_fires_after_the_task_has_ended(timers: Timers) -> None:
    timers.processing("a", 10)
    timers.time_service.quiesce()
    timers.processing("a", 20)
    timers.at(100)
    assert timers.fired == []


def test_restored_timers_fire_in_the_subtask_that_owns_their_key(timers: Timers) -> None:
    """ST-19"""
    for key in range(20):
        timers.event(key, 10 + key)
        timers.processing(key, 5)
    snapshot = timers.state.snapshot()
    halves = [Timers(KeyGroupRange(0, 63)), Timers(KeyGroupRange(64, 127))]
    for half in halves:
        half.state.restore([snapshot])
        half.service.resume()
    for half in halves:
        half.service.advance_watermark(1000)
        half.at(5)
        assert 0 < len(half.fired) < 40
    fired = [fired for half in halves for fired in half.fired]
    assert sorted(f[2] for f in fired if f[0] == "event") == list(range(20))
    assert sorted(f[2] for f in fired if f[0] == "processing") == list(range(20))


def test_all_past_processing_time_timers_fire_in_one_turn_of_the_task(timers: Timers) -> None:
    """A busy task has one turn in ten milliseconds: with timers of one time per turn, it never
    caught up."""
    for timestamp in range(1, 101):
        timers.processing("a", timestamp)
    timers.at(100)
    assert [entry[1] for entry in timers.fired] == list(range(1, 101))


def test_timer_callback_that_always_reschedules_itself_does_not_starve_other_work() -> None:
    service = ProcessingTimeService(ManualClock())
    called: list[int] = []

    def again(timestamp: int) -> None:
        called.append(timestamp)
        service.schedule(timestamp, again)

    service.schedule(0, again)
    assert service.fire_due()
    assert len(called) == MOST_AT_ONCE


def test_slow_timer_callbacks_do_not_starve_other_work() -> None:
    clock = ManualClock()
    service = ProcessingTimeService(clock)
    called: list[int] = []

    def slow(timestamp: int) -> None:
        clock.advance(0.006)
        called.append(timestamp)

    for timestamp in range(4):
        service.schedule(timestamp, slow)
    clock.set_milliseconds(10)
    assert service.fire_due()
    assert called == [0, 1]
    assert service.fire_due()
    assert called == [0, 1, 2, 3]
    assert not service.fire_due()


def test_earlier_timer_registered_while_timers_fire_fires_before_later_timers(
    timers: Timers,
) -> None:
    def register_earlier(timestamp: int) -> None:
        if len(timers.fired) == 1:
            timers.event("c", 5)

    timers.on_fire = register_earlier
    for key in "ab":
        timers.event(key, 10)
    timers.service.advance_watermark(10)
    assert [fired[1:3] for fired in timers.fired] == [(10, "a"), (5, "c"), (10, "b")]


class _Changing:
    """A key whose hash changes, as one that was shared with a function would."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Changing) and other.number == self.number

    def __hash__(self) -> int:
        return self.number

    def __repr__(self) -> str:
        return f"_Changing({self.number})"


def test_timer_whose_key_object_was_changed_raises_an_error(timers: Timers) -> None:
    key = _Changing(1)
    timers.event(key, 10, 7)
    timers.processing(key, 10, 7)
    key.number = 2
    told = r"the timer for 10 of key _Changing\(2\) and 7 .* key has changed since"
    with pytest.raises(StateError, match=told):
        timers.service.advance_watermark(10)
    with pytest.raises(StateError, match=told):
        timers.at(10)


def test_timers_of_other_keys_fire_before_the_error_about_a_key_that_changed(
    timers: Timers,
) -> None:
    key = _Changing(1)
    for one in (10, key, 11):
        timers.event(one, 10, 7)
    key.number = 2
    with pytest.raises(StateError, match="has changed since"):
        timers.service.advance_watermark(10)
    assert [fired[2] for fired in timers.fired] == [10, 11]


def test_timer_later_than_all_timestamps_is_not_stored_and_never_fires(timers: Timers) -> None:
    later = MAX_TIMESTAMP + 1
    for register in (timers.event, timers.processing):
        register("a", later)
        register("a", MAX_TIMESTAMP)
    assert timers.service.number_of_event_time_timers() == 1
    assert timers.service.number_of_processing_time_timers() == 1
    timers.service.delete_event_time_timer(None, later)
    timers.service.delete_processing_time_timer(None, later)
    timers.service.advance_watermark(MAX_TIMESTAMP)
    assert timers.service.fire_all_processing_time_timers()
    assert not timers.service.fire_all_processing_time_timers()
    assert [fired[:2] for fired in timers.fired] == [
        ("event", MAX_TIMESTAMP), ("processing", MAX_TIMESTAMP),
    ]  # fmt: skip


@pytest.mark.parametrize("given", [7, np.int64(7), np.uint8(7)])
def test_timer_time_is_converted_to_a_python_int(given: Any) -> None:
    time = timer_time(given)
    assert (type(time), time) == (int, 7)


def test_timer_time_may_be_later_than_all_timestamps() -> None:
    assert timer_time(1 << 64) == 1 << 64


@pytest.mark.parametrize("given", [7.0, "7", None, np.float64(7)])
def test_timer_time_must_be_an_integer(given: Any) -> None:
    with pytest.raises(StreamError, match=r"a timer was set to .*: a time is a whole number"):
        timer_time(given)


@pytest.mark.parametrize(
    ("timestamps", "place"),
    [
        ([], None),
        ([1, np.int64(2), -(1 << 63), (1 << 63) - 1], None),
        ([1.0], 0),
        ([1, None, "x"], 1),
        ([1, 2, 1 << 63], 2),
        ([-(1 << 63) - 1, 2], 0),
    ],
)
def test_index_of_the_first_timestamp_that_is_no_64_bit_integer_is_found(
    timestamps: list[Any], place: int | None
) -> None:
    assert first_wrong(timestamps) == place
