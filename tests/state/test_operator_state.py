"""Operator state: lists and broadcast maps."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np
import pytest

from flinkray.state import ListStateDescriptor, MapStateDescriptor, OperatorStateBackend, StateError
from flinkray.state.key_encoding import UnsupportedKeyError

NAMES: ListStateDescriptor[str] = ListStateDescriptor("names")
RULES: MapStateDescriptor[str, int] = MapStateDescriptor("names")


def test_operator_state_name_used_in_another_mode_is_refused() -> None:
    """OS-02"""
    backend = OperatorStateBackend()
    backend.list_state(NAMES)
    with pytest.raises(StateError, match="list state here and is asked for as union"):
        backend.union_list_state(NAMES)
    with pytest.raises(StateError, match="asked for as broadcast"):
        backend.broadcast_state(RULES)
    other = OperatorStateBackend()
    other.union_list_state(NAMES)
    snapshot = other.snapshot()
    assert snapshot is not None
    restored = OperatorStateBackend()
    restored.restore([snapshot])
    with pytest.raises(StateError, match="union state here and is asked for as list"):
        restored.list_state(NAMES)


def test_backend_without_state_has_no_snapshot() -> None:
    """OS-03"""
    assert OperatorStateBackend().snapshot() is None


def test_broadcast_state_is_restored_without_removed_entries() -> None:
    """OS-04"""
    backend = OperatorStateBackend()
    rules = backend.broadcast_state(RULES)
    rules.put_all({"a": 1, "b": 2, "c": 3})
    rules.remove("b")
    snapshot = backend.snapshot()
    assert snapshot is not None
    restored = OperatorStateBackend()
    restored.restore([snapshot])
    again = restored.broadcast_state(RULES)
    assert dict(again.items()) == {"a": 1, "c": 3}
    again.clear()
    last = restored.snapshot()
    assert last is not None
    third = OperatorStateBackend()
    third.restore([last])
    assert third.broadcast_state(RULES).is_empty()


def test_restored_operator_states_have_their_old_names_and_order_before_first_use() -> None:
    """OS-05"""
    backend = OperatorStateBackend()
    backend.list_state(NAMES).add_all(["c", "a", "b"])
    backend.broadcast_state(MapStateDescriptor("empty"))
    snapshot = backend.snapshot()
    assert snapshot is not None
    restored = OperatorStateBackend()
    restored.restore([snapshot])
    assert restored.names() == ["names", "empty"]
    assert list(restored.list_state(NAMES).get()) == ["c", "a", "b"]
    assert restored.names() == ["names", "empty"]


def test_operator_state_snapshot_does_not_contain_later_changes_in_place() -> None:
    """OS-06"""
    backend = OperatorStateBackend()
    state = backend.list_state(ListStateDescriptor("lists"))
    element = [1]
    state.add(element)
    snapshot = backend.snapshot()
    assert snapshot is not None
    element.append(2)
    state.add([3])
    restored = OperatorStateBackend()
    restored.restore([snapshot])
    assert list(restored.list_state(ListStateDescriptor("lists")).get()) == [[1]]


class Noted:
    """Tells when it is serialised."""

    def __init__(self, number: int, written: list[int]) -> None:
        self.number = number
        self.written = written

    def __value_copy__(self, own: Callable[[object], object]) -> Noted:
        return Noted(self.number, self.written)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        self.written.append(self.number)
        return int, (self.number,)


@pytest.mark.parametrize("change", ["append", "replace", "clear"])
def test_operator_state_is_serialized_only_when_its_snapshot_is_written(change: str) -> None:
    written: list[int] = []
    backend = OperatorStateBackend()
    numbers = backend.list_state(ListStateDescriptor("numbers"))
    rules = backend.broadcast_state(MapStateDescriptor("rules"))
    numbers.add_all([Noted(1, written), Noted(2, written)])
    rules.put_all({"a": Noted(3, written), "b": [4]})
    capture = backend.capture()
    assert capture is not None
    if change == "append":
        numbers.add(Noted(5, written))
        rules.put("c", 6)
        rules.remove("a")
    elif change == "replace":
        numbers.update([7])
        rules.put("b", [8])
    else:
        numbers.clear()
        rules.clear()
    assert not written
    restored = OperatorStateBackend()
    restored.restore([capture.write()])
    assert written == [1, 2, 3]
    assert list(restored.list_state(ListStateDescriptor("numbers")).get()) == [1, 2]
    assert dict(restored.broadcast_state(MapStateDescriptor("rules")).items()) == {"a": 3, "b": [4]}


def test_operator_list_states_restored_from_several_snapshots_are_appended() -> None:
    """OS-08"""
    parts = []
    for values in (["a"], [], ["b", "c"]):
        backend = OperatorStateBackend()
        backend.list_state(NAMES).add_all(values)
        part = backend.snapshot()
        assert part is not None
        parts.append(part)
    restored = OperatorStateBackend()
    restored.restore(parts)
    assert list(restored.list_state(NAMES).get()) == ["a", "b", "c"]


def test_restored_operator_states_that_no_operator_uses_stay_as_they_were_stored() -> None:
    backend = OperatorStateBackend()
    backend.list_state(NAMES).add_all(["a", "b"])
    backend.broadcast_state(MapStateDescriptor("rules")).put("k", 1)
    first = backend.snapshot()
    assert first is not None
    restored = OperatorStateBackend()
    restored.restore([first])
    again = restored.snapshot()
    assert again == first
    restored.list_state(NAMES).add("c")
    last = restored.snapshot()
    assert last is not None
    third = OperatorStateBackend()
    third.restore([last])
    assert list(third.list_state(NAMES).get()) == ["a", "b", "c"]
    assert third.broadcast_state(MapStateDescriptor("rules")).get("k") == 1


def test_operator_states_registered_before_the_restore_get_the_restored_content() -> None:
    backend = OperatorStateBackend()
    names, rules = backend.list_state(NAMES), backend.broadcast_state(MapStateDescriptor("rules"))
    names.add("a")
    rules.put("k", 1)
    snapshot = backend.snapshot()
    assert snapshot is not None
    restored = OperatorStateBackend()
    names = restored.list_state(NAMES)
    rules = restored.broadcast_state(MapStateDescriptor("rules"))
    restored.restore([snapshot])
    assert (list(names.get()), rules.get("k")) == (["a"], 1)


def test_reader_of_broadcast_state_cannot_change_it() -> None:
    backend = OperatorStateBackend()
    reading = backend.broadcast_state(RULES).read_only()
    changes: list[Callable[[], None]] = [
        lambda: reading.put("a", 1),
        lambda: reading.remove("a"),
        reading.clear,
    ]
    for change in changes:
        with pytest.raises(StateError, match="read-only"):
            change()


def test_keys_of_broadcast_state_follow_the_rules_of_other_keys() -> None:
    """NaN is one key, times of NumPy equal those of Python, and a list is refused as a key."""
    backend = OperatorStateBackend()
    state = backend.broadcast_state(MapStateDescriptor("rules"))
    day = datetime.datetime(2026, 1, 2)
    for key, value in [
        (float("nan"), 1), (np.float64("nan"), 2), (day, 3), (np.datetime64(day, "s"), 4),
    ]:  # fmt: skip
        state.put(key, value)
    assert list(state.values()) == [2, 4]
    assert (state.get(float("nan")), state.contains(np.datetime64(day, "us"))) == (2, True)
    snapshot = backend.snapshot()
    assert snapshot is not None
    restored = OperatorStateBackend()
    restored.restore([snapshot])
    again = restored.broadcast_state(MapStateDescriptor("rules"))
    assert (again.get(np.float32("nan")), again.get(day)) == (2, 4)
    again.remove(float("nan"))
    assert list(again.keys()) == [day]
    with pytest.raises(UnsupportedKeyError, match="list cannot be a key"):
        state.put([1], 1)
