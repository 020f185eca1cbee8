"""Tables whose values are columns, or rows of columns."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.state.columnar_snapshots import RestoredColumns
from flinkray.state.columnar_table import ColumnarTable
from flinkray.state.errors import StateError
from flinkray.state.key_group_assignment import KeyGroupAssigner, key_group_of
from flinkray.state.row_table import RowTable
from flinkray.state.snapshots import ColumnarSnapshot

ALL = KeyGroupRange(0, 127)
GROUP_OF = KeyGroupAssigner(128)
KEYS = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.text(max_size=4),
    st.floats(),
    st.tuples(st.integers(0, 3), st.text(max_size=2)),
    st.none(),
)


def restored(
    parts: Iterable[ColumnarSnapshot], own: KeyGroupRange = ALL, namespaced: bool = False
) -> RestoredColumns:
    """Of a subtask with all key groups."""
    found = RestoredColumns("arrays", "numbers", namespaced)
    for part in parts:
        found.add(part, ALL, own)
    return found


def table_of(*parts: ColumnarSnapshot, own: KeyGroupRange = ALL) -> ColumnarTable:
    table = ColumnarTable()
    table.restore(restored(parts, own), GROUP_OF)
    return table


def contents(table: ColumnarTable, name: str) -> dict[str, Any]:
    return dict(zip(table.keys, table.values(name).tolist(), strict=True))


def test_keys_of_a_columnar_table_get_numbers_in_order_of_arrival() -> None:
    table = ColumnarTable()
    table.column("n", np.int64, 7)
    assert table.slots_of(["a", "b", "a"]).tolist() == [0, 1, 0]
    assert table.slots_of_column(pa.array(["c", "b"])).tolist() == [2, 1]
    assert table.keys == ["a", "b", "c"]
    table.values("n")[[0, 0, 2]] += 1
    assert table.values("n").tolist() == [8, 7, 8]


def test_array_that_grows_for_new_keys_has_the_default_of_its_column() -> None:
    table = ColumnarTable()
    table.column("n", np.float64, -1.5)
    table.slots_of([0])
    table.values("n")[0] = 3
    table.slots_of(range(5000))
    table.column("late", np.int8, 1)
    assert table.values("n").tolist() == [3, *[-1.5] * 4999]
    assert table.values("late").tolist() == [1] * 5000


def test_column_with_another_type_or_default_is_refused() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.column("n", "int64")
    with pytest.raises(StateError, match=r"holds int64.*as float64"):
        table.column("n", np.float64)
    with pytest.raises(StateError, match=r"0 at first.*1 at first"):
        table.column("n", np.int64, 1)


@given(st.lists(KEYS, max_size=40), st.integers(0, 127))
def test_restored_columnar_table_has_its_key_groups_but_no_change_after_the_snapshot(
    keys: list[Any], border: int
) -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    slots = table.slots_of(keys)
    np.add.at(table.values("n"), slots, 1)
    capture = table.capture()
    before = contents(table, "n")
    table.values("n")[:] = -1
    table.slots_of(["another"])
    stored = capture.write(GROUP_OF)
    found: dict[str, Any] = {}
    for own in (KeyGroupRange(0, border), KeyGroupRange(border + 1, 127)):
        part = table_of(stored, own=own)
        part.column("n", np.int64)
        assert all(key_group_of(key, 128) in own for key in part.keys)
        found |= contents(part, "n")
    assert found == before


def test_restored_column_with_another_requested_type_is_refused() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.slots_of(["a"])
    snapshot = table.capture().write(GROUP_OF)
    found = table_of(snapshot)
    with pytest.raises(StateError, match="stored as int64 and is asked for as float64"):
        found.column("n", np.float64)
    found.column("m", np.int64)
    with pytest.raises(StateError, match="before its columns are used"):
        found.restore(restored([snapshot]), GROUP_OF)


def test_restored_columns_that_no_operator_uses_are_in_later_snapshots() -> None:
    table = ColumnarTable()
    table.column("n", np.int64, 3)
    table.slots_of(["a"])
    second = table_of(table.capture().write(GROUP_OF))
    second.slots_of(["c"])
    third = table_of(second.capture().write(GROUP_OF))
    third.slots_of(["b"])
    third.column("n", np.int64, 4)
    assert contents(third, "n") == {"a": 3, "b": 4, "c": 4}


@dataclasses.dataclass(frozen=True)
class Place:
    row: int
    column: int


@pytest.mark.parametrize(
    "key",
    [Place(1, 2), decimal.Decimal("1.50"), True, 2.0, ("a", None), datetime.date(2024, 2, 29), "x"],
    ids=repr,
)
def test_restored_key_of_a_columnar_table_has_its_type_and_value(key: Any) -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.slots_of([key])
    (found,) = table_of(table.capture().write(GROUP_OF)).keys
    assert (found, type(found)) == (key, type(key))


def test_column_widened_to_floats_is_restored_from_a_snapshot_and_its_increment() -> None:
    """The base has integers and the increment floats. A key without a value has the default."""

    def default(kind: Any) -> Any:
        return np.nan if kind.kind == "f" else -1

    table = ColumnarTable()
    assert table.wide_column("n", np.dtype(np.int16), default) == np.int16
    slots = table.slots_of(["a", "b"])
    table.values("n")[slots] = [3, 2**15 - 1]
    first = table.capture(1).write(GROUP_OF)
    assert table.wide_column("n", np.dtype(np.float64), default) == np.float64
    table.values("n")[table.slots_of(["b"])] = 0.5
    second = table.capture(2, since=1).write(GROUP_OF)
    narrow, wide = table_of(first), table_of(first, second)
    assert narrow.kind_of("n") == np.int16
    assert narrow.wide_column("n", np.dtype(np.int64), default) == np.int64
    assert contents(narrow, "n") == {"a": 3, "b": 2**15 - 1}
    assert narrow.wide_column("n", np.dtype(np.float32), default) == np.float64
    narrow.slots_of(["c"])
    found = contents(narrow, "n")
    assert np.isnan(found.pop("c"))
    assert found == {"a": 3.0, "b": 2.0**15 - 1}
    assert wide.wide_column("n", np.dtype(np.int64), default) == np.float64
    assert contents(wide, "n") == {"a": 3, "b": 0.5}


# --- namespaces -----------------------------------------------------------------------------------


def add(table: ColumnarTable, namespace: int, **numbers: int) -> None:
    slots = table.slots_of(numbers)
    arrays = table.in_namespace(namespace)
    arrays.touch(slots)
    arrays.values("n")[slots] += list(numbers.values())


def namespaced(*parts: ColumnarSnapshot) -> ColumnarTable:
    table = ColumnarTable(namespaced=True)
    if parts:
        table.restore(restored(parts, namespaced=True), GROUP_OF)
    table.column("n", np.int64)
    return table


def everything(table: ColumnarTable) -> dict[tuple[int, Any], int]:
    return {
        (namespace, table.keys[slot]): int(arrays.first_values("n")[slot])
        for namespace, arrays in table.namespaces.items()
        for slot in np.flatnonzero(arrays.present()).tolist()
    }


def test_each_namespace_of_a_columnar_table_has_its_own_values_and_is_removed_whole() -> None:
    table = namespaced()
    add(table, 1, a=1, b=2)
    add(table, 2, b=4, c=8)
    add(table, 1, b=16)
    assert everything(table) == {(1, "a"): 1, (1, "b"): 18, (2, "b"): 4, (2, "c"): 8}
    table.remove_up_to(1)
    assert everything(table) == {(2, "b"): 4, (2, "c"): 8}
    add(table, 1, a=1)
    assert everything(table) == {(1, "a"): 1, (2, "b"): 4, (2, "c"): 8}


def test_keys_that_are_in_no_namespace_of_a_columnar_table_any_more_are_removed() -> None:
    table = namespaced()
    add(table, 1, **{f"key {number}": number for number in range(6000)})
    add(table, 2, **{"key 5000": 1, "another": 2})
    parts = [table.capture(1).write(GROUP_OF)]
    add(table, 2, **{"key 5001": 4})
    table.capture(2, since=1)
    table.remove_up_to(1)
    assert sorted(table.keys) == ["another", "key 5000", "key 5001"]
    add(table, 3, **{"key 5001": 8, "new": 16})
    add(table, 2, another=32)
    parts.append(table.capture(3, since=1).write(GROUP_OF))
    expected = {
        (2, "key 5000"): 1,
        (2, "another"): 34,
        (2, "key 5001"): 4,
        (3, "key 5001"): 8,
        (3, "new"): 16,
    }
    assert everything(table) == everything(namespaced(*parts)) == expected


def test_columnar_table_of_another_kind_is_refused_at_restore() -> None:
    snapshot = namespaced().capture().write(GROUP_OF)
    with pytest.raises(StateError, match="stored as per-window numbers and is asked for as numb"):
        ColumnarTable().restore(restored([snapshot], namespaced=True), GROUP_OF)


def test_increment_of_a_cleared_columnar_table_has_only_the_keys_added_since() -> None:
    table = ColumnarTable()
    table.column("n", np.int64, 7)
    table.slots_of(["a", "b"])
    parts = [table.capture(1).write(GROUP_OF)]
    table.clear()
    assert len(table) == 0
    table.slots_of(["c"])
    parts.append(table.capture(2, since=1).write(GROUP_OF))
    found = table_of(*parts)
    found.column("n", np.int64)
    assert contents(found, "n") == contents(table, "n") == {"c": 7}


def changes(table: ColumnarTable, checkpoint_id: int, since: int) -> dict[str, Any]:
    found = table_of(table.capture(checkpoint_id, since).write(GROUP_OF))
    found.column("n", np.int64)
    return contents(found, "n")


def test_columnar_snapshot_whose_base_checkpoint_is_too_old_has_the_whole_table() -> None:
    table = ColumnarTable()
    table.column("n", np.int64)
    table.slots_of(["a"])
    for checkpoint_id in range(1002):
        table.capture(checkpoint_id)
    assert changes(table, 2000, since=1) == {"a": 0}
    assert changes(table, 2001, since=1001) == {}


def test_columnar_increment_has_all_changes_since_its_base_despite_snapshots_between() -> None:
    table = namespaced()
    add(table, 1, a=1)
    add(table, 2, a=2)
    first = table.capture(1).write(GROUP_OF)
    add(table, 2, b=4)
    table.remove_up_to(1)
    table.capture(2, since=1)
    add(table, 3, c=8)
    table.capture()
    changes = table.capture(3, since=1)
    later = table.capture(4, since=3)
    assert (later.removed, later.write(GROUP_OF).groups) == (None, {})
    expected = {(2, "a"): 2, (2, "b"): 4, (3, "c"): 8}
    assert everything(namespaced(first, changes.write(GROUP_OF))) == expected
    assert table.capture(5, since=1).whole, "it was forgotten"


ALL_GROUPS = KeyGroupRange(0, 15)
ASSIGN = KeyGroupAssigner(16)


def by_column(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("k")


def windows(*parts: ColumnarSnapshot, own: KeyGroupRange = ALL_GROUPS) -> RowTable:
    table = RowTable(True, by_column)
    restore(table, parts, own)
    return table


def restore(table: RowTable, parts: Any, own: KeyGroupRange = ALL_GROUPS) -> None:
    found = RestoredColumns("rows", "rows", table.namespaced)
    for part in parts:
        found.add(part, ALL_GROUPS, own)
    table.restore(found, ASSIGN)


def add_rows(table: RowTable, namespace: int, *rows: dict[str, Any]) -> None:
    table.append(pa.RecordBatch.from_pylist(list(rows)), np.full(len(rows), namespace))


def all_rows(table: RowTable) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for batch, namespaces in table:
        assert namespaces is not None
        found += list(zip(namespaces.tolist(), batch.to_pylist(), strict=True))
    return sorted(found, key=str)


def test_taking_rows_up_to_a_namespace_removes_them_and_keeps_later_rows() -> None:
    table = windows()
    table.append(pa.record_batch({"k": [1, 2, 3]}), np.array([5, 9, 7]))
    table.append(pa.record_batch({"k": ["x"]}), np.array([5]))
    table.append(pa.record_batch({"k": [4]}), np.array([8]))
    taken = [rows.batch["k"].to_pylist() for rows in table.take_up_to(7)]
    assert taken == [[1, 3], ["x"]]
    assert all_rows(table) == [(8, {"k": 4}), (9, {"k": 2})]
    assert table.take_up_to(7) == []


def test_rows_with_different_columns_are_restored_in_order_by_key_group() -> None:
    table = windows()
    add_rows(table, 1, *({"k": key, "v": key} for key in range(40)))
    add_rows(table, 2, {"k": 3, "v": "text"}, {"k": 4, "v": None})
    add_rows(table, 1, {"w": 0.5, "k": 3})
    add_rows(table, 1, {"k": 3, "v": 100})
    stored = table.capture().write(ASSIGN)
    found = []
    for own in (KeyGroupRange(0, 6), KeyGroupRange(7, 15)):
        part = windows(stored, own=own)
        assert all(key_group_of(row["k"], 16) in own for _, row in all_rows(part))
        found += all_rows(part)
        mine = [row for batch, _ in part for row in batch.to_pylist() if row["k"] == 3]
        if mine:
            assert mine == [
                {"k": 3, "v": 3}, {"k": 3, "v": "text"}, {"w": 0.5, "k": 3}, {"k": 3, "v": 100},
            ]  # fmt: skip
    assert sorted(found, key=str) == all_rows(table)


def test_increment_of_a_row_table_has_its_new_rows_and_its_removals() -> None:
    table = windows()
    add_rows(table, 1, {"k": 1}, {"k": 2})
    add_rows(table, 2, {"k": 3})
    parts = [table.capture(1).write(ASSIGN)]
    table.take_up_to(1)
    add_rows(table, 1, {"k": 4})
    parts.append(table.capture(2, since=1).write(ASSIGN))
    assert (parts[-1].removed, len(parts[-1].groups)) == (1, 1)
    assert all_rows(windows(*parts)) == all_rows(table) == [(1, {"k": 4}), (2, {"k": 3})]
    parts.append(table.capture(3, since=2).write(ASSIGN))
    assert (parts[-1].removed, parts[-1].groups) == (None, {})


def test_restored_rows_that_were_stored_without_a_key_column_keep_their_key_groups() -> None:
    table = RowTable(True, None, ASSIGN)
    table.append(pa.record_batch({"v": [1, 2, 3]}), np.array([1, 2, 1]), ["a", "b", "c"])
    table.take_up_to(0)
    stored = table.capture().write(ASSIGN)
    assert set(stored.groups) == {key_group_of(key, 16) for key in "abc"}
    again = RowTable(True, None, ASSIGN)
    restore(again, [stored])
    assert again.capture().write(ASSIGN).groups.keys() == stored.groups.keys()
    again.take_up_to(1)  # and in a batch of which rows are taken
    (group,) = again.capture().write(ASSIGN).groups
    assert group == key_group_of("b", 16)
    assert all_rows(again) == [(2, {"v": 2})]


def test_key_group_stores_only_the_dictionary_entries_of_its_own_rows() -> None:
    names = [f"a rather long text, number {number}" for number in range(1000)]
    kind = pa.dictionary(pa.int32(), pa.string(), True)
    texts = pa.array(names).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string()))
    texts = pa.DictionaryArray.from_arrays(texts.indices, texts.dictionary, ordered=True)
    table = windows()
    table.append(pa.record_batch({"k": range(1000), "t": texts}), np.zeros(1000, np.int64))
    stored = table.capture().write(ASSIGN)
    assert sum(map(len, stored.groups.values())) < 2 * texts.nbytes + 16 * 2000
    found = windows(stored)
    assert all(batch.schema.field("t").type == kind for batch, _ in found)
    assert all_rows(found) == all_rows(table)


def test_row_table_without_namespaces_is_read_as_one_batch_and_cleared() -> None:
    table = RowTable(False, by_column)
    table.append(pa.record_batch({"k": [1, 2]}))
    parts = [table.capture(1).write(ASSIGN)]
    table.append(pa.record_batch({"k": [3]}))
    assert table.as_one().column("k").to_pylist() == [1, 2, 3]
    parts.append(table.capture(2, since=1).write(ASSIGN))
    assert len(parts[-1].groups) == 1
    found = RowTable(False, by_column)
    restore(found, parts)
    assert sorted(found.as_one().column("k").to_pylist()) == [1, 2, 3]
    table.clear()
    table.append(pa.record_batch({"k": [4]}))
    parts.append(table.capture(3, since=2).write(ASSIGN))
    found = RowTable(False, by_column)
    restore(found, parts)
    assert found.as_one().column("k").to_pylist() == [4]
    with pytest.raises(StateError, match="before it has rows"):
        restore(found, parts)


def test_row_table_of_another_kind_is_refused_at_restore() -> None:
    with pytest.raises(StateError, match="stored as rows and is asked for as per-window rows"):
        windows().restore(RestoredColumns("rows", "rows", False), ASSIGN)
