"""DataFrames that streams of the same job read, on a real cluster: what comes out is what pandas
computes, whatever dies meanwhile.

Kills take long, and are made on request: ``FLINKRAY_KILLS=9 FLINKRAY_KILLS_SEED=1 pytest -k kills
--log-cli-level=INFO tests/system/test_spark_into_stream.py``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flinkray.client import ClusterClient
from flinkray.datastream import (
    Configuration,
    DataStream,
    MapFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.testing.waiting import wait_until
from tests.system.observer import assert_leaves_no_traces, kill
from tests.system.spark_and_streams import END, own_cluster, running_job, victims

pytestmark = [pytest.mark.ray, pytest.mark.spark]

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
ROWS, KEYS, WINDOW = 300_000, 50, 60_000
CLUSTER_ID = "spark-into-stream"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def cluster(ray_cluster: object, storage: Path) -> Iterator[ClusterClient]:
    with own_cluster(CLUSTER_ID, storage) as client:
        yield client


def numbers(pause: float = 0.0) -> Callable[[Any], Any]:
    """Six partitions; each takes *pause* seconds more."""

    def numbered(spark: Any) -> Any:
        frame = spark.range(0, ROWS, 1, 6).selectExpr(
            "id", "id % 50 as key", "id * 0.5 as value", "timestamp_millis(id) as at"
        )

        def slowly(batches: Iterator[Any]) -> Iterator[Any]:
            time.sleep(pause)
            yield from batches

        return frame.mapInArrow(slowly, frame.schema) if pause else frame

    return numbered


def expected() -> pd.DataFrame:
    ids = np.arange(ROWS)
    rows = pd.DataFrame({"key": ids % KEYS, "value": ids * 0.5, "start": ids // WINDOW * WINDOW})
    found = rows.groupby(["start", "key"])["value"].agg(["size", "sum"]).reset_index()
    in_order: pd.DataFrame = found.sort_values(["start", "key"], ignore_index=True)
    return in_order


def summed(batch: pa.RecordBatch) -> pa.Table:
    table = pa.Table.from_batches([batch])
    return table.group_by(["window_start", "key"]).aggregate([("value", "count"), ("value", "sum")])


def windows_of(
    env: StreamExecutionEnvironment, function: Any, slower: Any = None, **more: Any
) -> Any:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    rows = env.from_spark(function, strategy, "numbers").uid("numbers")
    if slower is not None:
        rows = rows.map_batches(slower).uid("slower")
    windows = rows.key_by("key").window(TumblingEventTimeWindows.of(WINDOW))
    results: DataStream = windows.map_batches(summed).uid("windows")
    return results


def assert_right(results: list[Any]) -> None:
    names = ["window_start", "key", "value_count", "value_sum"]
    found = pd.DataFrame([[row[name] for name in names] for row in results], columns=names)
    found = found.sort_values(names[:2], ignore_index=True)
    wanted = expected()
    assert len(found) == len(wanted)
    for name, other in zip(names, ["start", "key", "size", "sum"], strict=True):
        assert found[name].tolist() == wanted[other].tolist(), name


def environment(cluster: ClusterClient, interval: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    env.set_parallelism(2).enable_checkpointing(interval)
    return env


def test_stream_reads_rows_of_a_spark_stage_and_the_job_leaves_no_files(
    cluster: ClusterClient,
) -> None:
    """Reads columns, with event time from a column, while checkpoints are taken."""
    results = windows_of(environment(cluster, 200), numbers()).execute_and_collect()

    assert_right(list(results))

    assert_leaves_no_traces(results.job_id)


LINES = 4000


class SlowUntil(MapFunction[Any, int]):
    """The number in a line; takes its time for each until a file is there."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def map(self, value: Any) -> int:
        if not self._gate.exists():
            time.sleep(0.02)
        return int(value["value"])


def collect_into(results: Iterator[int], found: list[int]) -> None:
    for number in results:
        found.append(number)


@pytest.mark.slow  # tests/spark/test_repeatable_frames.py has other cores after a savepoint
def test_job_restored_from_a_savepoint_with_other_executors_reads_each_row_once(
    cluster: ClusterClient, tmp_path: Path
) -> None:
    """The savepoint is taken in the middle of a file. Spark divides the file in another way for
    three cores than for two."""
    text, gate = tmp_path / "lines.txt", tmp_path / "gate"
    text.write_text("".join(f"{number:02399d}\n" for number in range(LINES)))

    def lines(executors: int, cpu: int, savepoint: str | None = None) -> Any:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
        env.set_parallelism(1).enable_checkpointing(300)
        if savepoint is not None:
            recovery = "execution.state-recovery.path"
            env.configure(Configuration().set_string(recovery, savepoint))
        rows = env.from_spark(
            lambda spark: spark.read.text(str(text)),
            executors=executors,
            cpu=cpu,
            spark_conf={"spark.sql.execution.arrow.maxRecordsPerBatch": 50},
        )
        return rows.uid("lines").map(SlowUntil(gate), Types.LONG()).execute_and_collect()

    results = lines(2, cpu=1)
    found: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        reading: Future[None] = pool.submit(collect_into, results, found)
        wait_until(lambda: reading.done() or found, END, "the first lines")
        savepoint = cluster.job(results.job_id).stop_with_savepoint(str(tmp_path / "savepoint"))
        reading.result(timeout=END)
    assert len(found) < LINES

    gate.touch()
    found += lines(1, cpu=3, savepoint=savepoint)

    assert sorted(found) == list(range(LINES))


# --- kills ----------------------------------------------------------------------------------------


class Slower:
    """Gives batches on, and takes its time."""

    def __init__(self, pause: float) -> None:
        self._pause = pause

    def map_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(self._pause)
        return batch


def collected(stream: DataStream) -> list[Any]:
    return list(stream.execute_and_collect())


def wait_for_rows(folder: Path, results: Future[Any]) -> None:
    published = "results/published/*/*/*.arrow"
    wait_until(lambda: results.done() or any(folder.glob(published)), END, "rows")


@pytest.mark.kill
@pytest.mark.timeout(900 + 120 * KILLS)
@pytest.mark.skipif(KILLS == 0, reason="FLINKRAY_KILLS says how many")
def test_stream_after_spark_gives_the_same_results_under_random_kills(
    cluster: ClusterClient, storage: Path
) -> None:
    """Runs one job after another until the wanted number of processes is killed."""
    random = Random(SEED)
    killed: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        while len(killed) < KILLS:
            stream = windows_of(environment(cluster, 300), numbers(1.5), Slower(0.1))
            results = pool.submit(collected, stream)
            job_id = running_job(cluster).job_id
            wait_for_rows(storage / CLUSTER_ID / "data" / str(job_id), results)
            for _ in range(random.randint(1, 3)):
                with suppress(TimeoutError):
                    results.result(timeout=random.uniform(0.0, 6.0))
                    break
                there = victims(CLUSTER_ID, job_id)
                if len(killed) < KILLS and there:
                    kind = random.choice(sorted(there))
                    with suppress(ProcessLookupError):
                        kill(random.choice(there[kind]))
                        killed.append(kind)
                        log.info("kill %d: %s", len(killed), kind)
            assert_right(results.result(timeout=END))
            log.info("a job has ended right after %d kills: %s", len(killed), killed)
            assert_leaves_no_traces(job_id)
