"""Streams that hand their rows to Spark, on a real cluster: each row is in one epoch, whatever dies
meanwhile, and an epoch that comes again is the same."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

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
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.testing.waiting import wait_until
from tests.system.observer import assert_leaves_no_traces, kill
from tests.system.spark_and_streams import END, own_cluster, processes

pytestmark = [pytest.mark.ray, pytest.mark.spark]

CLUSTER_ID = "stream-into-spark"
ROW = Types.ROW_NAMED(["n", "square"], [Types.LONG(), Types.LONG()])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def cluster(ray_cluster: object, storage: Path) -> Iterator[ClusterClient]:
    with own_cluster(CLUSTER_ID, storage) as client:
        yield client


def into(folder: Path) -> Callable[[Any, int], None]:
    """Leaves the rows of each call in a file of its own, as well as in the checkpoint's folder."""

    def write(rows: Any, checkpoint_id: int) -> None:
        import json
        import uuid

        rows.write.mode("overwrite").parquet(f"{folder}/rows/{checkpoint_id}")
        told = sorted([row.n, row.square] for row in rows.collect())
        path = folder / "calls" / f"{checkpoint_id}-{uuid.uuid4().hex}.json"
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(told))
        unfinished.rename(path)

    return write


def calls(folder: Path) -> list[tuple[int, list[list[int]]]]:
    paths = (folder / "calls").glob("*.json")
    told = [(int(path.name.partition("-")[0]), json.loads(path.read_text())) for path in paths]
    return sorted(told)


def epochs(folder: Path) -> dict[int, list[list[int]]]:
    """What each checkpoint was called with, which is the same whenever it was."""
    found: dict[int, list[list[int]]] = {}
    for checkpoint_id, rows in calls(folder):
        assert found.setdefault(checkpoint_id, rows) == rows
    return found


def assert_each_once(folder: Path, count: int) -> None:
    seen = Counter(n for rows in epochs(folder).values() for n, _ in rows)
    assert seen == Counter(range(count))
    assert all(square == n * n for rows in epochs(folder).values() for n, square in rows)


class Squares(MapFunction[int, tuple[int, int]]):
    """Leaves the ids of its processes behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "pids"

    def open(self, runtime_context: RuntimeContext) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / str(os.getpid())).touch()

    def map(self, value: int) -> tuple[int, int]:
        return value, value * value


def squares(
    cluster: ClusterClient, folder: Path, count: int, rate: float
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.set_parallelism(2).enable_checkpointing(1000)
    source = DataGeneratorSource(int, count, rate)
    numbers = env.from_source(source, None, "numbers").uid("numbers")
    rows = numbers.map(Squares(folder), output_type=ROW).uid("squares")
    rows.to_spark(into(folder), "out", memory="1g").uid("out")
    return env


@pytest.mark.slow  # a job of test_mixed_jobs ends in Spark; tests of committers kill
def test_spark_gets_each_row_once_although_a_driver_and_a_task_are_killed(
    cluster: ClusterClient, storage: Path, tmp_path: Path
) -> None:
    count = 1_500
    job = squares(cluster, tmp_path, count, rate=100.0).execute_async("squares")
    result = job.get_job_execution_result()

    published = f"{CLUSTER_ID}/data/{job.get_job_id()}/results/epochs/*/0*.json"
    wait_until(lambda: any(storage.glob(published)), END, "a complete checkpoint")
    killed = next((tmp_path / "pids").iterdir()).name
    kill(int(killed))
    wait_until(lambda: calls(tmp_path), END, "a first epoch")
    (driver,) = processes(CLUSTER_ID, "SparkDriver")
    kill(driver)

    result.result(timeout=END)
    assert_each_once(tmp_path, count)
    assert {pid.name for pid in (tmp_path / "pids").iterdir()} > {killed}
    assert_leaves_no_traces(job.get_job_id())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_waiting_for_spark_are_in_the_savepoint_and_reach_spark_in_the_next_job(
    cluster: ClusterClient, storage: Path, tmp_path: Path
) -> None:
    """The first job leaves no files, and the savepoint is moved before the second job starts. Each
    job has to start Spark while its sources are held, so that only a few epochs are left at the
    end."""
    write, gate = into(tmp_path), tmp_path / "gate"

    def waits(rows: Any, checkpoint_id: int) -> None:
        from flinkray.testing.waiting import wait_until

        if calls(tmp_path):
            wait_until(gate.exists, END, "the second job")
        write(rows, checkpoint_id)

    def program() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.set_parallelism(1).enable_checkpointing(2000)
        env.configure(Configuration.from_dict({"execution.spark.max-waiting-epochs": "5"}))
        source = DataGeneratorSource(int, 1_000_000, 60.0)
        numbers = env.from_source(source, None, "numbers").uid("numbers")
        rows = numbers.map(lambda n: (n, n * n), output_type=ROW).uid("rows")
        rows.to_spark(waits, "out", memory="1g").uid("out")
        return env

    job = program().execute_async("first")
    epochs_of_job = f"{CLUSTER_ID}/data/{job.get_job_id()}/results/epochs/*/0*.json"
    wait_until(lambda: calls(tmp_path), END, "an epoch that is done")
    wait_until(lambda: len(list(storage.glob(epochs_of_job))) > 3, END, "epochs that wait")
    path = Path(job.trigger_savepoint(str(tmp_path / "savepoints")).result(timeout=END))
    job.cancel().result(timeout=END)
    wait_until(lambda: not list(storage.glob(epochs_of_job)), END, "the first job's files to go")
    handed_over = max(epochs(tmp_path))

    gate.touch()
    settings = {"execution.state-recovery.path": str(path.rename(tmp_path / "moved"))}
    second = program().configure(Configuration.from_dict(settings)).execute_async("second")
    wait_until(lambda: len(epochs(tmp_path)) > 4, END, "what the second job hands over")
    second.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(timeout=END)
    second.get_job_execution_result().result(timeout=END)

    assert_each_once(tmp_path, sum(map(len, epochs(tmp_path).values())))
    assert max(epochs(tmp_path)) > handed_over
    assert_leaves_no_traces(second.get_job_id())


@pytest.mark.slow
def test_failing_spark_function_fails_the_job_with_the_error_and_the_checkpoint_id(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    def fails(rows: Any, checkpoint_id: int) -> None:
        raise ValueError(f"no table for {rows.count()} rows of {rows.columns}")

    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.configure(Configuration().set_string("restart-strategy.type", "none"))
    rows = env.from_sequence(1, 10).map(lambda n: (n, n * n), output_type=ROW)
    rows.to_spark(fails, memory="1g")
    with pytest.raises(JobExecutionError) as caught:
        env.execute("fails")
    text = str(caught.value)
    assert "no table for 10 rows of ['n', 'square'] (with the rows of checkpoint" in text
