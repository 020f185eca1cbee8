"""Keyed state under random use, against a model that copies everything: values, snapshots."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state import (
    AggregatingStateDescriptor,
    KeyContext,
    KeyedSnapshot,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateCapture,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tests.state.every_backend import make_backend, on_every_backend

TTL = 100
KEYS = [1, "a", (2, "b"), 0.5, None]
WINDOWS = ["w1", "w2"]


def extended(left: list[Any], right: list[Any]) -> list[Any]:
    """A reduction that changes what there is."""
    left.extend(right)
    return left


class Gathering:
    """An accumulator that is changed in place, and is the result."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> list[Any]:
        return accumulator

    def merge(self, left: list[Any], right: list[Any]) -> list[Any]:
        left.extend(right)
        return left


def descriptors() -> dict[str, Any]:
    """By name; those that begin with ``w`` are asked for with windows, with ``t`` expire."""
    made: dict[str, Any] = {}
    descriptor: Any
    for prefix in ("", "w-", "t-"):
        for descriptor in (
            ValueStateDescriptor(prefix + "value"),
            ListStateDescriptor(prefix + "list"),
            MapStateDescriptor(prefix + "map"),
            ReducingStateDescriptor(prefix + "reducing", extended),
            AggregatingStateDescriptor(prefix + "aggregating", Gathering()),
        ):
            if prefix == "t-":
                descriptor.enable_time_to_live(StateTtlConfig.new_builder(TTL).build())
            made[descriptor.name] = descriptor
    return made


NAMES = list(descriptors())
Model = dict[Any, Any]
"""(Name, key, window) -> contents, each value with when it was written; and timers."""


class Backend:
    """A backend with all its handles."""

    def __init__(
        self, first: int = 0, last: int = 127, now: int = 0, kind: str | None = None
    ) -> None:
        self.now = now
        groups = KeyGroupRange(first, last)
        self.backend = make_backend(128, groups, lambda: self.now, kind=kind)
        self.of_window = KeyContext()

    def open(self) -> None:
        self.descriptors = descriptors()
        self.handles = {
            name: self.backend.state(d, self.of_window if name.startswith("w") else None)
            for name, d in self.descriptors.items()
        }
        self.timers = self.backend.timer_queue("timers")

    def handle(self, name: str, key: Any, window: str) -> Any:
        self.backend.context.key = key
        self.of_window.key = (key, window)
        return self.handles[name]

    def read(self, name: str, key: Any, window: str) -> Any:
        handle = self.handle(name, key, window)
        if name.endswith("value"):
            return handle.value()
        if name.endswith("map"):
            return dict(handle.items())
        return handle.get()

    def everything(self) -> dict[Any, Any]:
        found = {}
        for name in NAMES:
            for key in KEYS:
                for window in WINDOWS if name.startswith("w") else [""]:
                    contents = self.read(name, key, window)
                    if contents:
                        found[name, key, window] = contents
        return found


def seen(model: Model, now: int) -> dict[Any, Any]:
    """What is to be read."""
    found = {}
    for place, contents in model.items():
        name = place[0]
        if name == "timers":
            continue
        limit = now - TTL if name.startswith("t") else -1
        if name.endswith("list"):
            visible: Any = [value for value, written in contents if written > limit]
        elif name.endswith("map"):
            visible = {k: value for k, (value, written) in contents.items() if written > limit}
        else:
            visible = contents[0] if contents[1] > limit else None
        if visible:
            found[place] = visible
    return found


def spoil(value: Any) -> None:
    """Change whatever it is."""
    if isinstance(value, dict):
        for part in value.values():
            spoil(part)
        value["spoilt"] = True
    elif isinstance(value, list | tuple):
        for part in value:
            spoil(part)
        if isinstance(value, list):
            value.append("spoilt")


