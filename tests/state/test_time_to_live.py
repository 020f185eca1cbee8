"""State that expires."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.core.durations import Time
from flinkray.state import (
    AggregatingStateDescriptor,
    KeyContext,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.state.every_backend import make_backend, on_every_backend

pytestmark = on_every_backend


class Setup:
    """A backend at a moment that the test chooses."""

    def __init__(self) -> None:
        self.now = 0
        self.backend = make_backend(now=lambda: self.now)
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


def test_expired_value_is_returned_once_if_configured(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl().return_expired_if_not_cleaned_up().build())
    state.update("x")
    at.now = 120
    assert state.value() == "x"
    assert state.value() is None
    assert at.backend.number_of_entries("v") == 0


def test_reading_a_value_renews_its_time_to_live_if_configured(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl().update_ttl_on_read_and_write().build())
    state.update("x")
    at.now = 50
    assert state.value() == "x"
    at.now = 120
    assert state.value() == "x"
    at.now = 250
    assert state.value() is None


def test_reading_renews_only_elements_and_entries_that_have_not_expired(at: Setup) -> None:
    """KS-07"""
    config = ttl().update_ttl_on_read_and_write().build()
    elements = at.state(ListStateDescriptor("l"), config)
    entries = at.state(MapStateDescriptor("m"), config)
    for moment in (0, 60):
        at.now = moment
        elements.add(moment)
        entries.put(moment, "x")
    at.now = 110
    assert (list(elements.get()), entries.get(0), entries.get(60)) == ([60], None, "x")
    at.now = 209
    assert (list(elements.get()), entries.get(60)) == ([60], "x")
    at.now = 309
    assert (list(elements.get()), entries.get(60)) == ([], None)


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
def test_value_added_after_the_sum_has_expired_starts_a_new_sum(at: Setup, descriptor: Any) -> None:
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


def test_disabled_time_to_live_removes_the_ttl_config() -> None:
    descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("v")
    descriptor.enable_time_to_live(
        ttl().set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    )
    assert descriptor.ttl_config is None


class Background(Setup):
    """A backend whose time to live is looked after as time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[tuple[int, Any]] = []
        self.backend = make_backend(
            now=lambda: self.now,
            schedule=lambda at, callback: self.due.append((at, callback)),
        )

    def pass_time(self, until: int) -> int:
        """Call what is due up to then; the most values that one call removed."""
        most = 0
        while self.due and self.due[0][0] <= until:
            at, callback = self.due.pop(0)
            self.now = max(self.now, at)
            before = self.backend.number_of_entries("v")
            callback(at)
            most = max(most, before - self.backend.number_of_entries("v"))
        self.now = until
        return most


def fill(backend: KeyedStateBackend, state: Any, keys: range) -> None:
    for key in keys:
        backend.context.key = key
        state.update(key)


@pytest.mark.parametrize("backend_kind", ["heap"], indirect=True)
def test_expired_state_that_is_never_read_is_removed_in_portions() -> None:
    """KS-07"""
    at = Background()
    state = at.state(ValueStateDescriptor("v"), ttl(10_000).build())
    fill(at.backend, state, range(100_000))
    at.pass_time(9_000)
    assert at.backend.number_of_entries("v") == 100_000
    fill(at.backend, state, range(0, 100_000, 100))
    most = at.pass_time(18_999)
    assert 0 < most <= 1_000
    young = [key for key in at.backend.keys("v") if key % 100 == 0]
    assert len(young) == 1_000
    at.pass_time(20_500)
    assert at.backend.number_of_entries("v") <= 1_000
    at.pass_time(40_000)
    assert at.backend.number_of_entries("v") == 0


@pytest.mark.parametrize("backend_kind", ["heap"], indirect=True)
def test_cleanup_keeps_unexpired_state_while_the_table_changes() -> None:
    """KS-07"""
    at = Background()
    state = at.state(ValueStateDescriptor("v"), ttl(1_000).build())
    fill(at.backend, state, range(10_000))
    at.now = 900
    fill(at.backend, state, range(0, 10_000, 2))
    at.now = 1_500
    for _ in range(20):  # while the table changes
        at.backend.clean(1_000)
        at.backend.context.key = at.backend.number_of_entries("v")
        state.clear()
        fill(at.backend, state, range(20_000, 20_100))
    for key in (*range(0, 4_000, 2), *range(20_000, 20_100)):
        at.backend.context.key = key
        assert state.value() in (key, None if key < 10_000 else key)
    assert set(at.backend.keys("v")) >= set(range(20_000, 20_100))
    odd = [key for key in at.backend.keys("v") if key < 10_000 and key % 2]
    assert odd == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (ttl().build(), 0),
        (ttl().disable_cleanup_in_background().build(), 1_000),
        (ttl().cleanup_incrementally(0, False).build(), 1_000),
        (ttl().cleanup_incrementally(10, False).build(), 0),
    ],
    ids=["default", "disabled", "none per access", "ten per access"],
)
def test_access_to_one_key_of_a_state_removes_expired_entries_of_other_keys(
    at: Setup, config: StateTtlConfig, expected: int
) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), config)
    fill(at.backend, state, range(1_000))
    at.now = 200
    at.backend.context.key = "other"
    for _ in range(1_000):
        state.value()
    assert at.backend.number_of_entries("v") == expected


