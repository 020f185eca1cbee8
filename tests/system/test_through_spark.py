"""Streams that go through Spark and come back, on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flinkray.client import ClusterClient
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.testing.waiting import wait_until
from tests.system.observer import assert_leaves_no_traces, kill
from tests.system.spark_and_streams import END, own_cluster, processes

pytestmark = [pytest.mark.ray, pytest.mark.spark]

CLUSTER_ID = "through-spark"
ROW = Types.ROW_NAMED(["n", "k"], [Types.LONG(), Types.LONG()])
COUNT = 1_000


@pytest.fixture(scope="module")
def cluster(
    ray_cluster: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterClient]:
    with own_cluster(CLUSTER_ID, tmp_path_factory.mktemp("storage")) as client:
        yield client


def named(rows: Any, checkpoint_id: int) -> Any:
    """Joined with a table; odd numbers have no name there."""
    names = rows.sparkSession.createDataFrame([(0, "zero"), (2, "two")], "k long, name string")
    return rows.join(names, "k").select("n", "name")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_row_comes_back_once_although_the_driver_and_a_task_are_killed_in_between(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.set_parallelism(2).enable_checkpointing(500)
    numbers = env.from_source(DataGeneratorSource(int, COUNT, 80.0), None, "numbers").uid("numbers")
    rows = numbers.map(lambda n: (n, n % 4), ROW).uid("rows")
    came = rows.through_spark(named, memory="1g", name="named").uid("named")
    texts = came.map(lambda row: f"{row['n']} {row['name']}", Types.STRING()).uid("texts")
    results: Any = texts.execute_and_collect()
    found: list[str] = []

    def collect() -> None:
        for text in results:
            found.append(text)

    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(collect)
        wait_until(lambda: collecting.done() or found, END, "rows to come back")
        (driver,) = processes(CLUSTER_ID, "SparkDriver")
        kill(driver)
        before = len(found)
        wait_until(lambda: collecting.done() or len(found) > before, END, "more rows to come back")
        for task in processes(CLUSTER_ID, "TaskProcess")[:1]:  # all streams go back, and the stage
            kill(task)
        collecting.result(timeout=END)

    names = {0: "zero", 2: "two"}
    assert sorted(found) == sorted(f"{n} {names[n % 4]}" for n in range(COUNT) if n % 2 == 0)
    assert_leaves_no_traces(results.job_id)


def test_without_checkpoints_all_rows_go_through_at_the_end(cluster: ClusterClient) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    rows = env.from_sequence(0, 9).map(lambda n: (n, n % 4), ROW)
    came = rows.through_spark(named, memory="1g").map(lambda row: row["n"], Types.LONG())
    assert sorted(came.execute_and_collect()) == [0, 2, 4, 6, 8]
