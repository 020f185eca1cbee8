"""State that expires."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.core.durations import Time
from flinkray.state import (
    AggregatingStateDescriptor,
    HeapKeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)


class Setup:
    """A backend at a moment that the test chooses."""

    def __init__(self) -> None:
        self.now = 0
        self.backend = HeapKeyedStateBackend(now=lambda: self.now)
        self.backend.context.key = "k"

    def state(self, descriptor: Any, config: StateTtlConfig) -> Any:
        descriptor.enable_time_to_live(config)
        return self.backend.state(descriptor)


@pytest.fixture
def at() -> Setup:
    return Setup()


def ttl(milliseconds: int = 100) -> Any:
    return StateTtlConfig.new_builder(Time.milliseconds(milliseconds))


def test_value_expires_after_its_last_write_and_is_removed_on_access(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl().build())
    at.now = 50
    state.update("x")
    at.now = 120
    assert state.value() == "x"
    at.now = 170
    state.update("y")
    at.now = 220
    assert state.value() == "y"
    at.now = 300
    assert at.backend.number_of_entries("v") == 1
    assert state.value() is None
    assert at.backend.number_of_entries("v") == 0


def test_whoever_reads_the_default_value_may_change_it(at: Setup) -> None:
    state = at.state(ValueStateDescriptor("v", default_value=[]), ttl().build())
    state.value().append(1)
    assert state.value() == []


def test_expired_value_is_returned_once_where_that_is_allowed(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl().return_expired_if_not_cleaned_up().build())
    state.update("x")
    at.now = 120
    assert state.value() == "x"
    assert state.value() is None
    assert at.backend.number_of_entries("v") == 0


def test_reading_renews_where_that_is_configured(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl().update_ttl_on_read_and_write().build())
    state.update("x")
    at.now = 50
    assert state.value() == "x"
    at.now = 120
    assert state.value() == "x"
    at.now = 250
    assert state.value() is None


def test_greatest_time_to_live_does_not_overflow(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl((1 << 63) - 1).build())
    at.now = 1
    state.update("x")
    at.now = 1 << 62
    assert state.value() == "x"


def test_elements_of_a_list_expire_one_by_one(at: Setup) -> None:
    """KS-07"""
    state = at.state(ListStateDescriptor("l"), ttl().build())
    state.add(1)
    at.now = 60
    state.add_all([2, 3])
    at.now = 100
    assert list(state.get()) == [2, 3]
    at.now = 160
    assert list(state.get()) == []
    assert at.backend.number_of_entries("l") == 0


def test_entries_of_a_map_expire_one_by_one(at: Setup) -> None:
    """KS-07"""
    state = at.state(MapStateDescriptor("m"), ttl().build())
    state.put("a", 1)
    at.now = 60
    state.put("b", 2)
    at.now = 110
    assert "a" not in state
    assert dict(state.items()) == {"b": 2}
    at.now = 200
    assert state.is_empty()
    assert at.backend.number_of_entries("m") == 0


class Sum:
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return value + accumulator

    def get_result(self, accumulator: int) -> int:
        return accumulator


@pytest.mark.parametrize(
    "descriptor",
    [ReducingStateDescriptor("s", lambda a, b: a + b), AggregatingStateDescriptor("s", Sum())],
    ids=["reducing", "aggregating"],
)
def test_expired_sum_begins_anew(at: Setup, descriptor: Any) -> None:
    """KS-07"""
    state = at.state(descriptor, ttl().build())
    state.add(1)
    at.now = 50
    state.add(2)
    assert state.get() == 3
    at.now = 150
    state.add(10)
    assert state.get() == 10
    at.now = 250
    assert state.get() is None


def test_disabled_time_to_live_is_none() -> None:
    descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("v")
    descriptor.enable_time_to_live(
        ttl().set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    )
    assert descriptor.ttl_config is None
