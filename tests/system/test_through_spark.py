"""Streams that go through Spark and come back, on a real cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flinkray.client import ClusterClient
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import DataGeneratorSource, FileSink
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
def test_each_row_comes_back_from_spark_once_despite_a_killed_driver_and_task(
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_on_their_way_through_spark_are_in_the_savepoint_and_not_lost(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    """Epochs that wait for Spark, an epoch that Spark works on, and results that nobody has read:
    each row comes back in exactly one of the two jobs."""
    count, gate = 600, tmp_path / "gate"

    def waits(rows: Any, checkpoint_id: int) -> Any:
        from flinkray.testing.waiting import wait_until

        if checkpoint_id > 3:
            wait_until(gate.exists, END, "the savepoint")
        return named(rows, checkpoint_id).repartition(3)

    def slowly(batch: Any) -> Any:
        time.sleep(0.0 if gate.exists() else 1.0)
        return batch

    def program(parallelism: int, out: str) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.set_parallelism(parallelism).enable_checkpointing(1000)
        env.get_config().disable_auto_generated_uids()
        env.configure(Configuration.from_dict({"execution.spark.max-waiting-epochs": "5"}))
        source = DataGeneratorSource(int, count, 40.0)
        numbers = env.from_source(source, None, "numbers").uid("numbers")
        rows = numbers.map(lambda n: (n, n % 4), ROW).uid("rows")
        came = rows.through_spark(waits, memory="1g", name="named", uid="named")
        texts = came.map_batches(slowly).uid("slowly").map(lambda row: str(row["n"])).uid("texts")
        texts.sink_to(FileSink(str(tmp_path / out))).uid("out")
        return env

    def found(out: str) -> list[int]:
        files = [path for path in (tmp_path / out).glob("**/*") if path.is_file()]
        there = [file for file in files if file.name[0] not in "._"]
        return [int(n) for file in there for n in file.read_text().split()]

    first = program(2, "first").execute_async("first")
    wait_until(lambda: found("first"), END, "rows to come back")
    path = first.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(timeout=END)
    gate.touch()
    first.get_job_execution_result().result(timeout=END)
    came_first = found("first")
    assert len(came_first) < count / 4
    assert_leaves_no_traces(first.get_job_id())

    settings = Configuration.from_dict({"execution.state-recovery.path": path})
    program(1, "second").configure(settings).execute("second")

    assert sorted(came_first + found("second")) == [*range(0, count, 2)]


@pytest.mark.slow  # the halves, into Spark and out of it, have such tests of their own
def test_stream_without_checkpoints_sends_all_rows_through_spark_at_its_end(
    cluster: ClusterClient,
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    rows = env.from_sequence(0, 9).map(lambda n: (n, n % 4), ROW)
    came = rows.through_spark(named, memory="1g").map(lambda row: row["n"], Types.LONG())
    assert sorted(came.execute_and_collect()) == [0, 2, 4, 6, 8]
