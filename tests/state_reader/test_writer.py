"""Savepoints that are written from data."""

from __future__ import annotations

import os
import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flinkray.checkpoint.errors import CheckpointStorageError
from flinkray.checkpoint.metadata_file import read_metadata
from flinkray.checkpoint.state_format import read_keyed_state
from flinkray.core import private_files
from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.datastream import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.state import (
    HeapKeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateMigrationError,
    ValueStateDescriptor,
)
from flinkray.state.key_encoding import UnsupportedKeyError
from flinkray.state.key_group_assignment import KEY_KINDS
from flinkray.state_reader import BootstrapError, SavepointReader, SavepointWriter
from flinkray.streaming.program.graph import operator_id_of

TOTALS: Any = ValueStateDescriptor("totals")
NAMES: Any = MapStateDescriptor("names")
TRAIL: Any = ListStateDescriptor("trail")


def test_states_of_a_written_savepoint_are_read_back(tmp_path: Path) -> None:
    table = pa.table({"key": ["a", "b"], "value": [1, 2]})
    location = (
        SavepointWriter(max_parallelism=7)
        .with_keyed_state("tally", TOTALS, table)
        .with_keyed_state("tally", NAMES, [("a", {"x": 1})])
        .with_keyed_state("other", TRAIL, [(number, [number, "x" * 100]) for number in range(999)])
        .with_list_state("other", ListStateDescriptor("splits"), [1, 2])
        .with_union_list_state("other", ListStateDescriptor("all"), [3])
        .with_broadcast_state("other", MapStateDescriptor("rules"), {"r": 4})
        .write(str(tmp_path))
    )
    reader = SavepointReader(location)
    assert reader.operators == ["tally", "other"]
    assert reader.keyed_state("tally", "totals").sort_by("key") == table
    names = reader.keyed_state("tally", "names")
    assert names.column("value").to_pylist() == [[{"key": "x", "value": 1}]]
    trails = {entry.key: entry.value for entry in reader.keyed_entries("other", "trail")}
    assert trails == {number: [number, "x" * 100] for number in range(999)}
    assert reader.list_state("other", "splits") == [1, 2]
    assert reader.list_state("other", "all") == [3]
    assert reader.broadcast_state("other", "rules") == {"r": 4}
    again = SavepointWriter().with_keyed_state("tally", NAMES, names).write(str(tmp_path))
    assert SavepointReader(again).keyed_state("tally", "names") == names
    assert again != location


@pytest.mark.parametrize(
    ("descriptor", "entries", "column"),
    [
        (TOTALS, [("a", (1, 2))], "value"),
        (TOTALS, [("a", {"x": 1})], "value"),
        (TOTALS, [("a", [(1, 2)])], "value"),
        (TOTALS, [((1, 2), 1)], "key"),
        (NAMES, [("a", {"x": {"y": 1}})], "value"),
        (NAMES, [("a", {"x": (1, 2)})], "value"),
    ],
)
def test_state_table_that_would_lose_python_types_is_refused_and_pairs_keep_types(
    descriptor: Any, entries: list[tuple[Any, Any]], column: str, tmp_path: Path
) -> None:
    """Tuples became dictionaries, and dictionaries became lists."""
    written = SavepointWriter().with_keyed_state("tally", descriptor, entries)
    reader = SavepointReader(written.write(str(tmp_path)))
    table = reader.keyed_state("tally", descriptor.name)
    with pytest.raises(BootstrapError, match=f"the column {column} is of .*keyed_entries"):
        SavepointWriter().with_keyed_state("tally", descriptor, table)
    pairs = [(e.key, e.value) for e in reader.keyed_entries("tally", descriptor.name)]
    again = SavepointWriter().with_keyed_state("tally", descriptor, pairs).write(str(tmp_path))
    found = SavepointReader(again).keyed_entries("tally", descriptor.name)
    assert [(e.key, e.value) for e in found] == entries


class Counting(KeyedProcessFunction[Any, Any, Any]):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def test_uid_gives_the_same_operator_id_in_savepoint_and_program() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1]).key_by(lambda v: v).process(Counting()).uid("counts")
    stream.print()
    graph = env.get_stream_graph()
    (node,) = (node for node in graph.nodes if node.uid == "counts")
    assert graph.operator_ids()[node.id] == operator_id_of("counts")


