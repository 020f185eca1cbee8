"""Tables that Spark computes and records of a stream look up, on a real cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.testing.waiting import wait_until
from tests.system.observer import assert_leaves_no_traces, kill
from tests.system.spark_and_streams import END, own_cluster, processes, running_job

pytestmark = [pytest.mark.ray, pytest.mark.spark]

CLUSTER_ID = "spark-table"
COUNT, KEYS = 1_500, 20


@pytest.fixture(scope="module")
def cluster(
    ray_cluster: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterClient]:
    with own_cluster(CLUSTER_ID, tmp_path_factory.mktemp("storage")) as client:
        yield client


def names(spark: Any) -> Any:
    """Of even numbers; four partitions, which take their time."""

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        time.sleep(1.0)
        yield from batches

    frame = spark.range(0, KEYS, 2, 4).selectExpr("id as k", "concat('name ', id) as name")
    return frame.mapInArrow(slowly, frame.schema)


def test_look_up_gives_each_record_the_row_of_its_key_although_tasks_are_killed(
    cluster: ClusterClient,
) -> None:
    """A task is killed while records wait for the table, and another while records are answered."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.set_parallelism(2).enable_checkpointing(300)
    table = flinkray.spark_table(names, "k", name="names", uid="table")
    numbers = env.from_source(DataGeneratorSource(int, COUNT, 40.0), None, "numbers").uid("numbers")
    named = numbers.key_by(lambda n: n % KEYS).look_up(
        table, lambda n, row: f"{n} {row and row['name']}", Types.STRING()
    )
    results: Any = named.uid("named").execute_and_collect()
    found: list[str] = []

    def collect() -> None:
        for text in results:
            found.append(text)

    def kill_a_task() -> None:
        kill(processes(CLUSTER_ID, "TaskProcess")[0])

    def completed() -> int:
        told = running_job(cluster).details().checkpoints
        return 0 if told is None else told.completed

    with ThreadPoolExecutor(1) as pool:
        collecting = pool.submit(collect)
        wait_until(lambda: collecting.done() or completed() > 0, END, "a checkpoint")
        kill_a_task()
        wait_until(lambda: collecting.done() or found, END, "records to be answered")
        kill_a_task()
        collecting.result(timeout=END)

    assert sorted(found) == sorted(
        f"{n} {None if n % 2 else f'name {n % KEYS}'}" for n in range(COUNT)
    )
    assert_leaves_no_traces(results.job_id)
