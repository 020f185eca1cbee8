"""Answers of queries: they can be read, and not be changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flinkray.state import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from flinkray.state.immutable_states import ReadOnlyStateError, immutable_state


class Mean:
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[int]) -> float:
        total, count = accumulator
        accumulator.clear()  # it is the function's own
        return total / count


CONTENTS = {"value": [1], "list": [[1], 2], "map": {"a": [1]}, "reducing": [1], "aggregating": [6]}

CHANGES: list[tuple[str, Callable[[Any], Any]]] = [
    *((kind, lambda state: state.clear()) for kind in CONTENTS),
    ("value", lambda state: state.update(2)),
    ("list", lambda state: state.add(2)),
    ("list", lambda state: state.add_all([2])),
    ("list", lambda state: state.update([2])),
    ("map", lambda state: state.put("a", 2)),
    ("map", lambda state: state.put_all({"a": 2})),
    ("map", lambda state: state.remove("a")),
    ("map", lambda state: state.__setitem__("a", 2)),
    ("map", lambda state: state.__delitem__("a")),
    ("reducing", lambda state: state.add(2)),
    ("aggregating", lambda state: state.add(2)),
]


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_change_of_a_queried_state_is_refused_as_read_only(
    kind: str, change: Callable[[Any], Any]
) -> None:
    state = immutable_state(kind, CONTENTS[kind], None)
    with pytest.raises(ReadOnlyStateError, match="read-only"):
        change(state)


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("value", lambda state: state.value()),
        ("list", lambda state: state.get()[0]),
        ("map", lambda state: state.get("a")),
        ("map", lambda state: state.values()[0]),
        ("map", lambda state: state.items()[0][1]),
        ("reducing", lambda state: state.get()),
    ],
)
def test_changing_a_read_value_does_not_change_the_state(
    kind: str, read: Callable[[Any], list[int]]
) -> None:
    state = immutable_state(kind, CONTENTS[kind], None)
    read(state).append(2)
    assert read(state) == [1]


def test_immutable_map_state_answers_all_reads() -> None:
    state = immutable_state("map", {"a": 1, "b": 2}, None)
    assert (list(state), "a" in state, state.contains("c"), state["b"]) == (
        ["a", "b"],
        True,
        False,
        2,
    )
    assert (state.keys(), state.values(), state.is_empty()) == (["a", "b"], [1, 2], False)
    assert state.items() == [("a", 1), ("b", 2)]
    assert immutable_state("map", {}, None).is_empty()


def test_queried_aggregate_is_computed_with_the_function_of_the_querying_program() -> None:
    descriptor: StateDescriptor = AggregatingStateDescriptor("mean", Mean())
    state = immutable_state("aggregating", [6, 2], descriptor)
    assert (state.get(), state.get()) == (3.0, 3.0)
    assert immutable_state("aggregating", [6, 2], None).get() == [6, 2]


def test_queried_reducing_state_returns_the_stored_value() -> None:
    descriptor: StateDescriptor = ReducingStateDescriptor("sum", lambda one, other: one + other)
    assert immutable_state("reducing", 5, descriptor).get() == 5