class Run:
    """Does the same to a backend and to a model."""

    def __init__(self, kind: str = "heap", other: str = "heap") -> None:
        self.real = Backend(kind=kind)
        self.other = other
        """Of which kind half of the state is restored; the first half is on the heap."""
        self.real.open()
        self.model: Model = {}
        self.captures: dict[int, tuple[StateCapture, int | None, Model, int]] = {}
        """By id: each with the one that it begins at, and what was to be seen at which time."""
        self.written: dict[int, KeyedSnapshot] = {}

    def write(self, name: str, key: Any, window: str, value: Any, how: int) -> None:
        if not isinstance(value, list) and (
            name.endswith("reducing") or (name.endswith("list") and how % 3 < 2)
        ):
            value = [value]
        window = window if name.startswith("w") else ""
        handle, place, now = self.real.handle(name, key, window), (name, key, window), self.real.now
        kept = copy.deepcopy(value)
        live = place in seen(self.model, now)
        if name.endswith("value"):
            handle.update(value)
            self.model[place] = kept, now
        elif name.endswith("list"):
            if how % 3 == 0:
                handle.update(value)
                self.model[place] = [(part, now) for part in kept]
            elif how % 3 == 1:
                handle.add_all(value)
                self.model.setdefault(place, []).extend((part, now) for part in kept)
            else:
                handle.add(value)
                self.model.setdefault(place, []).append((kept, now))
        elif name.endswith("map"):
            if how % 2:
                handle.put(how, value)
                self.model.setdefault(place, {})[how] = kept, now
            else:
                handle.put_all({how: value, -how: value})
                copies = {how: (kept, now), -how: (copy.deepcopy(kept), now)}
                self.model.setdefault(place, {}).update(copies)
        else:
            handle.add(value)
            before = self.model[place][0] if live else []
            self.model[place] = before + (kept if name.endswith("reducing") else [kept]), now
        spoil(value)

    def remove(self, name: str, key: Any, window: str, how: int) -> None:
        window = window if name.startswith("w") else ""
        handle, place = self.real.handle(name, key, window), (name, key, window)
        if name.endswith("map") and how % 3:
            handle.remove(how)
            self.model.get(place, {}).pop(how, None)
        else:
            handle.clear()
            self.model.pop(place, None)

    def look(self, name: str, key: Any, window: str) -> None:
        window = window if name.startswith("w") else ""
        contents = self.real.read(name, key, window)
        expected = seen(self.model, self.real.now).get((name, key, window))
        assert (contents or None) == expected
        spoil(contents)

    def merge(self, name: str, key: Any) -> None:
        self.real.backend.merge_namespaces(self.real.descriptors[name], key, "w1", ["w2"])
        source: Any = self.model.pop((name, key, "w2"), None)
        target: Any = self.model.get((name, key, "w1"))
        if source is not None and target is None:
            self.model[name, key, "w1"] = source
        elif source is not None and name == "w-list":
            target.extend(source)
        elif source is not None:
            self.model[name, key, "w1"] = target[0] + source[0], 0

    def timer(self, time: int, key: Any, window: str, how: int) -> None:
        timers = self.model.setdefault(("timers",), set())
        queue = self.real.timers
        if how % 3 == 0:
            queue.discard(time, key, window)
            timers.discard((time, key, window))
        elif how % 3 == 1 or not timers:
            assert queue.add(time, key, window) is ((time, key, window) not in timers)
            timers.add((time, key, window))
        else:
            first = queue.first()
            assert first is not None
            assert first == min(timer[0] for timer in timers)
            (one,) = queue.at(first, 1)
            assert queue.claim(first, one)
            timers.remove((first, *one))

    def capture(self, checkpoint_id: int, ago: int) -> None:
        """*ago*: how many captures before this one the one is that it begins at; 0: at none."""
        since = list(self.captures)[-ago] if 0 < ago <= len(self.captures) else None
        captured = self.real.backend.capture(checkpoint_id, since)
        begin = None if captured.is_whole else since
        self.captures[checkpoint_id] = captured, begin, copy.deepcopy(self.model), self.real.now

    def snapshot(self) -> None:
        self.real.backend.snapshot()

    def release(self, which: int) -> None:
        """One that no other needs; it may have been written."""
        needed = {begin for _, begin, _, _ in self.captures.values()}
        others = [checkpoint_id for checkpoint_id in self.captures if checkpoint_id not in needed]
        if others:
            checkpoint_id = others[which % len(others)]
            self.captures.pop(checkpoint_id)[0].release()
            self.written.pop(checkpoint_id, None)

    def write_one(self, which: int) -> None:
        waiting = [number for number in self.captures if number not in self.written]
        if waiting:
            number = waiting[which % len(waiting)]
            self.written[number] = self.captures[number][0].write()

    def check(self) -> None:
        """All captures, each by itself with those before it that it is about."""
        while len(self.written) < len(self.captures):
            self.write_one(-1)
        for checkpoint_id, (_, _, model, now) in self.captures.items():
            halves = [Backend(0, 63, now, "heap"), Backend(64, 127, now, self.other)]
            found: dict[Any, Any] = {}
            timers: set[Any] = set()
            for half in halves:
                half.backend.restore(self.parts(checkpoint_id))
                half.open()
                mine, times = half.everything(), set(half.timers.items())
                assert not found.keys() & mine.keys()
                assert not timers & times
                found |= mine
                timers |= times
                half.backend.close()
            assert found == seen(model, now), (
                checkpoint_id,
                found,
                seen(model, now),
                self.captures[checkpoint_id][1],
            )
            assert timers == model.get(("timers",), set())

    def parts(self, checkpoint_id: int | None) -> list[KeyedSnapshot]:
        if checkpoint_id is None:
            return []
        begin = self.captures[checkpoint_id][1]
        return [*self.parts(begin), self.written[checkpoint_id]]


