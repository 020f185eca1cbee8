"""Arrow tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import ArrowSource, CallbackSink
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.source import END_OF_INPUT
from tests.streaming.sources.reading import read, reader_of


def test_arrow_table_is_read_in_batches_of_columns() -> None:
    table = pa.table({"a": range(100), "b": [str(n) for n in range(100)]})
    batches: list[Any] = []
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_source(ArrowSource(table, 30)).sink_to(CallbackSink(on_batch=batches.append))
    env.execute()
    assert [batch.num_rows for batch in batches] == [30, 30, 30, 10]
    assert pa.Table.from_batches(batches).equals(table)


def test_arrow_batches_with_different_types_are_read_with_one_type() -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    batches = [pa.record_batch({"k": ["a"], "v": v}) for v in ([1], [0.5], pa.nulls(1))]
    rows = env.from_arrow(batches, batch_rows=1).filter(lambda row: row.v is not None)
    assert sorted(row.v for row in rows.execute_and_collect()) == [0.5, 1.0]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_of_an_arrow_table_are_divided_among_subtasks(parallelism: int) -> None:
    table = pa.table({"a": range(100)})
    assert sorted(row.a for row in read(ArrowSource(table), parallelism)) == list(range(100))
    assert read(ArrowSource(table.slice(0, 0)), parallelism) == []


def test_arrow_source_has_own_batch_size_and_resumes_at_its_snapshot() -> None:
    chunks = [pa.table({"a": range(first, first + 5)}) for first in (0, 5)]
    source = ArrowSource(pa.concat_tables(chunks), batch_rows=4)
    reader = reader_of(source, Slice(0, 10))
    first = reader.poll(1)
    assert isinstance(first, Columns)
    assert first.batch["a"].to_pylist() == [0, 1, 2, 3]
    again = reader_of(source, *reader.snapshot_state(1))
    assert [again.poll(1).batch["a"].to_pylist() for _ in range(2)] == [[4, 5, 6, 7], [8, 9]]
    assert again.poll(1) is END_OF_INPUT
