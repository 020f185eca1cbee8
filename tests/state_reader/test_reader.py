"""State that is read without its job."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flinkray.checkpoint.handles import (
    KeyedStateHandle,
    KeyedStatePart,
    OperatorStateHandle,
    OperatorSubtaskState,
)
from flinkray.checkpoint.layout import JobCheckpointStorage
from flinkray.checkpoint.metadata import (
    CheckpointedOperator,
    CheckpointedSubtask,
    CheckpointMetadata,
    SnapshotKind,
)
from flinkray.checkpoint.metadata_file import write_metadata
from flinkray.checkpoint.state_format import (
    read_keyed_state,
    write_keyed_state,
    write_operator_state,
)
from flinkray.core.durations import Duration
from flinkray.core.ids import JobID
from flinkray.core.key_group_ranges import KeyGroupRange, key_group_range
from flinkray.datastream import Row
from flinkray.state import (
    HeapKeyedStateBackend,
    KeyContext,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    ValueStateDescriptor,
)
from flinkray.state.key_encoding import encode_key
from flinkray.state.key_group_assignment import key_group_of
from flinkray.state.key_values import as_key
from flinkray.state.kv_state_serializer import (
    deserialize_keys_and_namespace,
    serialize_keys_and_namespace,
)
from flinkray.state.table import MISSING, PointReader
from flinkray.state.ttl import StateTtlConfig
from flinkray.state_reader import KeyedEntry, SavepointReader, StateNotFoundError, StoredTimer

JOB = JobID(b"j" * 16)
GROUPS = 16
PARALLELISM = 2


class Window(NamedTuple):
    start: int
    end: int


@dataclass
class Total:
    count: int
    total: float


class Subtask:
    """Keyed state of every shape, with what a naive reader would find."""

    def __init__(self, number: int) -> None:
        self.groups = key_group_range(GROUPS, PARALLELISM, number)
        self.backend = HeapKeyedStateBackend(GROUPS, self.groups, now=lambda: 5_000)
        expiring: Any = ValueStateDescriptor("expiring")
        ttl = StateTtlConfig.new_builder(Duration.of_days(1)).build()
        expiring.enable_time_to_live(ttl)
        expiring_list: Any = ListStateDescriptor("expiring list")
        expiring_list.enable_time_to_live(ttl)
        expiring_map: Any = MapStateDescriptor("expiring map")
        expiring_map.enable_time_to_live(ttl)
        self.window = KeyContext()
        self.states: dict[str, Any] = {
            "value": self.backend.state(ValueStateDescriptor("value")),
            "list": self.backend.state(ListStateDescriptor("list")),
            "map": self.backend.state(MapStateDescriptor("map")),
            "windows": self.backend.state(ValueStateDescriptor("windows"), self.window),
            "expiring": self.backend.state(expiring),
            "expiring list": self.backend.state(expiring_list),
            "expiring map": self.backend.state(expiring_map),
        }
        self.timers = self.backend.timer_queue("event-time")

    def put(self, name: str, key: Any, namespace: Any, value: Any) -> None:
        state = self.states[name]
        self.backend.context.key, self.window.key = key, (key, namespace)
        if value is None:
            state.clear()
        elif "list" in name:
            state.update(value)
        elif "map" in name:
            state.clear()
            state.put_all(value)
        else:
            state.update(value)


class Checkpoint:
    """Written by two subtasks, each in several parts."""

    def __init__(self, folder: Path) -> None:
        self.storage = JobCheckpointStorage(str(folder), JOB, 200)
        self.subtasks = [Subtask(number) for number in range(PARALLELISM)]
        self.parts: list[list[KeyedStatePart]] = [[], []]
        self.operator_state: list[OperatorStateHandle] = []

    def of_key(self, key: Any) -> Subtask:
        return next(s for s in self.subtasks if key_group_of(key, GROUPS) in s.groups)

    def write(self) -> None:
        """Another part of each subtask."""
        for subtask, parts in zip(self.subtasks, self.parts, strict=True):
            number = len(parts)
            capture = subtask.backend.capture(number + 1, number or None)
            with self.storage.checkpoint_writer(1).shared() as output:
                location = write_keyed_state(capture.write(), output)
            parts.append(KeyedStatePart(location, number == 0))

    def add_operator_state(self, elements: list[Any], union: list[Any], rules: Any) -> None:
        """Of one subtask."""
        backend = OperatorStateBackend()
        backend.list_state(ListStateDescriptor("elements")).update(elements)
        backend.union_list_state(ListStateDescriptor("union")).update(union)
        backend.broadcast_state(MapStateDescriptor("rules")).put_all(rules)
        snapshot = backend.snapshot()
        assert snapshot is not None
        with self.storage.checkpoint_writer(1).exclusive() as output:
            self.operator_state.append(write_operator_state(snapshot, output))

    def complete(self) -> str:
        """Its directory."""
        states = []
        for number, (subtask, parts) in enumerate(zip(self.subtasks, self.parts, strict=True)):
            groups = subtask.groups
            keyed = (KeyedStateHandle(groups.first, groups.last, tuple(parts)),) if parts else ()
            own = tuple(self.operator_state[number : number + 1])
            states.append(CheckpointedSubtask(number, OperatorSubtaskState(own, keyed)))
        operator = CheckpointedOperator(
            "7" * 32, "tally", "tally", PARALLELISM, GROUPS, tuple(states)
        )
        nameless = CheckpointedOperator("8" * 32, "map", None, 1, GROUPS)
        metadata = CheckpointMetadata(JOB, 1, 0, SnapshotKind.SAVEPOINT, (operator, nameless))
        directory = self.storage.checkpoint_directory(1)
        write_metadata(directory, metadata)
        return directory


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(tmp_path)


KEYS = st.one_of(st.integers(-3, 3), st.sampled_from(["a", "b"]), st.tuples(st.booleans()))
VALUES = {
    "value": st.one_of(st.integers(), st.text(max_size=3)),
    "list": st.lists(st.integers(), min_size=1, max_size=3),
    "map": st.dictionaries(st.text(max_size=2), st.integers(), min_size=1, max_size=3),
}
NAMES = ["value", "list", "map", "windows", "expiring", "expiring list", "expiring map"]


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[str, Any, Any, Any]]:
    """State, key, window, and what is there from then on; None: nothing."""
    made = []
    for _ in range(draw(st.integers(0, 12))):
        name = draw(st.sampled_from(NAMES))
        shape = name.split()[-1] if name.split()[-1] in VALUES else "value"
        window = Window(draw(st.integers(0, 1)), 9) if name == "windows" else None
        value = draw(st.one_of(st.none(), VALUES[shape]))
        made.append((name, draw(KEYS), window, value))
    return made


@given(st.lists(changes(), min_size=1, max_size=4))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reader_of_incremental_checkpoints_shows_the_latest_value_of_each_entry(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[str, Any, Any, Any]]]
) -> None:
    checkpoint = Checkpoint(tmp_path_factory.mktemp("checkpoint"))
    expected: dict[Any, Any] = {}
    for part in parts:
        for name, key, window, value in part:
            checkpoint.of_key(key).put(name, key, window, value)
            expected[name, key, window] = value
        checkpoint.write()
    reader = SavepointReader(checkpoint.complete())
    found = {
        (name, entry.key, entry.namespace): entry.value
        for name in reader.keyed_states("tally")
        for entry in reader.keyed_entries("tally", name)
    }
    assert found == {place: value for place, value in expected.items() if value is not None}


def test_keyed_state_is_read_as_an_arrow_table(checkpoint: Checkpoint) -> None:
    for key in range(4):
        checkpoint.of_key(key).put("value", key, None, Total(key, key / 2))
        checkpoint.of_key(key).put("windows", key, Window(key, key + 10), Row(name="n", number=key))
        checkpoint.of_key(key).put("map", key, None, {"x": key})
    checkpoint.write()
    reader = SavepointReader(checkpoint.complete())
    totals = reader.keyed_state("tally", "value").sort_by("key")
    assert totals.to_pylist() == [
        {"key": key, "value": {"count": key, "total": key / 2}} for key in range(4)
    ]
    windows = reader.keyed_state("tally", "windows").sort_by("key")
    assert windows.column("namespace").to_pylist()[1] == {"start": 1, "end": 11}
    assert windows.column("value").to_pylist()[1] == {"name": "n", "number": 1}
    maps = reader.keyed_state("tally", "map")
    assert maps.schema.field("value").type == pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.int64())])
    )


def test_reader_shows_only_timers_that_were_not_removed(checkpoint: Checkpoint) -> None:
    for key in ("a", "b", "c"):
        checkpoint.of_key(key).timers.add(ord(key), key, None)
    checkpoint.write()
    checkpoint.of_key("a").timers.discard(ord("a"), "a", None)
    checkpoint.write()
    reader = SavepointReader(checkpoint.complete())
    expected = [StoredTimer(98, "b", None), StoredTimer(99, "c", None)]
    assert reader.timers("tally") == {"event-time": expected}


def test_savepoint_reader_combines_the_operator_state_of_all_subtasks(
    checkpoint: Checkpoint,
) -> None:
    checkpoint.add_operator_state([1, 2], ["x"], {"r": Total(1, 1.0)})
    checkpoint.add_operator_state([3], ["y"], {"r": Total(1, 1.0)})
    reader = SavepointReader(checkpoint.complete())
    assert reader.operator_states("tally") == {
        "elements": "list",
        "union": "union",
        "rules": "broadcast",
    }
    assert reader.list_state("tally", "elements") == [1, 2, 3]
    assert reader.list_state("7" * 32, "union") == ["x", "y"]
    assert reader.broadcast_state("tally", "rules") == {"r": Total(1, 1.0)}


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda r: r.timers("talli"), f"no operator 'talli'; it has 'tally', '{'8' * 32}'"),
        (
            lambda r: r.keyed_state("tally", "valeu"),
            "operator 'tally' has no keyed state 'valeu'; it has 'expiring', ",
        ),
        (
            lambda r: r.list_state("tally", "rules"),
            "operator 'tally' has no list or union state 'rules'; it has 'elements', 'union'",
        ),
        (
            lambda r: r.broadcast_state("tally", "union"),
            "operator 'tally' has no broadcast state 'union'; it has 'rules'",
        ),
        (
            lambda r: r.list_state("8" * 32, "x"),
            f"operator '{'8' * 32}' has no list or union state 'x'; it has none",
        ),
    ],
)
def test_reading_missing_state_raises_an_error_that_lists_existing_states(
    checkpoint: Checkpoint, read: Any, text: str
) -> None:
    checkpoint.write()
    checkpoint.add_operator_state([], [], {})
    reader = SavepointReader(checkpoint.complete())
    assert reader.operators == ["tally", "8" * 32]
    with pytest.raises(StateNotFoundError, match=text.replace("(", r"\(")):
        read(reader)


def test_keyed_entries_are_read_lazily(checkpoint: Checkpoint) -> None:
    """Not all of a large state is in memory at once."""
    checkpoint.of_key(1).put("value", 1, None, 1)
    checkpoint.write()
    entries = SavepointReader(checkpoint.complete()).keyed_entries("tally", "value")
    assert isinstance(entries, Iterator)
    assert list(entries) == [KeyedEntry(1, None, 1)]


@dataclass(frozen=True)
class Pair:
    left: Any
    right: Any


ZONE = datetime.timezone(datetime.timedelta(hours=2))
ODD_KEYS: list[list[Any]] = [
    [None],
    [math.nan, np.float64("nan"), -math.nan],
    [0, 0.0, -0.0, False, np.int8(0), decimal.Decimal("-0.0")],
    [1, 1.0, True, np.int64(1), decimal.Decimal("1.00")],
    [2**63, float(2**63)],
    [2**53 + 1],
    [float(2**53)],
    [0.1],
    [decimal.Decimal("0.1")],
    [10**400],
    [math.inf],
    [""],
    [b""],
    ["a"],
    [b"a"],
    ["\x00"],
    ["é"],
    ["e\u0301"],
    ["\ud800"],
    ["x" * 100_000],
    ["x" * 99_999 + "y"],
    [b"x" * 100_000],
    [()],
    [(None,)],
    [(1, 2), (1.0, 2), (True, np.int64(2))],
    [(1, (2, math.nan)), (1.0, (2, -math.nan))],
    [("1", 2)],
    [(b"1", 2)],
    [("a\x00", "b")],
    [("a", "\x00b")],
    [Pair(1, 2), Pair(1.0, True + 1)],
    [Pair("a", None)],
    [Pair(math.nan, 1)],
    [datetime.date(2020, 1, 1)],
    [datetime.datetime(2020, 1, 1)],
    [
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
        datetime.datetime(2020, 1, 1, 2, tzinfo=ZONE),
    ],
    [frozenset({1, 2}), frozenset({2.0, 1})],
]
"""Those of one list are one key."""


def test_unusual_keys_are_read_and_queried_after_rescaling_like_keys_of_a_dict(
    checkpoint: Checkpoint,
) -> None:
    chosen = random.Random(1)
    model: dict[int, int] = {}
    for part in range(3):
        for _ in range(100):
            number, value = chosen.randrange(len(ODD_KEYS)), chosen.choice([None, part])
            key = as_key(chosen.choice(ODD_KEYS[number]))
            checkpoint.of_key(key).put("value", key, None, value)
            if value is None:
                model.pop(number, None)
            else:
                model[number] = value
        checkpoint.write()
    reader = SavepointReader(checkpoint.complete())
    numbers = {encode_key(key): n for n, keys in enumerate(ODD_KEYS) for key in keys}
    assert len(set(numbers.values())) == len(ODD_KEYS) == len(numbers)
    entries = [
        (numbers[encode_key(e.key)], e.value) for e in reader.keyed_entries("tally", "value")
    ]
    assert sorted(entries) == sorted(model.items())
    handles = tuple(reader._keyed_handles(reader._operator("tally")))
    for parallelism in (1, 3):
        found: dict[int, int] = {}
        for number in range(parallelism):
            groups = key_group_range(GROUPS, parallelism, number)
            backend = HeapKeyedStateBackend(GROUPS, groups, now=lambda: 5_000)
            backend.restore(list(read_keyed_state(handles, groups)))
            found |= queried(backend, groups)
        assert found == model


def queried(backend: HeapKeyedStateBackend, groups: KeyGroupRange) -> dict[int, int]:
    """What a client finds, under any name that a key has."""
    readers: list[PointReader] = []
    backend.publish = lambda _, table: readers.append(table.point_reader())
    descriptor: ValueStateDescriptor[int] = ValueStateDescriptor("value")
    descriptor.set_queryable("query")
    backend.state(descriptor)
    found: dict[int, int] = {}
    for number, keys in enumerate(ODD_KEYS):
        mine = [key for key in map(as_key, keys) if key_group_of(key, GROUPS) in groups]
        sent, _ = deserialize_keys_and_namespace(serialize_keys_and_namespace(mine))
        answers = readers[0](sent)
        assert len(mine) in (0, len(keys))
        assert all(answer == answers[0] for answer in answers)
        if answers and answers[0] is not MISSING:
            found[number] = answers[0]
    return found


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["a", b"a"], "both bytes and texts"),
        ([("a", 1), (b"a", 1)], "both bytes and texts"),
        ([datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 5)], "days and times without"),
        ([(1,), (1, None)], "tuples of 1 and 2"),
        ([1, 2**63], "too large"),
    ],
)
def test_savepoint_table_is_refused_if_different_keys_became_equal_in_its_column(
    checkpoint: Checkpoint, keys: list[Any], told: str
) -> None:
    for key in keys:
        checkpoint.of_key(key).put("value", key, None, 1)
    checkpoint.write()
    reader = SavepointReader(checkpoint.complete())
    with pytest.raises(pa.ArrowInvalid, match=told):
        reader.keyed_state("tally", "value")
    assert len(list(reader.keyed_entries("tally", "value"))) == 2
