"""Rows of a Ray Data dataset into two stream tasks, against `iter_batches` in one process.

The dataset is in Ray's object store. The same blocks are in it again and again, so that each way
reads for at least 10 s. Both ways look at every value. The time of the stream is from the first to
the last batch in a stream task; that of `iter_batches` from its first to its last batch.

Run it alone on the machine.  Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from _results import Figure, Results, Section, parse
from spark_to_stream import LookingSink, looked_at

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import StreamExecutionEnvironment

ROWS = 1_000_000
"""Rows of a block, with 24 bytes each."""
BLOCKS = 16
"""Blocks in the object store."""
TASKS = 2
BATCH_ROWS = 1 << 16
GOAL = 0.8
RAY_OPTIONS: dict[str, Any] = {"num_cpus": 4, "include_dashboard": False}


class Round(NamedTuple):
    """Rows per second of each way."""

    stream: float
    alone: float


def blocks() -> list[Any]:
    """References to blocks in Ray's object store."""
    numbers = np.arange(ROWS)
    return [
        ray.put(pa.table({"id": numbers + n, "key": numbers % 1000, "value": numbers * 0.5}))
        for n in range(BLOCKS)
    ]


def alone(references: Sequence[Any]) -> float:
    rows = 0
    began = last = 0.0
    dataset = ray.data.from_arrow_refs(list(references))
    for batch in dataset.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow"):
        began = began or time.perf_counter()
        rows += looked_at(batch)
        last = time.perf_counter()
    return rows / (last - began)


def into_stream(client: ClusterClient, references: Sequence[Any]) -> float:
    """
    Raises:
        RuntimeError: rows are missing, or are there twice.
    """
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(TASKS)
    with tempfile.TemporaryDirectory(prefix="ray-data-") as folder:
        stream = env.from_dataset(ray.data.from_arrow_refs(list(references)))
        stream.sink_to(LookingSink(folder))
        env.execute("dataset to stream")
        tasks = [json.loads(task.read_text()) for task in Path(folder).glob("task-*.json")]
    rows = sum(task["rows"] for task in tasks)
    if rows != ROWS * len(references):
        raise RuntimeError(f"of {ROWS * len(references):,} rows the stream has seen {rows:,}")
    busy = [task for task in tasks if task["rows"]]
    return float(rows / (max(t["last"] for t in busy) - min(t["first"] for t in busy)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="least length of a run (10)")
    parser.add_argument("--rounds", type=int, default=3)
    options = parse(parser)
    results = Results(options, "flinkray", "ray", "pyarrow")
    configuration = {"taskmanager.numberOfTaskSlots": str(TASKS)}
    rounds: list[Round] = []
    with flinkray.connect(ray_options=RAY_OPTIONS, configuration=configuration) as client:
        few = blocks()
        fastest = max(into_stream(client, few), alone(few))
        many = few * math.ceil(1.5 * options.seconds * fastest / (ROWS * BLOCKS))
        for number in range(options.rounds):
            rounds.append(Round(into_stream(client, many), alone(many)))
            shown = f"{rounds[-1].stream / 1e6:.1f} and {rounds[-1].alone / 1e6:.1f} M rows/s"
            print(f"  {number + 1}/{options.rounds} stream and iter_batches: {shown}", flush=True)
    stream, peer = median(r.stream for r in rounds), median(r.alone for r in rounds)
    ratio = median(one.stream / one.alone for one in rounds)
    section = Section(
        f"{ROWS * len(many):,} rows of 24 bytes; medians of {options.rounds}", ("way", "M rows/s")
    )
    section.add("from_dataset, two tasks", f"{stream / 1e6:.1f}")
    section.add("iter_batches", f"{peer / 1e6:.1f}")
    section.figures.append(
        Figure(
            "from_dataset",
            "rows/s of `env.from_dataset` into two stream tasks, over `iter_batches` alone",
            ratio,
            GOAL,
            "x",
            at_least=True,
            shown=f"{stream / 1e6:.1f} M, {{}}",
            peer=f"iter_batches: {peer / 1e6:.1f} M",
        )
    )
    results.show(section)
    results.end()


if __name__ == "__main__":
    main()
