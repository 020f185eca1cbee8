"""Nexmark: how many events a second one core takes through each query.

    python benchmarks/nexmark.py [--events 4000000] [--rounds 3] [--runner local] [--json FILE]

The events are made by the program itself, texts included, as in the published benchmark, and
results are dropped.  First every query's results on fewer events are compared with DuckDB's.  The
local runner has one process with one thread, so it never has more than one core; events per second
of processor time are those of a core that is not shared.  Figures are medians.  Beside them stand
those of Flink 2.3's SQL with two cores (`_streams/published.py`), divided by two.

Exit status 1: a goal was missed, or results differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import duckdb
from _machine import facts
from _nexmark.events import Nexmark, NexmarkSource
from _nexmark.queries import QUERIES, Query
from _nexmark.sql import SQL, tables
from _rpc.report import Goal, Section
from _streams.published import NEXMARK_SQL
from _streams.runners import RUNNERS, Runner, seconds

from flinkray.datastream import DataStream, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink

CHECKED_EVENTS = 300_000
CORES_OF_FLINK = 2
GOAL = 1.5


def stream(query: Query, settings: Nexmark, env: StreamExecutionEnvironment) -> DataStream:
    return query(env.from_source(NexmarkSource(settings)))


def run(query: Query, settings: Nexmark, runner: Runner) -> float:
    """Seconds."""
    return seconds(runner, lambda env: stream(query, settings, env).sink_to(DiscardingSink()))


def differing(runner: Runner) -> list[str]:
    """Queries whose results are not DuckDB's."""
    settings = Nexmark(CHECKED_EVENTS)
    connection = duckdb.connect(config={"threads": 1})
    for name, table in tables(settings).items():
        connection.register(name, table)
    wrong = []
    for name, query in QUERIES.items():
        results = stream(query, settings, runner.environment()).execute_and_collect()
        found = Counter(tuple(row) for row in results)
        expected = Counter(connection.execute(SQL[name]).fetchall())
        print(f"{name}: {found.total():,} results, {expected.total():,} from DuckDB", flush=True)
        if found != expected or not expected:
            wrong.append(name)
    return wrong


def measured(settings: Nexmark, runner: Runner, rounds: int) -> Section:
    taken: dict[str, list[float]] = {query: [] for query in QUERIES}
    for _ in range(rounds):
        for name, query in QUERIES.items():
            taken[name].append(run(query, settings, runner))
    section = Section(
        f"millions of events a second, {runner.description}",
        ("query", "per core", "Flink SQL per core", "times Flink"),
    )
    for name, times in taken.items():
        rate = settings.events / statistics.median(times) / runner.cores
        flink = NEXMARK_SQL[name] / CORES_OF_FLINK
        section.add(name, f"{rate / 1e6:.2f}", f"{flink / 1e6:.2f}", f"{rate / flink:.1f}")
        section.figures[name] = rate
        section.goals.append(
            Goal(f"{name}: over Flink's SQL, per core", rate / flink, GOAL, True, 1)
        )
    return section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runner", choices=RUNNERS, default="local", help="where programs run")
    parser.add_argument("--json", type=Path, help="also write machine, goals and figures here")
    options = parser.parse_args()
    machine = facts("pyarrow", "numpy", "duckdb")
    for name, value in machine.items():
        print(f"{name:<28}{value}")
    runner = RUNNERS[options.runner]()
    with closing(runner):
        print(f"\n== results of {CHECKED_EVENTS:,} events")
        wrong = differing(runner)
        section = measured(Nexmark(options.events), runner, options.rounds)
    section.goals.insert(
        0, Goal("queries whose results differ from DuckDB's", len(wrong), 0, digits=0)
    )
    section.show()
    if options.json:
        report = {
            "machine": machine,
            "runner": options.runner,
            "events": options.events,
            "rounds": options.rounds,
            "differing": wrong,
            "goals": {
                goal.what: {"value": goal.value, "bound": goal.bound, "met": goal.is_met}
                for goal in section.goals
            },
            "events per second and core": section.figures,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    sys.exit(0 if all(goal.is_met for goal in section.goals) else 1)


if __name__ == "__main__":
    main()
