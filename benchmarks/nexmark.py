"""Nexmark: how many events a second one core takes through each query.

    python benchmarks/nexmark.py [--events 4000000] [--rounds 3]

The events are made by the program itself, texts included, as in the published benchmark, and
results are dropped.  One process with one thread runs the program, so it never has more than one
core; events per second of processor time are those of a core that is not shared.  Figures are
medians.  Beside them stand those of Flink 2.3's SQL with two cores, taken on the same kind of
machine, divided by two.
"""

from __future__ import annotations

import argparse
import statistics
import time

from _machine import facts
from _nexmark.events import Nexmark, NexmarkSource
from _nexmark.queries import QUERIES, Query

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink

FLINK_SQL = {
    "q0": 832_000,
    "q1": 909_000,
    "q2": 944_000,
    "q5": 522_000,
    "q7": 208_000,
    "q8": 821_000,
}
"""Events a second on two cores."""


def run(query: Query, settings: Nexmark) -> tuple[float, float]:
    """Seconds of the processor, and of the clock."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    query(env.from_source(NexmarkSource(settings))).sink_to(DiscardingSink())
    begun = time.process_time(), time.perf_counter()
    env.execute("nexmark")
    return time.process_time() - begun[0], time.perf_counter() - begun[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for name, value in facts("pyarrow", "numpy").items():
        print(f"{name}: {value}")
    settings = Nexmark(options.events)
    taken: dict[str, list[tuple[float, float]]] = {query: [] for query in QUERIES}
    for _ in range(options.rounds):
        for name, query in QUERIES.items():
            taken[name].append(run(query, settings))
    print()
    print("Millions of events a second:")
    print()
    print("| Query | processor time | wall | Flink SQL per core | times Flink |")
    print("|---|---|---|---|---|")
    for name, times in taken.items():
        processor, wall = (
            options.events / statistics.median(column) / 1e6 for column in zip(*times, strict=True)
        )
        flink = FLINK_SQL[name] / 2e6
        ratio = processor / flink
        print(f"| {name} | {processor:.2f} | {wall:.2f} | {flink:.2f} | {ratio:.1f} |")


if __name__ == "__main__":
    main()
