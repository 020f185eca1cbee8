"""Numbers of keys in arrays: slots, growth, snapshots by key group."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.errors import StateError
from flinkray.state.keys import KeyGroupAssigner, key_group_of

ALL = KeyGroupRange(0, 127)
GROUP_OF = KeyGroupAssigner(128)
KEYS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.text(max_size=4),
    st.floats(),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
    st.none(),
)


def contents(table: ColumnarTable, name: str) -> dict[str, Any]:
    return dict(zip(table.keys, table.values(name).tolist(), strict=True))


def test_keys_get_slots_in_the_order_in_which_they_come() -> None:
    table = ColumnarTable()
    table.column("n", np.int64, 7)
    assert table.slots_of(["a", "b", "a"]).tolist() == [0, 1, 0]
    assert table.slots_of_column(pa.array(["c", "b"])).tolist() == [2, 1]
    assert table.keys == ["a", "b", "c"]
    table.values("n")[[0, 0, 2]] += 1
    assert table.values("n").tolist() == [8, 7, 8]


def test_arrays_grow_with_their_defaults() -> None:
    table = ColumnarTable()
    table.column("n", np.float64, -1.5)
    table.slots_of([0])
    table.values("n")[0] = 3
    table.slots_of(range(5000))
    table.column("late", np.int8, 1)
    assert table.values("n").tolist() == [3, *[-1.5] * 4999]
    assert table.values("late").tolist() == [1] * 5000


def test_a_column_has_one_type() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.column("n", "int64")
    with pytest.raises(StateError, match=r"holds int64.*as float64"):
        table.column("n", np.float64)
    with pytest.raises(StateError, match=r"0 at first.*1 at first"):
        table.column("n", np.int64, 1)


@given(st.lists(KEYS, max_size=40), st.integers(0, 127))
def test_a_snapshot_is_divided_by_key_group(keys: list[Any], border: int) -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    slots = table.slots_of(keys)
    np.add.at(table.values("n"), slots, 1)
    capture = table.capture()
    before = contents(table, "n")
    table.values("n")[:] = -1
    table.slots_of(["another"])
    stored = pickle.loads(pickle.dumps(dict(capture.write(GROUP_OF))))
    found: dict[str, Any] = {}
    for own in (KeyGroupRange(0, border), KeyGroupRange(border + 1, 127)):
        part = ColumnarTable()
        part.restore([stored], own)
        part.column("n", np.int64)
        assert all(key_group_of(key, 128) in own for key in part.keys)
        found |= contents(part, "n")
    assert found == before


def changes(table: ColumnarTable, checkpoint_id: int, since: int) -> dict[str, Any]:
    restored = ColumnarTable()
    restored.restore([table.capture(checkpoint_id, since).write(GROUP_OF)], ALL)
    restored.column("n", np.int64)
    return contents(restored, "n")


def test_changes_are_those_of_keys_that_have_come_since() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.slots_of(["a", "b"])
    assert changes(table, 1, since=0) == {"a": 0, "b": 0}
    assert changes(table, 2, since=1) == {}
    table.values("n")[table.slots_of(["b"])] = 5
    assert changes(table, 3, since=2) == {"b": 5}
    table.slots_of(["c"])
    table.capture()
    assert changes(table, 4, since=2) == {"b": 5, "c": 0}
    assert changes(table, 5, since=3) == {"c": 0}
    assert changes(table, 6, since=2) == {"a": 0, "b": 5, "c": 0}, "it was forgotten"


def test_captures_that_others_may_begin_at_are_remembered_within_bounds() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.slots_of(["a"])
    for checkpoint_id in range(1002):
        table.capture(checkpoint_id)
    assert changes(table, 2000, since=1) == {"a": 0}
    assert changes(table, 2001, since=1001) == {}


def test_what_has_changed_is_restored_over_what_was() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    slots = table.slots_of(["a", "b"])
    table.values("n")[slots] = 1
    first = table.capture(1).write(GROUP_OF)
    table.values("n")[slots[1]] = 2
    table.slots_of(["b"])
    second = table.capture(2, since=1).write(GROUP_OF)
    restored = ColumnarTable()
    restored.restore([first, second], ALL)
    restored.column("n", np.int64)
    assert contents(restored, "n") == {"a": 1, "b": 2}


def test_a_restored_column_keeps_its_type() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.slots_of(["a"])
    restored = ColumnarTable()
    restored.restore([table.capture().write(GROUP_OF)], ALL)
    with pytest.raises(StateError, match="stored as int64 and is asked for as float64"):
        restored.column("n", np.float64)
    restored.column("m", np.int64)
    with pytest.raises(StateError, match="before its columns are used"):
        restored.restore([table.capture().write(GROUP_OF)], ALL)


def test_columns_that_nobody_asks_for_stay() -> None:
    table = ColumnarTable()
    table.column("n", np.int64, 3)
    table.slots_of(["a"])
    second = ColumnarTable()
    second.restore([table.capture().write(GROUP_OF)], ALL)
    second.slots_of(["c"])
    third = ColumnarTable()
    third.restore([second.capture().write(GROUP_OF)], ALL)
    third.slots_of(["b"])
    third.column("n", np.int64, 4)
    assert contents(third, "n") == {"a": 3, "b": 4, "c": 4}
