"""Keyed state in files: read by ranges of key groups, checked, and the same after rescaling."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.checkpoint.errors import (
    CheckpointStorageError,
    CorruptCheckpointError,
    UnknownCheckpointFormatError,
)
from flinkray.checkpoint.handles import (
    FileState,
    InlineState,
    KeyedStateHandle,
    KeyedStatePart,
    StateLocation,
)
from flinkray.checkpoint.state_files import StateInput, StateOutput, open_state
from flinkray.checkpoint.state_format import (
    StoredSnapshot,
    StoredTable,
    _from_1,
    read_keyed_state,
    read_keyed_state_header,
    write_keyed_state,
    write_keyed_state_if_any,
)
from flinkray.core.key_group_ranges import KeyGroupRange, key_group_range
from flinkray.state import (
    ArrayStateDescriptor,
    HeapKeyedStateBackend,
    KeyContext,
    KeyedSnapshot,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from flinkray.state.errors import StateError
from flinkray.state.key_group_assignment import key_group_of
from flinkray.state.snapshots import (
    ColumnarSnapshot,
    Section,
    SectionKind,
    SerializerSnapshot,
    SnapshotBody,
    SnapshotContents,
    SnapshotStream,
    collected,
)

GROUPS = 16
NAMES = ["value", "list", "map", "of windows"]


class Counting:
    """A file that writes down what is read of it."""

    name = "a counted file"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return self._data[offset : offset + length]


class Backend:
    """One subtask's, with a state of each kind."""

    def __init__(self, groups: KeyGroupRange, parts: Iterable[SnapshotStream] = ()) -> None:
        self.backend = HeapKeyedStateBackend(GROUPS, groups)
        self.backend.restore(parts)
        self.window = KeyContext()
        self.states: dict[str, Any] = {
            "value": self.backend.state(ValueStateDescriptor("value")),
            "list": self.backend.state(ListStateDescriptor("list")),
            "map": self.backend.state(MapStateDescriptor("map")),
            "of windows": self.backend.state(ValueStateDescriptor("of windows"), self.window),
        }
        self.timers = self.backend.timer_queue("timers")
        self.array = self.backend.array_state(ArrayStateDescriptor("numbers", np.int64))

    def put(self, name: str, key: Any, number: int) -> None:
        self.backend.context.key, self.window.key = key, (key, number % 2)
        if name == "list":
            self.states[name].add(number)
        elif name == "map":
            self.states[name].put(number, str(number))
        else:
            self.states[name].update(number)

    def everything(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for name, state in self.states.items():
            for key in self.backend.keys(name):
                for window in (0, 1) if name == "of windows" else (0,):
                    self.backend.context.key, self.window.key = key, (key, window)
                    if name == "map":
                        contents: Any = dict(state.items())
                    else:
                        contents = state.get() if name == "list" else state.value()
                    if contents is not None:
                        found[name, key, window] = contents
        for timer in self.timers.items():
            found["timer", timer] = True
        columns = self.backend.columns()
        for key, number in zip(columns.keys, self.array.values.tolist(), strict=True):
            found["array", key] = number
        return found


def written(snapshot: KeyedSnapshot, threshold: int = 1 << 30, path: str = "") -> StateLocation:
    with StateOutput(path, threshold) as output:
        return write_keyed_state(snapshot, output)


def read(location: StateLocation, groups: KeyGroupRange) -> KeyedSnapshot:
    return collected(StoredSnapshot(partial(open_state, location), groups))


def read_of(state: StateInput, groups: KeyGroupRange) -> KeyedSnapshot:
    return collected(StoredSnapshot(lambda: nullcontext(state), groups))


def data_of(snapshot: KeyedSnapshot) -> bytes:
    location = written(snapshot)
    assert isinstance(location, InlineState)
    return location.data


def example() -> KeyedSnapshot:
    """State of many keys in every table."""
    backend = Backend(KeyGroupRange(0, GROUPS - 1))
    for number in range(200):
        for name in NAMES:
            backend.put(name, f"key {number}", number)
        backend.timers.add(number, f"key {number}", None)
    slots = backend.backend.columns().slots_of_column(pa.array(range(50)))
    backend.array.values[slots] = np.arange(50) + 1
    return backend.backend.snapshot()


def test_keyed_snapshot_is_read_back_unchanged(tmp_path: Path) -> None:
    snapshot = example()
    path = str(tmp_path / "state")
    for threshold in (0, 1 << 30):
        location = written(snapshot, threshold, path)
        assert isinstance(location, FileState if threshold == 0 else InlineState)
        assert read(location, snapshot.key_groups) == snapshot


def test_header_of_a_keyed_state_file_names_all_tables_timers_columns_and_groups() -> None:
    header = read_keyed_state_header(Counting(data_of(example())))
    assert [(table.name, table.kind, table.namespaced) for table in header.tables] == [
        ("value", "value", False),
        ("list", "list", False),
        ("map", "map", False),
        ("of windows", "value", True),
    ]
    assert header.timers == ("timers",)
    assert [(table.name, table.kind, table.namespaced) for table in header.columns] == [
        ("arrays", "numbers", False)
    ]
    assert header.key_groups == KeyGroupRange(0, GROUPS - 1)


def test_subtask_reads_only_the_file_ranges_of_its_own_key_groups() -> None:
    snapshot = example()
    data = data_of(snapshot)
    read_bytes = 0
    for subtask in range(4):
        groups = key_group_range(GROUPS, 4, subtask)
        file = Counting(data)
        found = read_of(file, groups)
        assert found.key_groups == groups
        sections = [
            *(table.groups for table in found.tables.values()),
            *found.timers.values(),
            *(table.groups for table in found.columns.values()),
        ]
        wanted = sum(
            len(payload)
            for section in sections
            for group, payload in section.items()
            if group in groups
        )
        assert all(group in groups for section in sections for group in section)
        footer, (_, length) = file.reads[0], file.reads[-1]
        assert sum(footer) == len(data)
        assert len(file.reads) == 2
        assert length == wanted
        read_bytes += length
    assert read_bytes < len(data)
    nothing = Counting(data)
    read_of(nothing, KeyGroupRange(GROUPS, 2 * GROUPS))
    assert len(nothing.reads) == 1


def test_large_keyed_state_is_read_by_several_small_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flinkray.checkpoint.state_format._LARGEST_READ", 1_000)
    snapshot = example()
    file = Counting(data_of(snapshot))
    assert read_of(file, snapshot.key_groups) == snapshot
    assert len(file.reads) > 5
    assert max(length for _, length in file.reads[1:]) <= 1_000


def test_footer_larger_than_the_first_request_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flinkray.checkpoint.state_format._FEW", 40)
    snapshot = example()
    file = Counting(data_of(snapshot))
    assert read_of(file, snapshot.key_groups) == snapshot
    assert len(file.reads) == 3


class InParts(SnapshotStream):
    """Bodies as somebody has them who never has everything in memory."""

    def __init__(self, snapshot: KeyedSnapshot, groups: list[int]) -> None:
        self.key_groups = snapshot.key_groups
        self._snapshot = snapshot
        self._groups = groups
        self.are_taken = False

    def bodies(self) -> Iterator[SnapshotBody]:
        of_group: dict[int, list[SnapshotBody]] = {}
        for body in self._snapshot.bodies():
            of_group.setdefault(body.key_group, []).append(body)
        for group in self._groups:
            for body in of_group.get(group, []):
                half = len(body.payload) // 2
                yield body._replace(payload=body.payload[:half])
                yield body._replace(payload=body.payload[half:])
        self.are_taken = True

    def contents(self) -> SnapshotContents:
        assert self.are_taken, "only then it is known which types of values there are"
        return self._snapshot.contents()


def test_keyed_state_written_in_portions_is_read_in_the_order_of_its_key_groups() -> None:
    snapshot = example()
    with StateOutput("", 1 << 30) as output:
        location = write_keyed_state(InParts(snapshot, list(range(GROUPS))), output)
    assert read(location, snapshot.key_groups) == snapshot
    stored = StoredSnapshot(partial(open_state, location), KeyGroupRange(3, 5))
    bodies = list(stored.bodies())
    assert [body.key_group for body in bodies] == sorted(body.key_group for body in bodies)
    assert {body.key_group for body in bodies} == {3, 4, 5}
    assert bodies[0].section == Section(SectionKind.TABLE, "value")


def test_writing_keyed_state_with_key_groups_out_of_order_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="key group 1 comes after 2"),
        StateOutput("", 1 << 30) as output,
    ):
        write_keyed_state(InParts(example(), [2, 1]), output)


