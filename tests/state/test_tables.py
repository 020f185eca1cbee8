"""What tables promise to whoever keeps state in them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flinkray.state import (
    KeyedSnapshot,
    KeyedStateBackend,
    ListStateDescriptor,
    StateError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.state.heap_tables import HeapValueTable
from flinkray.state.key_group_assignment import KEY_KINDS, key_group_of
from flinkray.state.state_serializer import StateSerializer
from tests.state.every_backend import make_backend, on_every_backend

pytestmark = on_every_backend

VALUES: Any = ValueStateDescriptor("values")
LISTS: Any = ListStateDescriptor("lists")


@pytest.fixture
def backend() -> KeyedStateBackend:
    return make_backend()


def contents(snapshot: KeyedSnapshot, name: str) -> tuple[dict[Any, Any], list[Any]]:
    """What a table holds, and what was removed."""
    kept: dict[Any, Any] = {}
    removed: list[Any] = []
    serializer = StateSerializer(ValueStateDescriptor(name))
    for payload in snapshot.tables[name].groups.values():
        for frame in serializer.read(payload):
            kept.update(zip(frame.keys, frame.contents, strict=True))
            removed += frame.removed_keys
    return kept, removed


def test_increment_has_every_value_changed_by_put_all(backend: KeyedStateBackend) -> None:
    values = backend.value_table(VALUES)
    values.put_all({"a": 1, "b": 2, "c": 3})
    captured = backend.capture(1)
    values.put_all({"a": 10, "d": 4})
    assert contents(captured.write(), "values")[0] == {"a": 1, "b": 2, "c": 3}
    assert contents(backend.capture(2, 1).write(), "values") == ({"a": 10, "d": 4}, [])


@pytest.mark.parametrize("backend_kind", ["heap"], indirect=True)
def test_table_with_more_tracked_changes_than_entries_is_written_whole(
    backend: KeyedStateBackend,
) -> None:
    """This happens if no checkpoint completes for a long time."""
    values = backend.value_table(VALUES)
    values.put_all(dict.fromkeys(range(2000), 0))
    backend.capture(1)
    for checkpoint_id in range(2, 6):
        values.put_all(dict.fromkeys(range(900), checkpoint_id))
        capture = backend.capture(checkpoint_id, since=1)
        assert capture.write().tables["values"].whole == (checkpoint_id == 5)
    values.put("new", 1)
    last = backend.capture(6, since=4).write()
    assert not last.tables["values"].whole
    assert len(contents(last, "values")[0]) == 901
    assert contents(backend.capture(7, since=6).write(), "values") == ({}, [])


def test_expired_value_in_an_increment_does_not_bring_back_the_older_value() -> None:
    """The increment leaves out the expired value; the value in its base was overwritten."""
    now = [0]

    def made() -> KeyedStateBackend:
        return make_backend(now=lambda: now[0])

    ttl = StateTtlConfig.new_builder(100)
    ttl.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
    ttl.cleanup_full_snapshot()
    expiring: Any = ValueStateDescriptor("expiring")
    expiring.enable_time_to_live(ttl.build())
    backend = made()
    state = backend.state(expiring)
    backend.context.key = "k"
    state.update("before")
    whole = backend.capture(1).write()
    state.update("after")
    now[0] = 200
    changes = backend.capture(2, since=1).write()
    restored = made()
    restored.restore([whole, changes])
    restored.context.key = "k"
    assert restored.state(expiring).value() is None


@pytest.mark.parametrize("backend_kind", ["heap"], indirect=True)
def test_lists_are_not_copied_at_changes_after_the_write_of_a_snapshot_has_failed(
    backend: KeyedStateBackend,
) -> None:
    lists = backend.list_table(LISTS)
    lists.append("k", threading.Lock())
    captured = backend.capture()
    with pytest.raises(StateError, match="lock cannot be stored"):
        captured.write()
    before = lists.get("k")
    lists.append("k", 2)
    assert lists.get("k") is before


def test_snapshot_has_the_key_groups_of_the_hash_of_the_declared_key_type() -> None:
    kind = KEY_KINDS["DOUBLE"]
    backend = make_backend(hash_of=kind.hash_of)
    assert key_group_of(2.0, 128, kind.hash_of) != key_group_of(2.0, 128)
    backend.value_table(VALUES).put(2.0, "x")
    backend.timer_queue("timers").add(7, 2.0, None)
    snapshot = backend.snapshot()
    group = key_group_of(2.0, 128, kind.hash_of)
    assert list(snapshot.tables["values"].groups) == [group]
    assert list(snapshot.timers["timers"]) == [group]


@pytest.mark.parametrize("backend_kind", ["heap"], indirect=True)
def test_table_stops_keeping_old_values_once_a_snapshot_has_written_the_table(
    backend: KeyedStateBackend,
) -> None:
    values = backend.value_table(VALUES)
    values.put("k", "text")
    capture = backend.capture()
    bodies = capture.stream().bodies()
    next(bodies)
    assert isinstance(values, HeapValueTable)
    assert not values._is_captured()
    backend.list_table(LISTS).append("k", 1)
    another = backend.capture().stream().bodies()
    next(another)
    assert backend.list_table(LISTS)._is_captured()  # type: ignore[attr-defined]
    del another
    assert not backend.list_table(LISTS)._is_captured()  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend_kind", ["heap"], indirect=True)
@pytest.mark.parametrize("namespaced", [False, True])
def test_large_table_written_in_portions_is_restored_completely(
    backend: KeyedStateBackend, monkeypatch: pytest.MonkeyPatch, namespaced: bool
) -> None:
    monkeypatch.setattr("flinkray.state.heap_tables._PORTION", 7)
    monkeypatch.setattr("flinkray.state.heap_tables._LOOKED_UP", 5)
    monkeypatch.setattr("flinkray.state.heap.MOST_IN_CHUNK", 20)
    backend = make_backend(4)
    wanted: dict[Any, Any] = {}
    for most_copied in (1 << 20, 0):
        monkeypatch.setattr("flinkray.state.heap_tables._MOST_COPIED", most_copied)
        table = backend.value_table(VALUES, namespaced)
        for number in range(300):
            key = number if 100 < number < 200 else f"k{number}"
            place = (key, number % 3) if namespaced else key
            value = "text" if number % 50 < 25 else (number, None)
            table.put(place, value)
            wanted[place] = value
        snapshot = backend.capture(1).write()
        copy = make_backend(4)
        copy.restore([snapshot])
        restored = copy.value_table(VALUES, namespaced)
        assert {place: restored.get(place) for place in restored.places()} == wanted
        for place in list(wanted)[::3]:
            table.remove(place)
        changes = backend.capture(2, since=1).write()
        after = make_backend(4)
        after.restore([snapshot, changes])
        restored = after.value_table(VALUES, namespaced)
        left = {place: value for place, value in wanted.items() if table.get(place) is not None}
        assert {place: restored.get(place) for place in restored.places()} == left


def test_every_update_of_a_value_state_is_in_the_next_increment(
    backend: KeyedStateBackend,
) -> None:
    """Also after the handle has found that values of this type can be stored without a copy."""
    state = backend.state(VALUES)

    def update(**values: int) -> None:
        for key, value in values.items():
            backend.context.key = key
            state.update(value)

    update(a=1, b=1)
    waiting = backend.capture(1)
    update(a=2, b=2, a_new=2)
    changes = backend.capture(2, since=1)
    update(a=3, another=3)
    later = backend.capture(3, since=2)
    update(a=4, b=4, another=4)
    assert contents(waiting.write(), "values") == ({"a": 1, "b": 1}, [])
    assert contents(changes.write(), "values") == ({"a": 2, "b": 2, "a_new": 2}, [])
    assert contents(later.write(), "values") == ({"a": 3, "another": 3}, [])
    last = backend.capture(4, since=3).write()
    assert contents(last, "values") == ({"a": 4, "b": 4, "another": 4}, [])
