"""Jobs of Spark stages, Python stages and DataStream programs that read each other's results, on a
real cluster.

The results are checked against pandas, which reads the raw data by itself.  More kills than a usual
run makes, and what is killed: ``FLINKRAY_KILLS=50 FLINKRAY_KILLS_SEED=1 pytest -k random_kills
--log-cli-level=INFO tests/system/test_mixed_jobs.py``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pandas as pd
import pyarrow as pa
import pytest
from flights import package_data
from flights_mixed import HEADWIND, cleaned, mixed_job, scored, summed_up
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of PySpark's own examples use

import flinkray
from flinkray.client import ClusterClient, JobExecutionResult, JobHandle
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.core.errors import RpcTimeoutError
from flinkray.core.ids import JobID
from flinkray.datastream import (
    DataStream,
    MapFunction,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
)
from flinkray.spark.processes import leftover_processes
from flinkray.state import ValueStateDescriptor
from flinkray.testing.waiting import wait_until
from tests.system.observer import kill, live_actors, traces
from tests.system.pipelines import Gate

pytestmark = [pytest.mark.ray, pytest.mark.spark]

log = logging.getLogger(__name__)

KILLS = int(os.environ.get("FLINKRAY_KILLS", "3"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
STAGES = ("cleaned", "scored", "summed_up")
DELAY = (0.0, 6.0)
"""Seconds from the moment when a stage runs to the kill."""
END = 600.0
"""Seconds within which a job ends that nothing happens to any more, also on a busy machine."""

CLUSTER_ID = "mixed"
FOR_EVER = flinkray.FixedDelayRestart(100_000, 0.2)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("storage")


@pytest.fixture(scope="module")
def mixed_client(ray_cluster: object, storage: Path) -> Iterator[ClusterClient]:
    configuration = {"storage.dir": str(storage), "jobmaster.max-failovers": 100_000}
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=configuration) as client:
        yield client


@pytest.fixture(scope="module")
def expected() -> pd.DataFrame:
    data = package_data()
    flights = pd.read_csv(data / "flights.csv.zip").dropna(subset=["dep_delay"])
    weather = pd.read_csv(data / "weather.csv")
    joined = flights.merge(
        weather[["origin", "time_hour", "wind_speed"]], on=["origin", "time_hour"], how="left"
    )
    joined["score"] = joined["dep_delay"] - HEADWIND * joined["wind_speed"].fillna(0)
    by_carrier = joined.groupby("carrier")["score"].agg(["size", "mean"]).reset_index()
    renamed: pd.DataFrame = by_carrier.rename(columns={"size": "flights", "mean": "score"})
    return renamed


def assert_right(result: JobExecutionResult, expected: pd.DataFrame) -> None:
    rows = result.to_pandas().sort_values("carrier", ignore_index=True)
    assert rows["carrier"].tolist() == expected["carrier"].tolist()
    assert rows["flights"].tolist() == expected["flights"].tolist()
    assert rows["score"].tolist() == pytest.approx(expected["score"].tolist())


def assert_nothing_is_left(job_id: JobID, storage: Path) -> None:
    wait_until(lambda: not traces(job_id), 150, f"{traces(job_id)} to be gone")
    assert list(storage.rglob(f"{job_id}/results")) == []


# --- a file is lost -------------------------------------------------------------------------------


def gated(gate: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Scores flights, and does not look at its input before the gate is open."""

    def waits(flights: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        Path(gate, f"task-{os.getpid()}").touch()
        while not Path(gate, "open").exists():
            time.sleep(0.02)
        yield from scored(flights)

    return waits


class Numbered(MapFunction[Row, Row]):
    """Counts the flights of a carrier."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map(self, value: Row) -> Row:
        number = (self.count.value() or 0) + 1
        self.count.update(number)
        return Row(value["carrier"], value["score"], number)


def numbered(env: StreamExecutionEnvironment, flights: DataStream) -> DataStream:
    names = ["carrier", "score", "number"]
    types = Types.ROW_NAMED(names, [Types.STRING(), Types.DOUBLE(), Types.LONG()])
    return flights.key_by(lambda flight: flight["carrier"]).map(Numbered(), types)


def summed_up_and_counted(spark: SparkSession, flights: DataFrame) -> DataFrame:
    counts = flights.groupBy("carrier").agg(F.max("number").alias("last"), F.count("*").alias("n"))
    wrong = counts.where("last != n").collect()
    assert not wrong, wrong
    return summed_up(spark, flights)


@pytest.mark.timeout(900)
def test_flights_job_through_all_engines_survives_the_loss_of_a_file(
    mixed_client: ClusterClient, storage: Path, gate: Gate, expected: pd.DataFrame
) -> None:
    """FO-04."""
    job = flinkray.BatchJob("flights, one file of them lost", FOR_EVER)
    flights = job.spark(cleaned, memory="1g")
    scores = job.python(gated(gate.directory), inputs=[flights], parallelism=2, name="scored")
    numbers = job.stream(numbered, inputs=[scores], parallelism=2)
    job.spark(summed_up_and_counted, inputs=[numbers], memory="1g")
    handle = mixed_client.submit(job.build())
    wait_until(lambda: len(gate.waiting_tasks()) == 2, END, "both tasks to wait")

    lost = next(storage.rglob(f"{handle.job_id}/results/*/*/*.parquet"))
    lost.unlink()
    gate.open()

    assert_right(handle.result(timeout=END), expected)
    details = handle.details()
    attempts = {v.name: {e.attempt_number for e in v.executions} for v in details.vertices}
    assert attempts["cleaned"] == {1}, "it has run again"
    assert attempts["summed_up_and_counted"] == {0}, "it had not begun"
    assert any(lost.name in failure.text for failure in details.exceptions)
    assert_nothing_is_left(handle.job_id, storage)


# --- processes are killed -------------------------------------------------------------------------


def victims(job_id: JobID) -> dict[str, list[int]]:
    """Processes of the cluster and of the job, by kind."""
    found: dict[str, list[int]] = {}
    for actor in live_actors():
        is_ours = actor.namespace == cluster_namespace(CLUSTER_ID)
        if actor.name.startswith("raydp-executor-"):
            found.setdefault("Spark executor", []).append(actor.pid)
        elif is_ours and actor.pid and actor.kind != "Prestarted":
            found.setdefault(actor.kind, []).append(actor.pid)
    jvms = [p.pid for p in leftover_processes(job_id)]
    return {**found, "process of a Spark stage": jvms} if jvms else found


def comes_to(handle: JobHandle, stage: str) -> bool:
    """Wait until a task of the stage runs; False: the stage is over, or the job."""

    def seen() -> str:
        details = handle.details()
        if details.status.is_terminal:
            return "over"
        for vertex in details.vertices:
            if vertex.name == stage:
                if "RUNNING" in vertex.tasks:
                    return "running"
                if vertex.tasks.get("FINISHED") == vertex.parallelism:
                    return "over"
        return ""

    return wait_until(seen, END, f"{stage} to run") == "running"


def has_ended(handle: JobHandle, within: float) -> bool:
    with suppress(RpcTimeoutError):
        handle.wait(timeout=within)
        return True
    return False


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(900 + 30 * KILLS)
def test_mixed_jobs_give_right_results_under_random_kills(
    mixed_client: ClusterClient, storage: Path, expected: pd.DataFrame
) -> None:
    """Runs one job after another until the wanted number of processes is killed."""
    random = Random(SEED)
    killed: list[str] = []
    begin = time.monotonic()
    while len(killed) < KILLS:
        handle = mixed_client.submit(mixed_job(FOR_EVER))
        before = len(killed)
        while len(killed) < KILLS and not handle.status().is_terminal:
            stage = random.choice(STAGES)
            if not comes_to(handle, stage) or has_ended(handle, within=random.uniform(*DELAY)):
                continue
            there = victims(handle.job_id)
            if not there:
                continue  # all are being started again
            kind = random.choice(sorted(there))
            with suppress(ProcessLookupError):
                kill(random.choice(there[kind]))
                killed.append(f"{kind} while {stage!r} ran")
                log.info("kill %d: %s", len(killed), killed[-1])
        assert_right(handle.result(timeout=END), expected)
        seconds = time.monotonic() - begin
        log.info("%.0f s: a job ended right after %d kills", seconds, len(killed) - before)
        assert_nothing_is_left(handle.job_id, storage)
