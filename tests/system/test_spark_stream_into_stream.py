"""Streams that read a streaming query of Spark, on a real cluster: each row counts once, whatever
dies meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flinkray.client import ClusterClient
from flinkray.core.errors import JobExecutionError
from flinkray.datastream import (
    Configuration,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.waiting import wait_until
from tests.system.observer import assert_leaves_no_traces, kill
from tests.system.spark_and_streams import END, own_cluster, processes

pytestmark = [pytest.mark.ray, pytest.mark.spark]

CLUSTER_ID = "spark-stream"
ROWS = 100
"""Of a file."""


@pytest.fixture(scope="module")
def cluster(
    ray_cluster: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterClient]:
    with own_cluster(CLUSTER_ID, tmp_path_factory.mktemp("storage")) as client:
        yield client


def files_of(folder: Path) -> Callable[[Any], Any]:
    """One in each micro-batch, in four partitions."""

    def read(spark: Any) -> Any:
        files = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        return files.parquet(str(folder)).repartition(4)

    return read


def add_files(folder: Path, first: int, last: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(first, last):
        numbers = pa.array(range(number * ROWS, (number + 1) * ROWS))
        unfinished = folder.parent / f"{number}.unfinished"
        pq.write_table(pa.table({"n": numbers}), unfinished)
        unfinished.rename(folder / f"{number:03d}.parquet")


class Noted(MapFunction[Any, int]):
    """Leaves the ids of its processes behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / str(os.getpid())).touch()

    def map(self, value: Any) -> int:
        number: int = value["n"]
        return number


def environment(cluster: ClusterClient) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment(cluster=cluster).set_parallelism(2)


def collected(results: Iterator[int], into: list[int]) -> None:
    for number in results:
        into.append(number)


@pytest.mark.slow  # the other jobs of this file read alike; test_spark_table kills
def test_each_row_counts_once_despite_a_killed_driver_a_killed_task_and_a_stop(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    """The Spark query ends with the stream."""
    env = environment(cluster)
    env.enable_checkpointing(300)
    source = env.from_spark_stream(files_of(tmp_path / "files"), source_name="files", memory="1g")
    numbers = source.uid("files").map(Noted(tmp_path / "pids"), Types.LONG()).uid("numbers")
    add_files(tmp_path / "files", 0, 2)
    results: Any = numbers.execute_and_collect()
    job = cluster.job(results.job_id)
    found: list[int] = []

    def come(files: int) -> None:
        def there() -> bool:
            return reading.done() or len(found) >= files * ROWS

        wait_until(there, END, f"the rows of {files} files")

    with ThreadPoolExecutor(1) as pool:
        reading: Future[None] = pool.submit(collected, results, found)
        come(2)
        task = next((tmp_path / "pids").iterdir()).name
        kill(int(task))
        add_files(tmp_path / "files", 2, 4)
        come(4)
        (driver,) = processes(CLUSTER_ID, "SparkDriver")
        kill(driver)
        add_files(tmp_path / "files", 4, 6)
        come(6)
        job.stop_with_savepoint(str(tmp_path / "savepoint"))
        reading.result(timeout=END)

    assert job.wait(END) is JobStatus.FINISHED
    assert sorted(found) == list(range(6 * ROWS))
    assert {pid.name for pid in (tmp_path / "pids").iterdir()} > {task}
    assert_leaves_no_traces(results.job_id)


@pytest.mark.slow  # tests/spark/test_published_frames.py has the query go on in another job
def test_job_restored_from_a_savepoint_continues_the_query_without_duplicates(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    """The second job has another parallelism and reads the files that came in the meantime."""

    def numbers_of(env: StreamExecutionEnvironment, trigger: dict[str, object]) -> Any:
        source = env.from_spark_stream(files_of(tmp_path / "files"), trigger=trigger, memory="1g")
        numbers = source.uid("files").map(lambda row: row["n"], Types.LONG()).uid("numbers")
        return numbers.execute_and_collect()

    add_files(tmp_path / "files", 0, 2)
    env = environment(cluster)
    env.enable_checkpointing(300)
    results = numbers_of(env, {"processingTime": "0 seconds"})
    found: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        reading: Future[None] = pool.submit(collected, results, found)
        wait_until(lambda: reading.done() or len(found) == 2 * ROWS, END, "the rows of two files")
        savepoint = cluster.job(results.job_id).stop_with_savepoint(str(tmp_path / "savepoint"))
        reading.result(timeout=END)

    add_files(tmp_path / "files", 2, 4)
    env = environment(cluster).set_parallelism(1)
    env.enable_checkpointing(300)
    env.configure(Configuration().set_string("execution.state-recovery.path", savepoint))
    found += numbers_of(env, {"availableNow": True})
    assert sorted(found) == list(range(4 * ROWS))


def test_stream_without_checkpoints_ends_when_its_spark_query_ends(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    add_files(tmp_path / "files", 0, 3)
    source = environment(cluster).from_spark_stream(
        files_of(tmp_path / "files"), trigger={"availableNow": True}, memory="1g"
    )
    numbers = source.map(lambda row: row["n"], Types.LONG())
    assert sorted(numbers.execute_and_collect()) == list(range(3 * ROWS))


def test_error_in_a_micro_batch_fails_the_job_with_the_text_of_the_error(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    def broken(spark: Any) -> Any:
        from pyspark.sql import functions

        def digest(number: int) -> int:
            raise ValueError(f"cannot digest {number}")

        digested = functions.udf(digest, "long")("n")
        return files_of(tmp_path / "files")(spark).where("n = 7").select(digested.alias("n"))

    add_files(tmp_path / "files", 0, 1)
    env = environment(cluster)
    env.configure(Configuration().set_string("restart-strategy.type", "none"))
    env.from_spark_stream(broken, memory="1g").print()
    with pytest.raises(JobExecutionError, match="ValueError: cannot digest 7"):
        env.execute("broken")
