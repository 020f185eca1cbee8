"""Nexmark: how many events a second one core takes through each query.

    python benchmarks/nexmark.py [--events 4000000] [--rounds 3] [--runner local]

The events are made by the program itself, texts included, as in the published benchmark, and
results are dropped.  First every query's results on fewer events are compared with DuckDB's.
Figures are medians, per core: by the processor's time of all processes that run tasks, which is
what a core that is not shared would give, and by the clock.  Goals are held by the former.  On a
cluster neither counts the start of the job.  Beside them stand those of Flink 2.3's SQL with two
cores, by the clock (`_streams/published.py`), divided by two.

Exit status 1: a goal was missed, or results differ.
"""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing

import duckdb
from _results import Figure, Results, Section, parse
from _streams.nexmark.events import Nexmark, NexmarkSource
from _streams.nexmark.queries import QUERIES, Query
from _streams.nexmark.sql import SQL, tables
from _streams.published import NEXMARK_SQL
from _streams.runners import RUNNERS, Runner, Taken, medians
from _streams.runners import run as run_program

from flinkray.datastream import DataStream, StreamExecutionEnvironment
from flinkray.datastream.connectors import DiscardingSink

CHECKED_EVENTS = 300_000
CORES_OF_FLINK = 2
FLINK = [rate / CORES_OF_FLINK for rate in NEXMARK_SQL.values()]
GOAL = 1.5


def stream(query: Query, settings: Nexmark, env: StreamExecutionEnvironment) -> DataStream:
    return query(env.from_source(NexmarkSource(settings)))


def run(query: Query, settings: Nexmark, runner: Runner) -> Taken:
    return run_program(runner, lambda env: stream(query, settings, env).sink_to(DiscardingSink()))


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
    taken: dict[str, list[Taken]] = {query: [] for query in QUERIES}
    for _ in range(rounds):
        for name, query in QUERIES.items():
            taken[name].append(run(query, settings, runner))
    section = Section(
        f"millions of events a second and core, {runner.description}",
        ("query", "by processor time", "by the clock", "Flink SQL", "times Flink", "by the clock"),
    )
    ratios = {}
    for name, times in taken.items():
        median = medians(times)
        rate, by_clock = settings.events / median.processor, settings.events / median.clock
        by_clock /= runner.cores
        flink = NEXMARK_SQL[name] / CORES_OF_FLINK
        shown = [f"{figure / 1e6:.2f}" for figure in (rate, by_clock, flink)]
        section.add(name, *shown, f"{rate / flink:.1f}", f"{by_clock / flink:.1f}")
        section.raw[name] = {"processor": rate, "clock": by_clock}
        ratios[rate / flink] = name
    least, most = min(ratios), max(ratios)
    what = f"Nexmark {', '.join(QUERIES)} on columns, {runner.description}: events per second and"
    section.figures = [
        Figure(
            runner.description,
            f"{what} core, slowest query over Flink SQL",
            least,
            GOAL,
            "x",
            at_least=True,
            shown=f"{ratios[least]} {{}} to {ratios[most]} {most:.1f} x",
            peer=f"Flink 2.3 SQL: {min(FLINK) / 1e6:.2f} to {max(FLINK) / 1e6:.2f} M",
        )
    ]
    return section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runner", choices=RUNNERS, default="local", help="where programs run")
    options = parse(parser, "runner")
    results = Results(options, "pyarrow", "numpy", "duckdb")
    runner = RUNNERS[options.runner]()
    with closing(runner):
        print(f"\n== results of {CHECKED_EVENTS:,} events")
        wrong = differing(runner)
        section = measured(Nexmark(options.events), runner, options.rounds)
        section.notes = runner.notes()
    what = f"Nexmark, {runner.description}: queries whose results are not DuckDB's"
    section.figures.append(Figure(f"{runner.description}: wrong", what, len(wrong), 0))
    results.show(section)
    results.end()


if __name__ == "__main__":
    main()