def test_snapshot_without_keyed_state_writes_no_state_file(tmp_path: Path) -> None:
    nothing = HeapKeyedStateBackend(GROUPS).snapshot()
    with StateOutput(str(tmp_path / "state"), 0) as output:
        assert write_keyed_state_if_any(nothing, output) is None
    assert list(tmp_path.iterdir()) == []
    with StateOutput(str(tmp_path / "state"), 0) as output:
        assert write_keyed_state_if_any(example(), output) is not None


def small() -> bytes:
    backend = Backend(KeyGroupRange(0, GROUPS - 1))
    backend.put("value", "a", 1)
    backend.put("list", "b", 2)
    backend.timers.add(5, "c", None)
    return data_of(backend.backend.snapshot())


def damaged_files() -> Iterator[tuple[int, bytes]]:
    data = small()
    for place in range(len(data)):
        yield place, data[:place]
        for bit in (1, 0x80):
            flipped = bytearray(data)
            flipped[place] ^= bit
            yield place, bytes(flipped)
    yield len(data), data + b"x"


def test_any_damage_to_a_keyed_state_file_raises_an_error_with_its_path() -> None:
    for place, data in damaged_files():
        with pytest.raises(CheckpointStorageError) as caught:
            read_of(Counting(data), KeyGroupRange(0, GROUPS - 1))
        assert type(caught.value) in (CorruptCheckpointError, UnknownCheckpointFormatError)
        assert caught.value.path == "a counted file"
        if len(data) == len(small()) and place < len(data) - len(b"?flinkray keyed state\n"):
            assert type(caught.value) is CorruptCheckpointError


