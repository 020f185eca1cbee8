"""Rows in state: batches as they came, by namespace, and what of them has come since a snapshot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.key_groups import KeyGroupRange
from flinkray.state.columnar_snapshots import RestoredColumns
from flinkray.state.errors import StateError
from flinkray.state.keys import KeyGroupAssigner, key_group_of
from flinkray.state.row_table import RowTable
from flinkray.state.snapshots import ColumnarSnapshot

ALL = KeyGroupRange(0, 15)
ASSIGN = KeyGroupAssigner(16)


def by_column(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("k")


def windows(*parts: ColumnarSnapshot, own: KeyGroupRange = ALL) -> RowTable:
    table = RowTable(True, by_column)
    restore(table, parts, own)
    return table


def restore(table: RowTable, parts: Any, own: KeyGroupRange = ALL) -> None:
    found = RestoredColumns("rows", "rows", table.namespaced)
    for part in parts:
        found.add(part, ALL, own)
    table.restore(found, ASSIGN)


def add(table: RowTable, namespace: int, *rows: dict[str, Any]) -> None:
    table.append(pa.RecordBatch.from_pylist(list(rows)), np.full(len(rows), namespace))


def everything(table: RowTable) -> list[tuple[int, dict[str, Any]]]:
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
    assert everything(table) == [(8, {"k": 4}), (9, {"k": 2})]
    assert table.take_up_to(7) == []


def test_rows_with_different_columns_are_restored_in_order_by_key_group() -> None:
    table = windows()
    add(table, 1, *({"k": key, "v": key} for key in range(40)))
    add(table, 2, {"k": 3, "v": "text"}, {"k": 4, "v": None})
    add(table, 1, {"w": 0.5, "k": 3})
    add(table, 1, {"k": 3, "v": 100})
    stored = table.capture().write(ASSIGN)
    found = []
    for own in (KeyGroupRange(0, 6), KeyGroupRange(7, 15)):
        part = windows(stored, own=own)
        assert all(key_group_of(row["k"], 16) in own for _, row in everything(part))
        found += everything(part)
        mine = [row for batch, _ in part for row in batch.to_pylist() if row["k"] == 3]
        if mine:
            assert mine == [
                {"k": 3, "v": 3}, {"k": 3, "v": "text"}, {"w": 0.5, "k": 3}, {"k": 3, "v": 100},
            ]  # fmt: skip
    assert sorted(found, key=str) == everything(table)


def test_increment_of_a_row_table_has_its_new_rows_and_its_removals() -> None:
    table = windows()
    add(table, 1, {"k": 1}, {"k": 2})
    add(table, 2, {"k": 3})
    parts = [table.capture(1).write(ASSIGN)]
    table.take_up_to(1)
    add(table, 1, {"k": 4})
    parts.append(table.capture(2, since=1).write(ASSIGN))
    assert (parts[-1].removed, len(parts[-1].groups)) == (1, 1)
    assert everything(windows(*parts)) == everything(table) == [(1, {"k": 4}), (2, {"k": 3})]
    parts.append(table.capture(3, since=2).write(ASSIGN))
    assert (parts[-1].removed, parts[-1].groups) == (None, {})


def test_increment_of_a_row_table_is_complete_although_captures_came_between() -> None:
    table = windows()
    add(table, 1, {"k": 1})
    add(table, 3, {"k": 3})
    first = table.capture(1).write(ASSIGN)
    add(table, 2, {"k": 2}, {"k": 20})
    table.take_up_to(1)
    table.capture(2, since=1)
    add(table, 4, {"k": 4})
    changes = table.capture(3, since=1).write(ASSIGN)
    assert not changes.whole
    assert everything(windows(first, changes)) == everything(table)
    assert table.capture(4, since=3).write(ASSIGN).groups == {}
    assert table.capture(5, since=2).whole, "it was forgotten"


def test_rows_whose_keys_are_in_no_column_keep_their_key_groups() -> None:
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
    assert everything(again) == [(2, {"v": 2})]


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
    assert everything(found) == everything(table)


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
