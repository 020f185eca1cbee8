"""Keyed state on the heap, kind by kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flinkray.state import (
    AggregatingStateDescriptor,
    KeyContext,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateError,
    ValueStateDescriptor,
)
from tests.state.every_backend import make_backend, on_every_backend

pytestmark = on_every_backend


class Mean:
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return left[0] + right[0], left[1] + right[1]


@pytest.fixture
def backend() -> KeyedStateBackend:
    made = make_backend()
    made.context.key = "k"
    return made


def test_unset_or_cleared_value_state_has_its_default(
    backend: KeyedStateBackend,
) -> None:
    """KS-01"""
    state = backend.state(ValueStateDescriptor("v", default_value=7))
    assert state.value() == 7
    state.update(8)
    assert state.value() == 8
    state.clear()
    assert state.value() == 7
    assert backend.state(ValueStateDescriptor("w")).value() is None


def test_changing_the_returned_default_of_a_value_state_does_not_change_the_default(
    backend: KeyedStateBackend,
) -> None:
    state = backend.state(ValueStateDescriptor("v", default_value=[]))
    state.value().append(1)
    assert state.value() == []


def test_updating_a_value_state_with_none_clears_it(backend: KeyedStateBackend) -> None:
    """KS-02"""
    state = backend.state(ValueStateDescriptor("v", default_value="default"))
    state.update(1)
    state.update(None)
    assert state.value() == "default"
    assert backend.number_of_entries("v") == 0


def test_unset_list_state_is_empty_and_refuses_none(backend: KeyedStateBackend) -> None:
    """KS-03"""
    state = backend.state(ListStateDescriptor("l"))
    assert list(state.get()) == []
    wrongs: list[Callable[[], None]] = [
        lambda: state.add(None),
        lambda: state.add_all(None),
        lambda: state.add_all([1, None]),
        lambda: state.update(None),
        lambda: state.update([None]),
    ]
    for wrong in wrongs:
        with pytest.raises(StateError, match="None"):
            wrong()
    state.add_all([])
    assert backend.number_of_entries("l") == 0
    state.add(1)
    state.add_all([2, 3])
    assert list(state) == [1, 2, 3]
    state.update([9])
    assert list(state.get()) == [9]
    state.update([])
    assert backend.number_of_entries("l") == 0


def test_reducing_and_aggregating_state_return_none_while_they_are_empty(
    backend: KeyedStateBackend,
) -> None:
    """KS-04"""
    reducing = backend.state(ReducingStateDescriptor("r", lambda a, b: a + b))
    aggregating = backend.state(AggregatingStateDescriptor("a", Mean()))
    assert reducing.get() is None
    assert aggregating.get() is None
    for value in (1, 2, 6):
        reducing.add(value)
        aggregating.add(value)
    assert (reducing.get(), aggregating.get()) == (9, 3.0)
    reducing.clear()
    aggregating.clear()
    assert (reducing.get(), aggregating.get()) == (None, None)


def test_adding_none_to_aggregating_state_empties_it(backend: KeyedStateBackend) -> None:
    """As in PyFlink, and as reducing state does."""
    aggregating = backend.state(AggregatingStateDescriptor("a", Mean()))
    aggregating.add(4)
    aggregating.add(None)
    assert aggregating.get() is None
    aggregating.add(6)
    assert aggregating.get() == 6.0


def test_merging_namespaces_combines_their_state(backend: KeyedStateBackend) -> None:
    """KS-04"""
    namespace = KeyContext()
    descriptors = [
        ListStateDescriptor("l"),
        ReducingStateDescriptor("r", lambda a, b: a + b),
        AggregatingStateDescriptor("a", Mean()),
    ]
    states = [backend.state(descriptor, namespace) for descriptor in descriptors]
    for window, values in (("w1", [1, 3]), ("w2", [5]), ("w3", [])):
        namespace.key = ("k", window)
        for value in values:
            for state in states:
                state.add(value)
    for descriptor in descriptors:
        backend.merge_namespaces(descriptor, "k", "w1", ["w2", "w3"])
    namespace.key = ("k", "w1")
    assert [states[0].get(), states[1].get(), states[2].get()] == [[1, 3, 5], 9, 3.0]
    namespace.key = ("k", "w2")
    assert [states[0].get(), states[1].get(), states[2].get()] == [[], None, None]


def test_is_empty_of_map_state_follows_every_put_and_remove(backend: KeyedStateBackend) -> None:
    """KS-05"""
    state = backend.state(MapStateDescriptor("m"))
    assert list(state.items()) == []
    assert state.is_empty()
    for number in range(1024):
        state.put(number, str(number))
        assert not state.is_empty()
    for number in range(1024):
        assert not state.is_empty()
        state.remove(number)
    assert state.is_empty()
    assert backend.number_of_entries("m") == 0


def test_map_iterator_removes_the_entry_that_it_returned_last(backend: KeyedStateBackend) -> None:
    """KS-05"""
    state = backend.state(MapStateDescriptor("m"))
    state.put_all({"a": 1, "b": 2, "c": 3})
    entries = state.items()
    with pytest.raises(StateError, match="next"):
        entries.remove()
    for key, _ in entries:
        if key != "b":
            entries.remove()
            with pytest.raises(StateError, match="next"):
                entries.remove()
    assert dict(state.items()) == {"b": 2}
    assert state["b"] == 2
    assert "b" in state
    assert "a" not in state
    del state["b"]
    state["z"] = 26
    assert (list(state), list(state.keys()), list(state.values())) == (["z"], ["z"], [26])


def test_state_name_used_for_another_kind_of_state_is_refused(backend: KeyedStateBackend) -> None:
    backend.state(ValueStateDescriptor("s"))
    with pytest.raises(StateError, match="'s' is value state here and is asked for as list state"):
        backend.state(ListStateDescriptor("s"))


def test_restored_state_that_no_operator_uses_is_in_the_next_snapshot(
    backend: KeyedStateBackend,
) -> None:
    backend.state(ValueStateDescriptor("v")).update(1)
    second = make_backend()
    second.restore([backend.snapshot()])
    third = make_backend()
    third.restore([second.snapshot()])
    third.context.key = "k"
    assert third.names() == ["v"]
    assert third.state(ValueStateDescriptor("v")).value() == 1


def test_restored_state_of_another_kind_is_refused(backend: KeyedStateBackend) -> None:
    backend.state(ValueStateDescriptor("v")).update(1)
    restored = make_backend()
    restored.restore([backend.snapshot()])
    with pytest.raises(StateError, match="another name"):
        restored.state(ListStateDescriptor("v"))