@pytest.mark.parametrize(
    "descriptor",
    [ReducingStateDescriptor("s", lambda a, b: a + b), AggregatingStateDescriptor("s", Sum())],
    ids=["reducing", "aggregating"],
)
def test_expired_sum_removed_by_the_cleanup_of_its_own_access_is_not_returned(
    at: Setup, descriptor: Any
) -> None:
    """KS-07"""
    config = ttl().return_expired_if_not_cleaned_up().cleanup_incrementally(500, False).build()
    state = at.state(descriptor, config)
    state.add(1)
    at.now = 200
    assert state.get() is None
    state.add(2)
    assert state.get() == 2


def test_each_record_removes_expired_entries_if_configured(at: Setup) -> None:
    """KS-07"""
    state = at.state(ValueStateDescriptor("v"), ttl().cleanup_incrementally(10, True).build())
    fill(at.backend, state, range(1_000))
    at.now = 200
    at.backend.count_records(99)
    assert at.backend.number_of_entries("v") == 1_000
    at.backend.count_records(1)
    assert at.backend.number_of_entries("v") == 0


def test_cleanup_removes_single_expired_elements_and_entries(at: Setup) -> None:
    """KS-07"""
    elements = at.state(ListStateDescriptor("l"), ttl().build())
    entries = at.state(MapStateDescriptor("m"), ttl().build())
    for moment in (0, 60):
        at.now = moment
        elements.add(moment)
        entries.put(moment, "x")
    at.now = 110
    assert at.backend.clean() == 4
    at.now = 60  # as if they were read before
    assert (list(elements.get()), dict(entries.items())) == ([60], {60: "x"})
    at.now = 200
    at.backend.clean()
    assert (at.backend.number_of_entries("l"), at.backend.number_of_entries("m")) == (0, 0)


def test_entry_renewed_during_a_cleanup_is_not_removed(at: Setup) -> None:
    """KS-07"""
    value = at.state(ValueStateDescriptor("v"), ttl().build())
    elements = at.state(ListStateDescriptor("l"), ttl().build())
    entries = at.state(MapStateDescriptor("m"), ttl().build())
    keys = range(6)

    def renew() -> None:
        for key in keys:
            at.backend.context.key = key
            value.update(key)
            elements.update([key])
            for name in keys:
                entries.put(name, key)

    for state in (value, elements, entries):
        renew()
        at.now += 110
        search = state._table._expiry.clean(lambda: at.now)
        next(search)
        renew()
        assert sum(1 for _ in search) > 0
        for key in keys:
            at.backend.context.key = key
            assert (value.value(), list(elements.get())) == (key, [key])
            assert dict(entries.items()) == dict.fromkeys(keys, key)


@pytest.mark.parametrize("left_out", [True, False])
def test_full_snapshot_leaves_out_expired_state_if_configured(at: Setup, left_out: bool) -> None:
    """KS-07"""
    config = ttl().cleanup_full_snapshot().build() if left_out else ttl().build()
    kinds: list[Any] = [ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor]
    states = [at.state(kind(kind.kind), config) for kind in kinds]
    for at.now in (0, 60):
        at.backend.context.key = at.now
        states[0].update("x")
        states[1].add("x")
        states[2].put("x", "x")
    at.now = 110
    snapshot = at.backend.snapshot()
    restored = Setup()
    restored.backend.restore([snapshot])
    for kind in kinds:
        restored.state(kind(kind.kind), config)
        keys = list(restored.backend.keys(kind.kind))
        assert keys == ([60] if left_out else [0, 60])


def test_merging_windows_combines_their_expiring_state(at: Setup) -> None:
    """KS-07"""
    descriptor: Any = ReducingStateDescriptor("s", lambda a, b: a + b)
    descriptor.enable_time_to_live(ttl().build())
    of_window = KeyContext()
    state = at.backend.state(descriptor, of_window)
    for moment, window in ((0, "w1"), (60, "w2")):
        at.now = moment
        of_window.key = ("k", window)
        state.add(moment + 1)
    at.backend.merge_namespaces(descriptor, "k", "w1", ["w2"])
    at.now = 110
    of_window.key = ("k", "w1")
    assert state.get() == 62


@pytest.mark.parametrize(
    "descriptor",
    [ReducingStateDescriptor("s", lambda a, b: a + b), AggregatingStateDescriptor("s", Sum())],
    ids=["reducing", "aggregating"],
)
def test_adding_none_empties_a_sum(at: Setup, descriptor: Any) -> None:
    state = at.state(descriptor, ttl().build())
    state.add(1)
    state.add(None)
    assert state.get() is None


class Gathering:
    """Its accumulator is its result."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator
