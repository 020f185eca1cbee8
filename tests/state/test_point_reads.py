"""Other threads read tables while the task's thread changes them: nothing torn, nothing changed
afterwards, nothing from before what was read already."""

from __future__ import annotations

import copy
import sys
import threading
from collections import UserDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.state import (
    AggregatingStateDescriptor,
    KeyContext,
    KeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkray.state.expiry import visible
from flinkray.state.table import MISSING, PointReader
from tests.state.every_backend import make_backend, on_every_backend

WIDTH = 40
"""Parts of an accumulator, which are changed one after the other."""
ROUNDS = 3_000


class Counts:
    """Changes its accumulator in place, part by part."""

    def create_accumulator(self) -> list[int]:
        return [0] * WIDTH

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        for place in range(WIDTH):
            accumulator[place] += value
        return accumulator

    def get_result(self, accumulator: list[int]) -> int:
        return accumulator[0]

    def merge(self, one: list[int], other: list[int]) -> list[int]:
        for place in range(WIDTH):
            other[place] += one[place]
        return other


def add_in_place(one: list[int], other: list[int]) -> list[int]:
    for place in range(WIDTH):
        one[place] += other[place]
    return one


class SlowKey:
    """A key whose equality is code in Python."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        sum(range(50))
        return isinstance(other, SlowKey) and self.number == other.number

    def __hash__(self) -> int:
        return self.number % 4


@contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def published(
    backend: KeyedStateBackend, descriptor: StateDescriptor, context: KeyContext | None = None
) -> tuple[Any, PointReader]:
    """A handle, and the reader of its table."""
    readers = []
    backend.publish = lambda _, table: readers.append(table.point_reader())
    descriptor.set_queryable("q")
    state = backend.state(descriptor, context)
    [reader] = readers
    return state, reader


def read_beside(
    change: Callable[[int], None], read: Callable[[], Any], check: Callable[[Any], None]
) -> None:
    """Call *change* again and again, while another thread reads."""
    seen: list[Any] = []
    is_done = threading.Event()

    def reads() -> None:
        while not is_done.is_set():
            found = read()
            # what is serialised takes a while: it must stay as it is
            kept = copied(found)
            check(kept)
            assert found == kept
            seen.append(None)

    with switching_often(), ThreadPoolExecutor(1) as threads:
        reader = threads.submit(reads)
        number = 0
        while (number < ROUNDS or len(seen) < 30) and not reader.done():
            change(number)
            number += 1
        is_done.set()
        reader.result()


def copied(found: list[Any]) -> list[Any]:
    return [it if it is MISSING else copy.deepcopy(it) for it in found]


class Rising:
    """Counters of one key: all alike, and never less than before."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, found: list[Any]) -> None:
        [counts] = found
        if counts is MISSING:
            assert self.last == 0
            return
        assert len(set(counts)) == 1, f"torn: {counts}"
        assert counts[0] >= self.last, "it went back"
        self.last = counts[0]


@on_every_backend
@pytest.mark.parametrize("captures", [False, True])
@pytest.mark.parametrize("how", ["aggregating", "reducing", "value"])
def test_concurrent_query_sees_neither_half_written_nor_older_values(
    how: str, captures: bool
) -> None:
    descriptors: dict[str, StateDescriptor] = {
        "aggregating": AggregatingStateDescriptor("s", Counts()),
        "reducing": ReducingStateDescriptor("s", add_in_place),
        "value": ValueStateDescriptor("s"),
    }
    backend = make_backend()
    state, reader = published(backend, descriptors[how])
    backend.context.key = "k"
    pending = []

    def change(number: int) -> None:
        if captures and number % 10 == 0:
            pending.append(backend.capture(number + 1))
            if len(pending) > 2:
                pending.pop(0).release()
        if how == "aggregating":
            state.add(1)
        elif how == "reducing":
            state.add([1] * WIDTH)
        else:
            value = state.value() or [0] * WIDTH
            for place in range(WIDTH):
                value[place] += 1
            state.update(value)

    read_beside(change, lambda: reader(["k"]), Rising())


@on_every_backend
def test_concurrent_query_sees_whole_values_while_windows_merge() -> None:
    """The value of a merged window is changed in place in the other window."""
    backend = make_backend()
    descriptor: StateDescriptor = AggregatingStateDescriptor("s", Counts())
    context = KeyContext()
    state, reader = published(backend, descriptor, context)

    def change(number: int) -> None:
        for window in ("a", "b"):
            context.key = ("k", window)
            state.add(1)
        backend.merge_namespaces(descriptor, "k", "a", ["b"])
        for window in ("a", "b"):
            context.key = ("k", window)
            state.clear()

    def check(found: list[Any]) -> None:
        for counts in found:
            assert counts is MISSING or len(set(counts)) == 1, f"torn: {counts}"

    read_beside(change, lambda: reader([("k", "a"), ("k", "b")]), check)


@on_every_backend
def test_concurrent_query_sees_no_half_written_list() -> None:
    backend = make_backend()
    state, reader = published(backend, ListStateDescriptor("s"))
    backend.context.key = "k"

    def change(number: int) -> None:
        state.update([number] * 3)
        state.add(number)
        state.add_all([number] * 4)

    def check(found: list[Any]) -> None:
        [elements] = found
        assert elements is MISSING or (len(set(elements)) == 1 and len(elements) in (3, 4, 8))

    read_beside(change, lambda: reader(["k"]), check)


@on_every_backend
@pytest.mark.parametrize("key_type", [int, SlowKey])
def test_concurrent_query_sees_all_or_no_entries_of_one_put_all(
    key_type: Callable[[int], Any],
) -> None:
    backend = make_backend()
    state, reader = published(backend, MapStateDescriptor("s"))
    backend.context.key = "k"
    keys = [key_type(number) for number in range(16)]

    def change(number: int) -> None:
        state.put_all(dict.fromkeys(keys, number))
        if number % 2 == 0:
            state.clear()

    def check(found: list[Any]) -> None:
        [entries] = found
        assert entries is MISSING or (len(entries) == 16 and len(set(entries.values())) == 1)

    read_beside(change, lambda: reader(["k"]), check)


def test_concurrent_query_sees_no_map_before_its_first_entries_are_complete() -> None:
    backend = make_backend()
    descriptor: StateDescriptor = MapStateDescriptor("s")
    _, reader = published(backend, descriptor)

    class Watching(UserDict[str, int]):
        def keys(self) -> Any:
            assert reader(["k"]) == [MISSING]
            return super().keys()

    backend.map_table(descriptor).put_all("k", Watching(a=1, b=2))
    assert reader(["k"]) == [{"a": 1, "b": 2}]


# --- beside a model -------------------------------------------------------------------------------

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["value", "list", "map", "reducing", "aggregating", "capture", "write"]),
        st.sampled_from(["a", "b"]),
        st.integers(0, 4),
    ),
    max_size=25,
)