def test_error_says_if_a_file_is_of_another_kind_or_a_newer_version() -> None:
    data = bytearray(small())
    data[-1 - len(b"flinkray keyed state\n")] = 3
    with pytest.raises(UnknownCheckpointFormatError, match=r"version 3.*the flinkray that wrote"):
        read_of(Counting(bytes(data)), KeyGroupRange(0, 1))
    with pytest.raises(UnknownCheckpointFormatError, match="no such file of flinkray's"):
        read_of(Counting(b"PAR1" + bytes(100)), KeyGroupRange(0, 1))


keys = st.one_of(st.integers(-5, 40), st.text(max_size=2), st.tuples(st.integers(0, 3)))
puts = st.tuples(st.sampled_from(NAMES), keys, st.integers(0, 5))
steps = st.lists(puts, max_size=40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, steps, st.integers(1, 5), st.integers(1, 5), st.lists(keys, max_size=8))
def test_rescaling_keeps_each_value_in_the_owner_of_its_key_group(
    first: list[Any], second: list[Any], before: int, after: int, timers: list[Any]
) -> None:
    """SA-11"""
    model = Backend(KeyGroupRange(0, GROUPS - 1))
    group_of = model.backend.hash_of
    handles: list[KeyedStateHandle] = []
    for subtask in range(before):
        groups = key_group_range(GROUPS, before, subtask)
        backend = Backend(groups)
        parts = []
        for since, story in ((None, first), (1, second)):
            for name, key, number in story:
                if _group(key, group_of) in groups:
                    backend.put(name, key, number)
            for time, key in enumerate(timers):
                if _group(key, group_of) in groups:
                    backend.timers.add(time, key, None)
            capture = backend.backend.capture(1 if since is None else 2, since)
            assert capture.is_whole is (since is None)
            parts.append(KeyedStatePart(written(capture.write()), capture.is_whole))
        handles.append(KeyedStateHandle(groups.first, groups.last, tuple(parts)))
    for name, key, number in [*first, *second]:
        model.put(name, key, number)
    for time, key in enumerate(timers):
        model.timers.add(time, key, None)
    found: dict[Any, Any] = {}
    for subtask in range(after):
        groups = key_group_range(GROUPS, after, subtask)
        mine = Backend(groups, read_keyed_state(handles, groups)).everything()
        assert not mine.keys() & found.keys()
        found |= mine
    assert found == model.everything()