numbers = st.integers(-3, 3)
lists = st.lists(st.one_of(numbers, st.lists(numbers, max_size=2)), min_size=1, max_size=3)
cannot_be_changed = st.sampled_from(
    [0, 1, "", "a", "text", b"bytes", 0.5, (), (1, "b"), frozenset({1})]
)
"""Which a backend may keep, and hand out, as they are."""
only_outside = st.tuples(st.just("a"), st.lists(numbers, max_size=2))
values = st.one_of(lists, cannot_be_changed, cannot_be_changed, only_outside)


@st.composite
def stories(draw: st.DrawFn) -> list[Any]:
    """Steps, each with the time that passes afterwards, about a few states and keys."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    keys = st.sampled_from(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2)))
    windows = st.sampled_from(WINDOWS)
    of_state = (st.sampled_from(names), keys, windows)
    write = st.tuples(st.just("write"), *of_state, values, numbers)
    look = st.tuples(st.just("look"), *of_state)
    capture = st.tuples(st.just("capture"), st.integers(0, 4))
    steps: list[Any] = [
        *(write, write, write, look, look, capture),
        st.tuples(st.just("remove"), *of_state, numbers),
        st.tuples(st.just("timer"), st.integers(0, 3), keys, windows, st.integers(0, 5)),
        st.tuples(st.just("write_one"), numbers),
        st.tuples(st.just("release"), numbers),
        st.tuples(st.just("snapshot")),
    ]
    can_merge = [name for name in names if name in ("w-list", "w-reducing", "w-aggregating")]
    if can_merge:
        steps += [st.tuples(st.just("merge"), st.sampled_from(can_merge), keys)] * 2
    length = draw(st.sampled_from([0, 15, 40]))
    step = st.tuples(st.one_of(steps), st.integers(0, 60))
    return draw(st.lists(step, min_size=length, max_size=60))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_state_and_snapshots_of_a_random_program_equal_those_of_a_simple_model(
    story: list[Any],
) -> None:
    """KS-06"""
    check_story(Run(), story)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stories())
def test_disk_and_heap_backends_restore_each_others_snapshots(
    story: list[Any],
) -> None:
    """KS-06"""
    check_story(Run("disk", "heap"), story)
    check_story(Run("heap", "disk"), story)


def check_story(run: Run, story: list[Any]) -> None:
    for number, ((step, *arguments), pause) in enumerate(copy.deepcopy(story)):
        getattr(run, step)(*([number] if step == "capture" else []), *arguments)
        if pause > 40:
            run.real.now += pause
            run.real.backend.clean(pause)
    assert run.real.everything() == seen(run.model, run.real.now)
    run.check()
    run.real.backend.close()


@pytest.mark.parametrize(
    "change", [("write", "w-aggregating", 1, "w1", 1, 0), ("merge", "w-aggregating", 1)]
)
def test_unwritten_snapshot_has_no_later_change_though_a_later_snapshot_is_written(
    change: Any,
) -> None:
    """The first capture finds a table of which all places have changed."""
    writes = [("write", "w-aggregating", 1, window, "text", 0) for window in WINDOWS]
    steps = [("snapshot",), *writes, ("capture", 0), ("snapshot",), change]
    check_story(Run(), [(step, 0) for step in steps])


@on_every_backend
@pytest.mark.parametrize("kind", ["value", "list", "map", "reducing", "aggregating"])
def test_snapshot_written_by_a_thread_has_no_concurrent_changes_of_the_task(kind: str) -> None:
    real = Backend()
    real.open()
    expected = {}

    def touch(key: int, number: int) -> None:
        handle = real.handle(kind, key, "")
        if kind == "value":
            handle.update([number])
        elif kind == "map":
            handle.put(number, [number])
        else:
            handle.add([number])

    for key in range(5_000):
        touch(key, key)
        expected[key] = real.read(kind, key, "")
    captured = real.backend.capture()
    written: list[KeyedSnapshot] = []
    writer = threading.Thread(target=lambda: written.append(captured.write()))
    writer.start()
    for key in range(0, 10_000, 3):
        touch(key, -1)
        if key % 2:
            real.handle(kind, key // 2, "").clear()
    writer.join()
    restored = Backend()
    restored.backend.restore(written)
    restored.open()
    found = {key: restored.read(kind, key, "") for key in restored.backend.keys(kind)}
    assert found == expected