@pytest.mark.parametrize(
    ("ttl", "kind", "examples"),
    [(None, "heap", 100), (1000, "heap", 100), (None, "disk", 15), (1000, "disk", 15)],
)
def test_point_read_returns_stored_value_and_later_writes_do_not_change_it(
    ttl: int | None, kind: str, examples: int
) -> None:
    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(OPERATIONS)
    def holds(operations: list[tuple[str, str, int]]) -> None:
        check_reads(make_backend(now=lambda: 0, kind=kind), ttl, operations)

    holds()


def check_reads(
    backend: KeyedStateBackend, ttl: int | None, operations: list[tuple[str, str, int]]
) -> None:
    descriptors: dict[str, StateDescriptor] = {
        "value": ValueStateDescriptor("value"),
        "list": ListStateDescriptor("list"),
        "map": MapStateDescriptor("map"),
        "reducing": ReducingStateDescriptor("reducing", lambda one, other: one + other),
        "aggregating": AggregatingStateDescriptor("aggregating", Counts()),
    }
    states: dict[str, Any] = {}
    readers: dict[str, PointReader] = {}
    backend.publish = lambda it, table: readers.__setitem__(it.name, table.point_reader())
    for name, descriptor in descriptors.items():
        descriptor.set_queryable(name)
        if ttl is not None:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(ttl).build())
        states[name] = backend.state(descriptor)
    model: dict[str, dict[str, Any]] = {name: {} for name in descriptors}
    captures, kept = [], []
    for number, (what, key, n) in enumerate(operations):
        backend.context.key = key
        if what == "capture":
            captures.append(backend.capture(number))
            continue
        if what == "write":
            for capture in captures:
                capture.write()
            captures = []
            continue
        state, mine = states[what], model[what]
        if n == 0:
            state.clear()
            mine.pop(key, None)
        elif what == "value":
            value = state.value() or []
            value.append(n)
            state.update(value)
            mine[key] = [*mine.get(key, []), n]
        elif what == "list":
            state.add([n])
            state.add_all([[n], n])
            mine[key] = [*mine.get(key, []), [n], [n], n]
        elif what == "map":
            state.put(n, [n])
            state.put_all({n + 1: number})
            mine[key] = {**mine.get(key, {}), n: [n], n + 1: number}
        elif what == "reducing":
            state.add([n])
            mine[key] = [*mine.get(key, []), n]
        else:
            state.add(n)
            mine[key] = [mine.get(key, [0])[0] + n] * WIDTH
        for name, descriptor in descriptors.items():
            found = readers[name](["a", "b"])
            kept.append((found, copied(found)))
            shown = found
            if ttl is not None:
                config = descriptor.ttl_config
                assert config is not None
                shown = [
                    it if it is MISSING else visible(it, descriptor.kind, config, 0) for it in found
                ]
            assert shown == [model[name].get(key, MISSING) for key in ("a", "b")]
    for found, then in kept:
        assert found == then
    for capture in captures:
        capture.release()
    backend.close()
