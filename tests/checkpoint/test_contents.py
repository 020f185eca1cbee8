"""What people are shown of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flinkray.checkpoint.contents import describe_checkpoint
from flinkray.checkpoint.handles import (
    InlineState,
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
from flinkray.checkpoint.state_format import write_keyed_state, write_operator_state
from flinkray.client.cli import execute
from flinkray.core.ids import JobID
from flinkray.core.key_group_ranges import key_group_range
from flinkray.datastream import Types
from flinkray.state import (
    ArrayStateDescriptor,
    HeapKeyedStateBackend,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorStateBackend,
    ValueStateDescriptor,
)
from flinkray.state.key_group_assignment import key_group_of

JOB = JobID(b"j" * 16)
GROUPS = 16


class Odd:
    """Nothing but pickle covers it."""


def keyed(storage: JobCheckpointStorage, subtask: int) -> KeyedStateHandle:
    """One of two subtasks: a whole snapshot, and a change after it."""
    groups = key_group_range(GROUPS, 2, subtask)
    backend = HeapKeyedStateBackend(GROUPS, groups)
    totals = backend.state(ValueStateDescriptor("totals", Types.LONG()))
    backend.array_state(ArrayStateDescriptor("counts", np.int64))
    backend.timer_queue("windows").add(5, "a", None)
    parts = []
    for number in range(2):
        for key in range(200):
            if key_group_of(key, GROUPS) in groups:
                backend.context.key = key
                totals.update(number)
        if number:
            names: Any = MapStateDescriptor("names", Types.STRING(), Types.PICKLED_BYTE_ARRAY())
            backend.context.key = next(k for k in range(200) if key_group_of(k, GROUPS) in groups)
            backend.state(names).put("x", Odd())
        with storage.checkpoint_writer(3).shared() as output:
            location = write_keyed_state(backend.capture().write(), output)
        parts.append(KeyedStatePart(location, not number))
    return KeyedStateHandle(groups.first, groups.last, tuple(parts))


def splits(storage: JobCheckpointStorage, number: int) -> OperatorStateHandle:
    backend = OperatorStateBackend()
    backend.list_state(ListStateDescriptor("splits")).add_all(list(range(number)))
    snapshot = backend.snapshot()
    assert snapshot is not None
    with storage.checkpoint_writer(3).exclusive() as output:
        return write_operator_state(snapshot, output)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    """Of a checkpoint of two operators."""
    storage = JobCheckpointStorage(str(tmp_path / "root"), JOB, 100)
    source = CheckpointedOperator(
        "5" * 32,
        "Source: numbers",
        None,
        2,
        GROUPS,
        tuple(
            CheckpointedSubtask(i, OperatorSubtaskState((splits(storage, 3),)), i == 1)
            for i in range(2)
        ),
        InlineState(b"enumerator"),
    )
    tally = CheckpointedOperator(
        "7" * 32,
        "tally",
        "of keys",
        2,
        GROUPS,
        tuple(
            CheckpointedSubtask(i, OperatorSubtaskState((), (keyed(storage, i),))) for i in range(2)
        ),
    )
    metadata = CheckpointMetadata(
        JOB, 3, 1_700_000_000_000, SnapshotKind.CHECKPOINT, (source, tally), (), "0.1.0"
    )
    path = storage.checkpoint_directory(3)
    write_metadata(path, metadata)
    return path


def test_description_of_a_checkpoint_combines_the_state_of_all_subtasks(directory: str) -> None:
    contents = describe_checkpoint(directory)
    source, tally = contents.operators
    (splits,) = source.states
    assert (splits.name, splits.kind, splits.is_keyed, splits.elements) == (
        "splits",
        "list",
        False,
        6,
    )
    assert source.finished == (1,)
    assert source.coordinator_size == len(b"enumerator")
    assert tally.key_groups == ((0, 7), (8, 15))
    assert tally.timers == ("windows",)
    counts, names, totals = tally.states
    assert (counts.name, counts.kind, counts.is_keyed) == ("arrays", "numbers", True)
    assert (names.name, names.kind, names.pickled) == ("names", "map", (f"{__name__}.Odd",))
    assert (totals.name, totals.kind, totals.type) == ("totals", "value", "Long")
    root = Path(directory).parent
    files = sum(p.stat().st_size for p in root.rglob("*") if p.is_file() and p.name != "_metadata")
    assert contents.size == files + len(b"enumerator")


def test_checkpoint_show_prints_the_contents_of_a_checkpoint(
    directory: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["checkpoint", "show", directory]) == 0
    shown = capsys.readouterr().out
    for line in (
        "checkpoint  3",
        f"job         {JOB.hex()}",
        "written by  flinkray 0.1.0",
        f"tally (uid of keys, id {'7' * 32})",
        f"Source: numbers (without a uid, id {'5' * 32})",
        "  finished: subtask 1",
        "  key groups: 0-7, 8-15",
        "  operator list 'splits' (6 elements)",
        "  keyed value 'totals' of Long",
        f"  keyed map 'names' of (String, any) (pickled: {__name__}.Odd)",
        "  timers 'windows'",
    ):
        assert line in shown.splitlines(), shown
    assert execute(["checkpoint", "show", "--json", directory]) == 0
    assert json.loads(capsys.readouterr().out)["operators"][1]["uid"] == "of keys"


def test_checkpoints_in_a_directory_are_listed(
    directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute(["checkpoint", "list", str(tmp_path / "root")]) == 0
    assert capsys.readouterr().out == f"{directory}\n"
    (tmp_path / "empty").mkdir()
    assert execute(["checkpoint", "list", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == "no checkpoints\n"


def test_checkpoint_show_names_the_missing_or_damaged_file(
    directory: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert execute(["checkpoint", "show", str(tmp_path / "nowhere")]) == 1
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    (shared, *_) = (Path(directory).parent / "shared").iterdir()
    shared.write_bytes(shared.read_bytes()[:30])
    assert execute(["checkpoint", "show", directory]) == 1
    assert str(shared) in capsys.readouterr().err
