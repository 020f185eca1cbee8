"""Keys of map state, and states that programs may only read."""

from __future__ import annotations

import datetime
import decimal
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from flinkray.state import (
    AggregatingStateDescriptor,
    HeapKeyedStateBackend,
    KeyedStateBackend,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
)
from flinkray.state.disk import DiskKeyedStateBackend
from flinkray.state.immutable_states import ReadOnlyStateError, immutable_state
from flinkray.state.key_encoding import UnsupportedKeyError
from flinkray.streaming.records.row import Row
from tests.state.every_backend import SMALL, make_backend, on_every_backend

NAN = float("nan")
DAY = datetime.datetime(2026, 1, 2)
KEYS: list[Callable[[], Any]] = [
    *(lambda key=key: key for key in (0, False, 0.0, -0.0, 1, True, 1.0, decimal.Decimal(1))),
    *(lambda key=key: np.dtype(key).type(1) for key in ("int8", "float32", "bool")),
    *(lambda key=key: float(key) for key in ("nan", "nan", "2.5", "inf")),
    lambda: np.float64("nan"),
    lambda: decimal.Decimal("nan"),
    lambda: DAY,
    *(lambda unit=unit: np.datetime64(DAY, unit) for unit in ("s", "us", "D")),
    lambda: datetime.timedelta(1),
    lambda: np.timedelta64(24, "h"),
    *(lambda key=key: (key, float("nan")) for key in (1, True, 1.0)),
    lambda: ("a", np.datetime64(DAY, "s")),
    *(lambda key=key: key for key in ("a", b"a", "", None, ())),
]
"""Made anew for each use."""


def now() -> int:
    return 0


def heap() -> KeyedStateBackend:
    return HeapKeyedStateBackend(now=now)


def disk() -> KeyedStateBackend:
    return DiskKeyedStateBackend(now=now, settings=SMALL)


def forgetful() -> KeyedStateBackend:
    """Its cache has room for hardly anything."""
    return DiskKeyedStateBackend(now=now, settings=replace(SMALL, cache_bytes=1))


def descriptor(is_expiring: bool) -> MapStateDescriptor[Any, Any]:
    made: MapStateDescriptor[Any, Any] = MapStateDescriptor("map")
    if is_expiring:
        made.enable_time_to_live(StateTtlConfig.new_builder(1000).build())
    return made


class Twins:
    """Several backends that the same is done with."""

    def __init__(self, *kinds: Callable[[], KeyedStateBackend], is_expiring: bool) -> None:
        self._is_expiring = is_expiring
        self._begin([kind() for kind in kinds])

    def _begin(self, backends: list[KeyedStateBackend]) -> None:
        self.backends = backends
        self.maps = [backend.state(descriptor(self._is_expiring)) for backend in backends]

    def do(self, key: Any, act: Callable[[Any], Any]) -> Any:
        """Do it with each; what comes of that, which is the same."""
        found = []
        for backend, state in zip(self.backends, self.maps, strict=True):
            backend.context.key = key
            found.append(act(state))
        assert [exactly(each) for each in found] == [exactly(found[0])] * len(found)
        return found[0]

    def restart(self, kinds: Iterable[Callable[[], KeyedStateBackend]]) -> None:
        backends = []
        for old, kind in zip(self.backends, kinds, strict=True):
            snapshot = old.snapshot()
            old.close()
            new = kind()
            new.restore([snapshot])
            backends.append(new)
        self._begin(backends)

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


def exactly(value: Any) -> str:
    """With the types of what is in it."""
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(exactly, value))})"
    return f"{type(value).__name__} {value!r}"


def put(key: Callable[[], Any], value: int, state: Any) -> None:
    state.put(key(), value)


def put_all(keys: Iterable[Callable[[], Any]], value: int, state: Any) -> None:
    state.put_all({key(): value for key in keys})


def call(name: str, key: Callable[[], Any] | None, state: Any) -> Any:
    found = getattr(state, name)(*(() if key is None else (key(),)))
    return list(found) if name == "items" else found


@pytest.mark.parametrize("is_expiring", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_map_state_has_equal_entries_in_all_backends(seed: int, is_expiring: bool) -> None:
    rng = random.Random(seed)
    twins = Twins(heap, disk, forgetful, is_expiring=is_expiring)
    for step in range(250):
        key, of = rng.choice(KEYS), rng.choice("ab")
        match rng.choices(
            ("put", "put_all", "get", "contains", "remove", "items", "clear", "restart"),
            (8, 2, 4, 4, 3, 3, 0.2, 0.7),
        )[0]:
            case "put":
                twins.do(of, partial(put, key, step))
            case "put_all":
                twins.do(of, partial(put_all, rng.sample(KEYS, 4), step))
            case "restart":
                twins.restart(rng.sample((heap, disk, forgetful), 3))
            case "items" | "clear" as name:
                twins.do(of, partial(call, name, None))
            case name:
                twins.do(of, partial(call, name, key))
    twins.do("a", lambda state: list(state.items()))
    twins.do("b", lambda state: list(state.keys()))
    twins.close()


@on_every_backend
def test_invalid_map_key_is_refused() -> None:
    backend = make_backend()
    backend.context.key = "a"
    state: Any = backend.state(descriptor(False))
    for act in (state.get, state.contains, state.remove, lambda key: state.put(key, 1)):
        with pytest.raises(UnsupportedKeyError, match=r"builtins\.list cannot be a key"):
            act([1])
    with pytest.raises(UnsupportedKeyError, match=r"builtins\.object cannot be a key"):
        state.put_all({object(): 1})
    backend.close()


@on_every_backend
def test_nan_and_numpy_times_are_found_as_keys_of_map_state() -> None:
    backend = make_backend()
    backend.context.key = "a"
    state: Any = backend.state(descriptor(False))
    state.put(float("nan"), 1)
    state.put(np.datetime64(DAY, "s"), 2)
    assert state.get(float("nan")) == 1
    assert state.get(DAY) == state.get(np.datetime64(DAY, "us")) == 2
    assert state.contains(np.float64("nan"))
    assert len(list(state.keys())) == 2
    backend.close()


@on_every_backend
@pytest.mark.parametrize("is_expiring", [False, True])
def test_changing_a_key_returned_by_map_state_does_not_change_the_state(is_expiring: bool) -> None:
    backend = make_backend(now=now)
    backend.context.key = "a"
    state: Any = backend.state(descriptor(is_expiring))
    state.put(Row(1, "a"), 5)
    ((key, _),) = state.items()
    key[0] = 2
    next(iter(state.keys()))[1] = "b"
    assert (state.get(Row(1, "a")), list(state.keys())) == (5, [Row(1, "a")])
    backend.close()


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


def test_immutable_map_state_of_a_query_supports_all_read_methods() -> None:
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
