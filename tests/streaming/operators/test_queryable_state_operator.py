"""A keyed stream that is kept in a queryable state."""

from __future__ import annotations

from typing import Any

from flinkray.state import (
    KeyedStateBackend,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTable,
    ValueStateDescriptor,
)
from flinkray.streaming.operators.keyed import QueryableStateOperator
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.operators.contract import BY_FIRST, PAIRS, columns


def last(keys: Keys = BY_FIRST, **context: Any) -> OperatorHarness:
    return of(ValueStateDescriptor("state"), keys, **context)


def of(descriptor: StateDescriptor, keys: Keys = BY_FIRST, **context: Any) -> OperatorHarness:
    descriptor.set_queryable("q")
    return OperatorHarness(QueryableStateOperator(descriptor, keys), keyed=True, **context)


def stored(harness: OperatorHarness) -> dict[Any, Any]:
    backend = harness.operator.keyed_state
    assert backend is not None
    [table] = backend.tables()
    places = list(table.places())
    return dict(zip(places, table.point_reader()(places), strict=True))


def test_queryable_state_operator_stores_the_last_record_of_each_key() -> None:
    h = last()
    h.process(*PAIRS)
    assert stored(h) == {"a": ("a", 4), "b": ("b", 2)}
    assert h.values() == []


def test_queryable_reducing_state_reduces_the_records_of_each_key() -> None:
    descriptor: StateDescriptor = ReducingStateDescriptor(
        "state", lambda one, other: (one[0], one[1] + other[1])
    )
    h = of(descriptor)
    h.process(*PAIRS)
    assert stored(h) == {"a": ("a", 8), "b": ("b", 2)}


def test_columns_are_processed_as_rows() -> None:
    h = last(Keys("k"))
    h.process_columns(columns([7, 8, 9], k=["a", "b", "a"], v=[1, 2, 3]))
    assert {key: row["v"] for key, row in stored(h).items()} == {"a": 3, "b": 2}


def test_state_is_kept_after_a_restore() -> None:
    h = last()
    h.process(*PAIRS)
    restored = last(restore=h.snapshot())
    restored.process(("b", 9))
    assert stored(restored) == {"a": ("a", 4), "b": ("b", 9)}


def test_queryable_state_is_published_when_the_operator_is_opened() -> None:
    told: list[tuple[str | None, bool]] = []

    def publish(backend: KeyedStateBackend, descriptor: StateDescriptor, table: StateTable) -> None:
        told.append((descriptor.get_queryable_state_name(), table in backend.tables()))

    last(publish=publish)
    assert told == [("q", True)]