def _group(key: Any, hash_of: Any) -> int:
    return key_group_of(key, GROUPS, hash_of)


@pytest.mark.parametrize("section", [2, 1])
def test_columns_of_keyed_state_format_version_1_are_refused_when_they_are_used(
    section: int,
) -> None:
    """Columns were the last section of version 1. A file without columns is read."""
    body = struct.pack(">HIQQI", 3, section, 0, 5, 0)
    serializer = SerializerSnapshot("columns", 1, None, (), (), ())
    table = StoredTable("value", "value", False, True, serializer)
    fields = {"tables": (table,), "timers": ("timers",), "bodies": body}
    columns = _from_1(fields)["columns"]
    if section == 1:
        assert columns == ()
        return
    (stored,) = columns
    snapshot = ColumnarSnapshot(stored.kind, stored.namespaced, True, None, {3: b"arrow"})
    backend = HeapKeyedStateBackend(GROUPS)
    backend.restore([KeyedSnapshot(KeyGroupRange(0, 15), {}, {}, {stored.name: snapshot})])
    with pytest.raises(StateError, match=r"stored as numbers \(version 1\) and is asked for as n"):
        backend.array_state(ArrayStateDescriptor("numbers", np.int64))


def test_restored_columns_that_no_operator_uses_are_in_the_next_complete_snapshot() -> None:
    groups = KeyGroupRange(0, GROUPS - 1)
    numbers = Backend(groups)
    slots = numbers.backend.columns().slots_of(["a", "b"])
    numbers.array.values[slots] = [1, 2]
    first = numbers.backend.capture(1).write()
    slots = numbers.backend.columns().slots_of(["b", "c"])
    numbers.array.values[slots] = [3, 4]
    second = numbers.backend.capture(2, since=1).write()
    idle = HeapKeyedStateBackend(GROUPS, groups)
    idle.restore([first, second], checkpoint_id=2)
    assert idle.capture(3, since=2).write().columns == {}
    whole = idle.capture(4).write()
    assert Backend(groups, [whole]).everything() == {
        ("array", "a"): 1, ("array", "b"): 3, ("array", "c"): 4,
    }  # fmt: skip
    # They are in those captures, then; and may be asked for.
    slots = idle.columns().slots_of(["c"])
    idle.array_state(ArrayStateDescriptor("numbers", np.int64)).values[slots] = 5
    changes = idle.capture(5, since=4).write()
    assert len(changes.columns["arrays"].groups) == 1
    assert Backend(groups, [whole, changes]).everything() == {
        ("array", "a"): 1, ("array", "b"): 3, ("array", "c"): 5,
    }  # fmt: skip


def test_keyed_state_backend_whose_columns_were_used_refuses_a_restore() -> None:
    backend = HeapKeyedStateBackend(GROUPS)
    backend.columns()
    with pytest.raises(StateError, match="restored before its states are used"):
        backend.restore([])
