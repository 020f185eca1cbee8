"""Streams that read Ray Data datasets, and datasets of a stream's results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.client import ClusterClient
from flinkray.core.errors import ConfigurationError
from flinkray.datastream import (
    Configuration,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.datastream.connectors import IteratorSource, RayDatasetSink
from flinkray.streaming.errors import StreamError
from flinkray.testing.waiting import wait_until
from tests.system.failures import FailsOnce

pytestmark = pytest.mark.ray

ray_data: Any = pytest.importorskip("ray.data")
ROWS = 1_000


@pytest.fixture(params=["in one process", "on a cluster"])
def env(request: pytest.FixtureRequest, ray_cluster: object) -> StreamExecutionEnvironment:
    client = request.getfixturevalue("cluster") if request.param == "on a cluster" else None
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    return env.set_parallelism(2)


def test_stream_has_each_row_of_a_dataset_once(env: StreamExecutionEnvironment) -> None:
    dataset = ray_data.range(ROWS, override_num_blocks=7).map_batches(
        lambda batch: {"id": batch["id"], "square": batch["id"] ** 2}
    )
    rows = env.from_dataset(dataset).map(lambda row: (row.id, row.square))
    assert sorted(rows.execute_and_collect()) == [(n, n * n) for n in range(ROWS)]


def test_columns_of_a_dataset_are_summed_by_key(env: StreamExecutionEnvironment) -> None:
    tables = [pa.table({"key": ["a", "b"], "v": [n, 1]}) for n in range(20)]
    totals = env.from_dataset(ray_data.from_arrow(tables)).key_by("key").sum("v")
    last = {row.key: row.v for row in totals.execute_and_collect()}
    assert last["b"] == 20
    assert max(last.values()) == sum(range(20))


def test_blocks_of_different_types_become_columns_that_hold_both(ray_cluster: object) -> None:
    tables = [pa.table({"x": [1, 2]}), pa.table({"x": pa.array([None, 2.5]), "y": ["a", None]})]
    env = StreamExecutionEnvironment.get_execution_environment()
    batches = env.from_dataset(ray_data.from_arrow(tables)).execute_and_collect_arrow()
    table = pa.Table.from_batches(list(batches)).sort_by("x")
    assert table.to_pydict() == {"x": [1.0, 2.0, 2.5, None], "y": [None, None, None, "a"]}


def test_tensors_of_a_dataset_are_lists_in_the_stream(ray_cluster: object) -> None:
    dataset = ray_data.from_numpy(np.arange(6.0).reshape(3, 2))
    env = StreamExecutionEnvironment.get_execution_environment()
    assert sorted(list(row.data) for row in env.from_dataset(dataset).execute_and_collect()) == [
        [0.0, 1.0], [2.0, 3.0], [4.0, 5.0]
    ]  # fmt: skip


def test_dataset_of_python_objects_is_refused_by_the_name_of_the_column(
    ray_cluster: object,
) -> None:
    dataset = ray_data.from_items([{"x": 1, "what": object}]).map(
        lambda row: {**row, "what": complex(1, 2)}
    )
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(StreamError, match="column 'what' of the dataset holds Python objects"):
        env.from_dataset(dataset)


def test_something_else_than_a_dataset_is_refused_by_type() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(TypeError, match=r"from_dataset takes a ray\.data\.Dataset, got a list"):
        env.from_dataset([1, 2])  # type: ignore[arg-type]


def test_each_row_is_there_once_after_a_restart(cluster: ClusterClient) -> None:
    settings = {
        "execution.checkpointing.interval": "10 ms",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
    }
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.configure(Configuration.from_dict(settings)).set_parallelism(1)
    rows = env.from_dataset(ray_data.range(ROWS, override_num_blocks=50))
    numbers = rows.map(lambda row: row.id, Types.LONG()).map(FailsOnce(ROWS // 2), Types.LONG())
    assert sorted(numbers.execute_and_collect()) == list(range(ROWS))


def test_results_of_a_stream_become_a_dataset(env: StreamExecutionEnvironment) -> None:
    doubled = env.from_sequence(1, ROWS).map(lambda n: (n, 2 * n))
    dataset = doubled.to_dataset()
    assert dataset.count() == ROWS
    assert dataset.sum("f1") == ROWS * (ROWS + 1)


def test_stream_without_records_becomes_an_empty_dataset(ray_cluster: object) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    assert env.from_sequence(1, 3).filter(lambda n: n > 3).to_dataset().count() == 0


def appends(path: Path) -> Callable[[Any, int], None]:
    """Return a function that appends the id of a checkpoint and its numbers to a file."""

    def append(dataset: Any, checkpoint_id: int) -> None:
        numbers = sorted(row["value"] for row in dataset.take_all())
        with path.open("a") as file:
            file.write(json.dumps([checkpoint_id, numbers]) + "\n")

    return append


def test_sink_hands_over_the_rows_of_each_checkpoint_in_order(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    """Also those before a restart, once each: here the function is not interrupted."""
    path = tmp_path / "datasets"
    settings = {
        "execution.checkpointing.interval": "100 ms",
        "execution.runtime-mode": "STREAMING",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
    }

    def numbers_until_two_datasets(_: int, offset: int) -> Iterator[int]:
        for n in range(offset, ROWS):
            if n in (ROWS // 4, ROWS * 3 // 4):
                wanted = 1 if n == ROWS // 4 else 2
                wait_until(partial(has_lines, path, wanted), 60, "the rows before")
            yield n

    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.configure(Configuration.from_dict(settings)).set_parallelism(1)
    numbers = env.from_source(IteratorSource(numbers_until_two_datasets), type_info=Types.LONG())
    failing = numbers.map(FailsOnce(ROWS // 2), Types.LONG()).rebalance().map(int, Types.LONG())
    failing.set_parallelism(2).sink_to(RayDatasetSink(appends(path))).set_parallelism(2)
    env.execute()
    told = lines(path)
    ids = [checkpoint_id for checkpoint_id, _ in told]
    assert ids == sorted(set(ids))
    assert len(ids) >= 3
    assert sorted(n for _, numbers in told for n in numbers) == list(range(ROWS))


def has_lines(path: Path, number: int) -> bool:
    return len(lines(path)) >= number


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_sink_without_checkpoints_hands_over_all_rows_at_the_end(
    ray_cluster: object, tmp_path: Path
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.from_sequence(1, 5).sink_to(RayDatasetSink(appends(tmp_path / "datasets")))
    env.execute()
    assert lines(tmp_path / "datasets") == [[0, [1, 2, 3, 4, 5]]]


def test_sink_of_datasets_refuses_unaligned_checkpoints(cluster: ClusterClient) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.configure(Configuration.from_dict({"execution.checkpointing.unaligned.enabled": "true"}))
    env.enable_checkpointing(100).from_sequence(1, 5).sink_to(RayDatasetSink(print))
    with pytest.raises(ConfigurationError, match="RayDatasetSink needs aligned checkpoints"):
        env.execute()


def test_stream_that_does_not_end_becomes_no_dataset() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    endless = env.from_source(IteratorSource.of(count, bounded=False))
    with pytest.raises(ConfigurationError, match="to_dataset needs a program whose sources all"):
        endless.to_dataset()
