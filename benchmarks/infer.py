"""Batches of a stream to two replicas of a model that takes 5 ms for each batch.

- *Throughput.* The stream offers more than the replicas can do. Counted are the records with
  results per second, from the first to the last second of a run. The peer is the same model in a
  loop without a stream: two such loops are what two replicas can do.
- *Latency at half load.* The stream offers half of that. Measured is the time from the making of a
  record to its result, for each record after the first seconds.

The model sleeps, so the two replicas do not compete for processors with what is measured.

Run it alone on the machine.  Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from _results import Figure, Results, Section, parse

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import (
    DataStream,
    ModelFunction,
    RuntimeContext,
    SinkFunction,
    StreamExecutionEnvironment,
    TypeInformation,
    Types,
)
from flinkray.datastream.connectors import DataGeneratorSource, IteratorSource
from flinkray.streaming.operators.model_replicas import answer
from flinkray.streaming.records.arrow_bytes import serialized
from flinkray.streaming.sources.source import Source

REPLICAS = 2
BATCH = 64
MODEL = 0.005
"""Seconds that the model takes for a batch."""
WAIT = 0.02
"""Seconds that records wait for a full batch."""
WARM_UP = 15.0
"""Seconds at the beginning of a run that do not count: processes for the next jobs start then."""
THROUGHPUT = 0.95
LATENCY = 3.0
"""Goal: the 99th percentile over (wait + model)."""
RAY_OPTIONS: dict[str, Any] = {"num_cpus": 4, "include_dashboard": False}


class Sleeper(ModelFunction):
    """Returns the records' own numbers."""

    def infer(self, batch: pa.RecordBatch) -> pa.Array:
        time.sleep(MODEL)
        return batch["f0"]


class Watch(SinkFunction):
    """Writes when each record was seen, and how old it was, into a file of NumPy's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, runtime_context: RuntimeContext) -> None:
        self._seen: list[tuple[float, float]] = []

    def invoke(self, value: Any, context: Any = None) -> None:
        now = time.time()
        self._seen.append((now, now - value.result))

    def close(self) -> None:
        np.save(self._path, np.array(self._seen))


class Round(NamedTuple):
    """Records per second, and seconds."""

    throughput: float
    alone: float
    median: float
    p99: float


def alone(seconds: float = 2.0) -> float:
    """Records per second of the model in a loop."""
    model, request = Sleeper(), serialized(pa.record_batch({"f0": np.arange(BATCH) * 0.5}))
    batches, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        answer(model, request)
        batches += 1
    return batches * BATCH / (time.perf_counter() - began)


def scored(
    client: ClusterClient, source: Source[Any, Any], kind: TypeInformation[Any]
) -> tuple[StreamExecutionEnvironment, DataStream[Any]]:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(1)
    env.set_buffer_timeout(1)
    records = env.from_source(source, type_info=kind)
    results = records.infer(
        Sleeper(), batch_size=BATCH, max_wait=f"{WAIT * 1000:g} ms", replicas=REPLICAS,
        cpu=0.5, memory="200m", shared="sleeper",
    )  # fmt: skip
    return env, results


RECORD: TypeInformation[Any] = Types.TUPLE([Types.DOUBLE()])


@contextmanager
def loaded(client: ClusterClient) -> Iterator[None]:
    """A job that keeps the replicas, so that they are there when the others begin."""
    with tempfile.TemporaryDirectory(prefix="infer-") as folder:
        stop = Path(folder) / "stop"

        def one_and_wait(_: int, offset: int) -> Iterator[tuple[float]]:
            yield (0.0,)
            while not stop.exists():
                time.sleep(0.1)

        _, results = scored(client, IteratorSource(one_and_wait), RECORD)
        with results.execute_and_collect("loaded") as found:
            next(found)
            yield
            stop.touch()
            list(found)


def seen(client: ClusterClient, records: int, rate: float | None) -> Any:
    """When each record was seen and how old it was, of a run that offers *rate* records a second
    (None: as many as are taken)."""
    source = DataGeneratorSource(lambda n: (time.time(),), records, rate)
    env, results = scored(client, source, RECORD)
    with tempfile.TemporaryDirectory(prefix="infer-") as folder:
        path = Path(folder) / "seen.npy"
        results.add_sink(Watch(path))
        env.execute("infer")
        found = np.load(path)
    return found[found[:, 0] >= found[0, 0] + WARM_UP]


def measured(client: ClusterClient, seconds: float) -> Round:
    peer = alone()
    most = REPLICAS * peer
    full = seen(client, round(most * (seconds + WARM_UP)), None)
    throughput = float(len(full) / (full[-1, 0] - full[0, 0]))
    half = seen(client, round(most / 2 * (seconds + WARM_UP)), most / 2)
    ages = half[:, 1]
    return Round(throughput, peer, float(np.median(ages)), float(np.quantile(ages, 0.99)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="least length of a run (10)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parse(parser)
    results = Results(options, "flinkray", "ray", "pyarrow")
    rounds: list[Round] = []
    with flinkray.connect(ray_options=RAY_OPTIONS) as client:
        for number in range(options.rounds):
            with loaded(client):
                rounds.append(measured(client, options.seconds))
            print(f"  {number + 1}/{options.rounds} {json.dumps(rounds[-1]._asdict())}", flush=True)
    share = median(one.throughput / (REPLICAS * one.alone) for one in rounds)
    throughput = median(one.throughput for one in rounds)
    peer = median(REPLICAS * one.alone for one in rounds)
    p99, middle = median(one.p99 for one in rounds), median(one.median for one in rounds)
    section = Section(
        f"{REPLICAS} replicas, {BATCH} records a batch, {MODEL * 1000:g} ms a batch; medians of "
        f"{options.rounds}",
        ("what", "value"),
    )
    section.add("records/s, all replicas busy", f"{throughput:,.0f}")
    section.add("median latency at half load", f"{middle * 1000:.1f} ms")
    section.figures.append(
        Figure(
            "throughput",
            "records/s of `infer` with two replicas, over what the model does in two loops alone",
            share,
            THROUGHPUT,
            "x",
            at_least=True,
            shown=f"{throughput:,.0f}, {{}}",
            peer=f"two loops: {peer:,.0f}",
        )
    )
    section.figures.append(
        Figure(
            "latency",
            "99th percentile of a record's latency at half load, over wait and model (25 ms)",
            p99 / (WAIT + MODEL),
            LATENCY,
            "x",
            shown=f"{p99 * 1000:.1f} ms, {{}}",
        )
    )
    results.show(section)
    results.end()


if __name__ == "__main__":
    main()
