"""How many records a second stream programs take in one process.

    python benchmarks/streams.py [--rows 1000000] [--rounds 3] [--no-peers]

Bounded inputs through the local runner, which has one thread; time is the processor's, so that
whatever else the machine does counts less, and the fastest of the rounds is shown.  Beside the
columnar programs stands pyarrow's own group-by on the same table, on one thread, from the same
run; beside the keyed sum a bare loop with a dictionary.

Bytewax (one worker, processor time) and PyFlink (one slot, bundles of 100,000, time of the clock
without the start of its workers) run from an environment of their own, which is made on first use;
`--no-peers` does without.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from _machine import facts
from _peers import PEERS, PeersUnavailableError, interpreter

from flinkray.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import ArrowSource, CollectionSource, DiscardingSink
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import TumblingEventTimeWindows

KEYS = 1000
JOIN_KEYS = 100_000
WINDOW = 1000


class RunningSum(KeyedProcessFunction[Any, Any, Any]):
    """The keyed sum as a PyFlink user writes it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        yield value[0], total


class CountAndSum(AggregateFunction[Any, Any, Any]):
    """Two numbers per window."""

    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value[1]

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def environment(parallelism: int) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)


def run(
    build: Callable[[StreamExecutionEnvironment], Any],
    parallelism: int = 1,
    mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING,
) -> float:
    env = environment(parallelism).set_runtime_mode(mode)
    build(env).sink_to(DiscardingSink())
    begun = time.process_time()
    env.execute("benchmark")
    return time.process_time() - begun


