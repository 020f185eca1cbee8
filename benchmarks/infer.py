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
    Types,
)
from flinkray.datastream.connectors import IteratorSource
from flinkray.streaming.operators.model_replicas import answer
from flinkray.streaming.records.arrow_bytes import serialized

REPLICAS = 2
BATCH = 64
MODEL = 0.005
"""Seconds that the model takes for a batch."""
WAIT = 0.02
"""Seconds that records wait for a full batch."""
WARM_UP = 3.0
"""Seconds at the beginning of a run that do not count."""
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


def seen(client: ClusterClient, seconds: float, rate: float | None) -> Any:
    """When each record was seen and how old it was, of a run that offers *rate* records a second
    (None: as many as are taken)."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(1)
    env.set_buffer_timeout(1)

    def records(_: int, offset: int) -> Iterator[float]:
        began = time.time()
        number = 0
        while (now := time.time()) - began < seconds + WARM_UP:
            if rate is None or number < (now - began) * rate:
                number += 1
                yield now
            else:
                time.sleep(0.0005)

    source = env.from_source(IteratorSource(records), type_info=Types.DOUBLE())
    stream: DataStream[Any] = source.map(lambda at: (at,), Types.TUPLE([Types.DOUBLE()]))
    results = stream.infer(
        Sleeper(), batch_size=BATCH, max_wait=f"{WAIT * 1000:g} ms", replicas=REPLICAS,
        cpu=0.5, memory="200m", shared="sleeper",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="infer-") as folder:
        path = Path(folder) / "seen.npy"
        results.add_sink(Watch(path))
        env.execute("infer")
        found = np.load(path)
    return found[found[:, 0] >= found[0, 0] + WARM_UP]


def measured(client: ClusterClient, seconds: float) -> Round:
    peer = alone()
    full = seen(client, seconds, None)
    throughput = len(full) / (full[-1, 0] - full[0, 0])
    half = seen(client, seconds, REPLICAS * peer / 2)
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