def test_written_keys_of_a_declared_type_are_refused_by_jobs_with_another_key_type(
    tmp_path: Path,
) -> None:
    entries = [(key, 100) for key in range(-10, 0)]
    writer = SavepointWriter(128).with_keyed_state("tally", TOTALS, entries, Types.INT())
    metadata = read_metadata(writer.write(str(tmp_path)))
    [operator] = metadata.operators
    everything = KeyGroupRange(0, 127)
    parts = list(read_keyed_state(operator.subtasks[0].state.keyed_state, everything))
    backend = HeapKeyedStateBackend(128, everything, hash_of=KEY_KINDS["INT"].hash_of)
    backend.restore(parts)
    state, backend.context.key = backend.state(TOTALS), -3
    assert state.value() == 100
    other = HeapKeyedStateBackend(128, everything)
    other.restore(parts)
    with pytest.raises(StateMigrationError, match="with_keyed_state of a SavepointWriter the one"):
        other.state(TOTALS)
    with pytest.raises(UnsupportedKeyError, match="'a' is no INT"):
        writer.with_keyed_state("tally", TOTALS, [("a", 1)], Types.INT())


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda w: w.write("/nowhere"), "a savepoint without any state"),
        (lambda w: SavepointWriter(0), "a max parallelism is from 1 to 32768, got 0"),
        (
            lambda w: w.with_keyed_state("tally", TOTALS, [("a", None)]),
            "state 'totals' of 'tally': the key 'a' has no value",
        ),
        (
            lambda w: w.with_keyed_state("tally", TOTALS, pa.table({"key": [1], "v": [1]})),
            "state 'totals': a table must have the columns key and value, and it has key, v",
        ),
        (
            lambda w: w.with_keyed_state("tally", ReducingStateDescriptor("sum", max), [("a", 1)]),
            "state 'sum': only values, lists and maps can be written, and it is reducing state",
        ),
        (
            lambda w: w.with_keyed_state("tally", TOTALS, [(1, 1)], Types.INT()).with_keyed_state(
                "tally", NAMES, [(1, {})]
            ),
            "the states of 'tally' have keys of one type, .* none: give all of them the key_type",
        ),
    ],
)
def test_invalid_state_for_a_savepoint_is_refused(write: Any, text: str) -> None:
    with pytest.raises(BootstrapError, match=text):
        write(SavepointWriter())


def test_savepoint_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    """The second of two operators is too large for the storage, which is limited to what a process
    may write into one file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = SavepointWriter().with_keyed_state("small", TOTALS, [(1, os.urandom(60_000))])
    writer.with_keyed_state("large", TOTALS, [(1, os.urandom(400_000))])
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))
    try:
        with pytest.raises(CheckpointStorageError):
            writer.write(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("given", "of_cluster", "modes"),
    [
        (None, "", (0o600, 0o700)),
        (None, "group", (0o640, 0o750)),
        ("group", "owner", (0o640, 0o750)),
        ("owner", "group", (0o600, 0o700)),
    ],
)
def test_savepoint_files_have_the_configured_permissions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    of_cluster: str,
    modes: tuple[int, int],
) -> None:
    monkeypatch.setenv("FLINKRAY_STORAGE_PERMISSIONS", "")
    if of_cluster:
        private_files.permit(of_cluster)
    entries = [(number, [number, "x" * 100]) for number in range(9999)]
    writer = SavepointWriter().with_keyed_state("tally", TRAIL, entries)
    location = Path(writer.write(str(tmp_path), given))
    found = [location, *location.rglob("*")]
    assert len(found) > 2
    assert {(path.name, stat.S_IMODE(path.stat().st_mode)) for path in found} == {
        (path.name, modes[path.is_dir()]) for path in found
    }


def test_unknown_permissions_for_a_savepoint_are_refused(tmp_path: Path) -> None:
    writer = SavepointWriter().with_keyed_state("tally", TOTALS, [("a", 1)])
    with pytest.raises(BootstrapError, match="owner or group, got 'all'"):
        writer.write(str(tmp_path), "all")
    assert list(tmp_path.iterdir()) == []