def programs(rows: int) -> dict[str, tuple[int, Callable[[], float]]]:
    """Name -> records and what takes the time of one run."""
    pairs = [(number * 7919 % KEYS, number) for number in range(rows)]
    stamped = [(key, number, number // 100) for key, number in pairs]
    many = rows * 10
    numbers = np.arange(many)
    table = pa.table({"k": numbers * 7919 % KEYS, "v": numbers, "t": numbers // 100})
    names = pa.array([f"key-{key}" for key in range(KEYS)])
    texts = table.set_column(0, "k", names.take(table["k"].combine_chunks()))
    third = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: value[2]
    )
    column = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("t")
    tumbling = TumblingEventTimeWindows.of(WINDOW)
    # Two streams of half the rows each; in a window, a key comes about once in each.
    half = np.arange(many // 2)
    left = pa.table({"k": half * 7919 % JOIN_KEYS, "v": half, "t": half // 100})
    right = pa.table({"k": half * 6841 % JOIN_KEYS, "x": half, "t": half // 100})
    pairs_of = [
        [tuple(row.values()) for row in table.slice(0, rows // 2).to_pylist()]
        for table in (left, right)
    ]

    def python_join(env: StreamExecutionEnvironment) -> Any:
        first, second = (
            env.from_source(CollectionSource(values)).assign_timestamps_and_watermarks(third)
            for values in pairs_of
        )
        keyed = first.join(second).where(lambda v: v[0]).equal_to(lambda v: v[0])
        return keyed.window(tumbling).apply(lambda a, b: (a[0], a[1], b[1]))

    def columns_join(env: StreamExecutionEnvironment) -> Any:
        first, second = (
            env.from_source(ArrowSource(table)).assign_timestamps_and_watermarks(column)
            for table in (left, right)
        )
        return first.join(second).where("k").equal_to("k").window(tumbling).columns()

    def python_sum(env: StreamExecutionEnvironment) -> Any:
        return env.from_source(CollectionSource(pairs)).key_by(lambda v: v[0]).process(RunningSum())

    def python_window(env: StreamExecutionEnvironment) -> Any:
        stream = env.from_source(CollectionSource(stamped)).assign_timestamps_and_watermarks(third)
        return stream.key_by(lambda v: v[0]).window(tumbling).aggregate(CountAndSum())

    def columns_sum(data: pa.Table) -> Callable[[StreamExecutionEnvironment], Any]:
        return lambda env: env.from_source(ArrowSource(data)).key_by("k").sum("v")

    def columns_window(data: pa.Table) -> Callable[[StreamExecutionEnvironment], Any]:
        return lambda env: (
            env.from_source(ArrowSource(data))
            .assign_timestamps_and_watermarks(column)
            .key_by("k")
            .window(tumbling)
            .aggregate_columns(n="count", total=("v", "sum"))
        )

    def doubled(env: StreamExecutionEnvironment) -> Any:
        return env.from_source(CollectionSource(range(rows))).map(lambda x: x * 2)

    def dictionary() -> float:
        begun = time.process_time()
        totals: dict[int, int] = {}
        for key, value in pairs:
            totals[key] = totals.get(key, 0) + value
        return time.process_time() - begun

    def group_by() -> float:
        begun = time.process_time()
        table.group_by("k", use_threads=False).aggregate([("v", "sum")])
        return time.process_time() - begun

    def group_by_window() -> float:
        begun = time.process_time()
        windows = pc.divide(table["t"], WINDOW)
        table.append_column("w", windows).group_by(["k", "w"], use_threads=False).aggregate(
            [("v", "sum"), ("v", "count")]
        )
        return time.process_time() - begun

    def join_once() -> float:
        begun = time.process_time()
        first, second = (
            table.append_column("w", pc.divide(table["t"], WINDOW)) for table in (left, right)
        )
        first.join(second.drop_columns("t"), ["k", "w"], join_type="inner", use_threads=False)
        return time.process_time() - begun

    return {
        "map, Python function": (rows, lambda: run(doubled)),
        "keyed sum, ValueState": (rows, lambda: run(python_sum)),
        "keyed sum, ValueState, 2 subtasks": (rows, lambda: run(python_sum, 2)),
        "a loop with a dictionary": (rows, dictionary),
        "tumbling window, Python aggregate": (rows, lambda: run(python_window)),
        "keyed sum, columns": (many, lambda: run(columns_sum(table))),
        "keyed sum, columns, 2 subtasks": (many, lambda: run(columns_sum(table), 2)),
        "final keyed sum (batch mode), columns": (
            many,
            lambda: run(columns_sum(table), mode=RuntimeExecutionMode.BATCH),
        ),
        "keyed sum, columns, text keys": (many, lambda: run(columns_sum(texts))),
        "pyarrow group-by, sum": (many, group_by),
        "tumbling window, columns": (many, lambda: run(columns_window(table))),
        "tumbling window, columns, 2 subtasks": (many, lambda: run(columns_window(table), 2)),
        "tumbling window, columns, text keys": (many, lambda: run(columns_window(texts))),
        "pyarrow group-by, key and window": (many, group_by_window),
        "two-stream join in windows, Python function": (rows, lambda: run(python_join)),
        "two-stream join in windows, columns": (many, lambda: run(columns_join)),
        "pyarrow join, key and window": (many, join_once),
    }


PYFLINK = {"map": 0.4, "keyed": 0.1, "window": 0.05}
"""Program, and the part of the rows that it is given.  Thread mode needs a jar moved within the
installation, and is slower with bundles of this size: 125,000 records a second instead of 169,000
in a map, on two cores."""

PUBLISHED = """
Published figures on two cores of such a machine, M records/s:

| Work | Flink 2.3, Java | Flink SQL | PyFlink, best mode | Bytewax |
|---|---|---|---|---|
| map | 30.1 | | 0.169 | 10 to 15 (batched) |
| keyed sum | 7.27 | 1.6 | 0.038 | 0.5 |
| tumbling window | 5.64 | 1.9 | 0.015 | 0.06 to 0.09 |
"""


def peers(rows: int) -> Iterator[tuple[str, float]]:
    """Names of other projects' programs, and records a second.

    Raises:
        PeersUnavailableError: their environment could not be made, or a program failed.
    """
    python = str(interpreter("streams"))
    for line in _answers([python, str(PEERS / "bytewax_streams.py"), str(rows)]):
        yield f"Bytewax: {line['program']}", line["records"] / line["seconds"]
    for program, part in PYFLINK.items():
        count = str(int(rows * part))
        script = str(PEERS / "pyflink_streams.py")
        for line in _answers([python, script, program, count]):
            yield f"PyFlink: {program}", line["records"] / line["seconds"]


def _answers(command: list[str]) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode != 0:
        raise PeersUnavailableError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="ten times as many in columns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-peers", action="store_true", help="without Bytewax and PyFlink")
    options = parser.parse_args()
    for name, value in facts("pyarrow", "numpy").items():
        print(f"{name}: {value}")
    chosen = programs(options.rows)
    best = dict.fromkeys(chosen, float("inf"))
    for _ in range(options.rounds):
        for name, (_, measure) in chosen.items():
            best[name] = min(best[name], measure())
    print()
    print("| Program, one process | M records/s |")
    print("|---|---|")
    for name, (records, _) in chosen.items():
        print(f"| {name} | {records / best[name] / 1e6:.2f} |")
    if not options.no_peers:
        try:
            for name, rate in peers(options.rows):
                print(f"| {name} | {rate / 1e6:.3f} |", flush=True)
        except PeersUnavailableError as error:
            print()
            print(error)
    print(PUBLISHED)


if __name__ == "__main__":
    main()
