"""What tables promise to whoever keeps state in them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from flinkray.state import (
    HeapKeyedStateBackend,
    KeyedSnapshot,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateError,
    ValueStateDescriptor,
)
from flinkray.state.keys import KEY_KINDS, key_group_of
from flinkray.state.serializers import StateSerializer

VALUES: Any = ValueStateDescriptor("values")
LISTS: Any = ListStateDescriptor("lists")
MAPS: Any = MapStateDescriptor("maps")


@pytest.fixture
def backend() -> HeapKeyedStateBackend:
    return HeapKeyedStateBackend()


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


def test_what_was_taken_may_be_changed_while_a_snapshot_waits(
    backend: HeapKeyedStateBackend,
) -> None:
    values, lists = backend.value_table(VALUES), backend.list_table(LISTS)
    values.put("k", [1])
    lists.append("k", [1])
    captured = backend.capture()
    values.take("k").append(2)
    lists.take("k")[0].append(2)
    snapshot = captured.write()
    assert contents(snapshot, "values")[0] == {"k": [1]}
    assert contents(snapshot, "lists")[0] == {"k": [[1]]}
    assert (len(values), len(lists)) == (0, 0)
    assert (values.take("k", "none"), list(lists.take("k"))) == ("none", [])


def test_value_that_was_got_to_change_may_be_changed_while_a_snapshot_waits(
    backend: HeapKeyedStateBackend,
) -> None:
    values, maps = backend.value_table(VALUES), backend.map_table(MAPS)
    values.put("k", [1])
    maps.put("k", "entry", [1])
    captured = backend.capture()
    for number in (2, 3):
        values.get_to_change("k").append(number)
        maps.get_to_change("k", "entry").append(number)
    snapshot = captured.write()
    assert contents(snapshot, "values")[0] == {"k": [1]}
    assert contents(snapshot, "maps")[0] == {"k": {"entry": [1]}}
    assert values.get("k") == maps.get("k", "entry") == [1, 2, 3]
    changes = backend.capture(changes_only=True).write()
    assert contents(changes, "values") == ({"k": [1, 2, 3]}, [])
    assert contents(changes, "maps") == ({"k": {"entry": [1, 2, 3]}}, [])


def test_values_put_together_are_changes_of_each(backend: HeapKeyedStateBackend) -> None:
    values = backend.value_table(VALUES)
    values.put_all({"a": 1, "b": 2, "c": 3})
    captured = backend.capture()
    values.put_all({"a": 10, "d": 4})
    assert contents(captured.write(), "values")[0] == {"a": 1, "b": 2, "c": 3}
    assert contents(backend.capture(True).write(), "values") == ({"a": 10, "d": 4}, [])


def test_what_came_and_went_between_two_snapshots_is_in_neither(
    backend: HeapKeyedStateBackend,
) -> None:
    values = backend.value_table(VALUES)
    values.put("old", 1)
    backend.snapshot()
    for place in ("short", "old"):
        values.put(place, 2)
        values.remove(place)
    assert contents(backend.capture(True).write(), "values") == ({}, ["old"])
    assert contents(backend.capture(True).write(), "values") == ({}, [])


def test_changes_of_a_released_snapshot_are_in_the_next_one(
    backend: HeapKeyedStateBackend,
) -> None:
    values = backend.value_table(VALUES)
    values.put("a", 1)
    backend.capture().release()
    assert contents(backend.capture(True).write(), "values")[0] == {"a": 1}
    values.put("b", 2)
    values.remove("a")
    failed = backend.capture(changes_only=True)
    failed.write()
    failed.release()
    values.put("c", 3)
    changes = backend.capture(changes_only=True).write()
    assert not changes.tables["values"].whole
    assert contents(changes, "values") == ({"b": 2, "c": 3}, ["a"])


def test_restored_state_of_a_released_snapshot_is_in_the_next_one(
    backend: HeapKeyedStateBackend,
) -> None:
    backend.value_table(VALUES).put("a", 1)
    backend.list_table(LISTS).append("a", 1)
    restored = HeapKeyedStateBackend()
    restored.restore([backend.snapshot()])
    captured = restored.capture()
    restored.value_table(VALUES)
    captured.release()
    following = restored.capture(changes_only=True).write()
    assert contents(following, "values")[0] == {"a": 1}
    assert contents(following, "lists")[0] == {"a": [1]}


def test_table_that_is_asked_for_after_a_snapshot_tells_its_changes(
    backend: HeapKeyedStateBackend,
) -> None:
    backend.value_table(VALUES).put("a", 1)
    restored = HeapKeyedStateBackend()
    restored.restore([backend.snapshot()])
    whole = restored.snapshot()
    assert contents(whole, "values")[0] == {"a": 1}
    restored.value_table(VALUES).put("b", 2)
    restored.value_table(ReducingStateDescriptor("new", max)).put("c", 3)
    changes = restored.capture(changes_only=True).write()
    assert contents(changes, "values") == ({"b": 2}, [])
    assert contents(changes, "new") == ({"c": 3}, [])
    again = HeapKeyedStateBackend()
    again.restore([whole, changes])
    assert {key: again.value_table(VALUES).get(key) for key in "abc"} == {"a": 1, "b": 2, "c": None}


def test_captures_that_cannot_be_written_cost_nothing_afterwards(
    backend: HeapKeyedStateBackend,
) -> None:
    lists = backend.list_table(LISTS)
    lists.append("k", threading.Lock())
    captured = backend.capture()
    with pytest.raises(StateError, match="lock cannot be stored"):
        captured.write()
    before = lists.get("k")
    lists.append("k", 2)
    assert lists.get("k") is before


def test_snapshot_is_divided_by_the_hash_of_the_keys_type() -> None:
    kind = KEY_KINDS["DOUBLE"]
    backend = HeapKeyedStateBackend(hash_of=kind.hash_of)
    assert key_group_of(2.0, 128, kind.hash_of) != key_group_of(2.0, 128)
    backend.value_table(VALUES).put(2.0, "x")
    backend.timer_queue("timers").add(7, 2.0, None)
    snapshot = backend.snapshot()
    group = key_group_of(2.0, 128, kind.hash_of)
    assert list(snapshot.tables["values"].groups) == [group]
    assert list(snapshot.timers["timers"]) == [group]


def test_numbers_that_are_written_after_a_snapshot_are_not_in_it(
    backend: HeapKeyedStateBackend,
) -> None:
    state = backend.state(VALUES)
    backend.context.key = "k"
    for number in (1, 2):
        state.update(number)
    captured = backend.capture()
    state.update(3)
    assert contents(captured.write(), "values")[0] == {"k": 2}
    assert contents(backend.capture(changes_only=True).write(), "values")[0] == {"k": 3}


def test_timers_of_the_last_snapshot_are_those_that_are_restored(
    backend: HeapKeyedStateBackend,
) -> None:
    timers = backend.timer_queue("timers")
    timers.add(1, "k", None)
    first = backend.snapshot()
    timers.discard(1, "k", None)
    timers.add(2, "other", None)
    second = backend.capture(changes_only=True).write()
    restored = HeapKeyedStateBackend()
    restored.restore([first, second])
    assert list(restored.timer_queue("timers").items()) == [(2, "other", None)]
