"""Results of a program as Arrow record batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flinkray.datastream import DataStream, StreamExecutionEnvironment
from flinkray.testing.threaded_cluster import ThreadedCluster

TABLE = pa.table({"n": range(10_000), "text": [str(n % 7) for n in range(10_000)]})


def rows(stream: DataStream) -> list[tuple[int, str]]:
    with stream.execute_and_collect_arrow("columns") as batches:
        table = pa.Table.from_batches(list(batches))
    assert table.schema == TABLE.schema
    return sorted(zip(*table.to_pydict().values(), strict=True))


EXPECTED = list(zip(*TABLE.to_pydict().values(), strict=True))


def test_columns_are_collected_as_arrow_batches_in_one_process(
    env: StreamExecutionEnvironment,
) -> None:
    assert rows(env.from_arrow(TABLE).map_batches(lambda batch: batch)) == EXPECTED


def test_columns_are_collected_as_arrow_batches_from_a_cluster(cluster: ThreadedCluster) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    stream = env.set_parallelism(2).from_arrow(TABLE).rebalance().map_batches(lambda batch: batch)
    assert rows(stream) == EXPECTED


def test_keyed_rows_are_collected_as_arrow_columns_of_key_and_value(
    env: StreamExecutionEnvironment,
) -> None:
    """The pairs are those that a collection of rows gives."""
    keyed = env.from_collection([3, 4]).key_by(lambda n: n % 2)
    by_rows = [tuple(row) for row in keyed.execute_and_collect(10)]
    keyed = env.from_collection([3, 4]).key_by(lambda n: n % 2)
    (batch,) = keyed.execute_and_collect_arrow()
    assert sorted(zip(*batch.to_pydict().values(), strict=True)) == sorted(by_rows)


@pytest.mark.parametrize("selector", ["n", lambda row: row.n])
def test_keyed_columns_are_collected_as_key_and_struct_of_all_columns(
    env: StreamExecutionEnvironment, cluster: ThreadedCluster, selector: Any
) -> None:
    on_cluster = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    for each in (env, on_cluster.set_parallelism(2)):
        keyed = each.from_arrow(TABLE).key_by(selector)
        table = pa.Table.from_batches(keyed.execute_and_collect_arrow()).sort_by("f0")
        assert table["f0"].to_pylist() == TABLE["n"].to_pylist()
        assert table["f1"].to_pylist() == TABLE.to_pylist()
        assert table.schema.types == [pa.int64(), pa.struct(TABLE.schema)]


def test_program_is_cancelled_when_its_arrow_batches_are_closed(
    env: StreamExecutionEnvironment,
) -> None:
    """Without the cancellation the program would run for minutes."""
    with env.from_sequence(0, 10**10).execute_and_collect_arrow() as batches:
        assert next(batches).schema.names == ["value"]
