"""Keys of the entries of map state: which are one, and what the state has of them, is the same on
every backend, and after snapshots."""

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
    HeapKeyedStateBackend,
    KeyedStateBackend,
    MapStateDescriptor,
    StateTtlConfig,
)
from flinkray.state.disk import DiskKeyedStateBackend
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
