"""How many records a second stream programs take.

    python benchmarks/streams.py [--seconds 10] [--rounds 5] [--runner local] [--no-peers]
                                 [--only TEXT ...] [--growth]

Bounded inputs, made in the tasks that read them. Each program first runs with more and more records
until they take at least the seconds that were asked for, from the first record that a task reads to
the end of the last sink's input. Then all programs take turns; figures are medians of the rounds.
A program that came below these seconds has no ratio.

The local runner has one process and thread; the runner ``cluster`` starts a cluster with two
slots. Figures are records per second of processor time, of all processes that run tasks together,
and records per second by the clock. Goals beside published figures of two cores are checked by
processor time, times the number of the runner's cores. Goals of one process beside pyarrow, loops
and other projects are checked by processor time. Two slots are compared by the clock with one
process and with pyarrow, in a second cluster in which no process starts while a program runs. The
loop in two processes at the same time shows what the machine gives to two slots at most.

Peers on the same data in this process: pyarrow's group-by and join, in one thread; a loop that adds
to a dictionary; and a loop that calls the generator of the keyed sum, whose state handle looks up
the key in a dictionary. The final sum has the results of the group-by; the running sum puts out a
row for each row. Bytewax and Pathway (one worker each, processor time) and PyFlink (one slot,
bundles of 100,000, clock time without the start of its workers) run in environments of their own,
which are made on first use; `--no-peers` does without. Published figures (`_streams/published.py`)
are those of two cores.

``--growth`` compares, instead of all this, the processor time per record with 1, 2, 4 and 8
subtasks, each in a slot of its own. There are more subtasks than cores, so that figures by the
clock mean nothing.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from _peers import PEERS, PeersUnavailableError, answers, interpreter
from _results import Figure, Results, Section, parse
from _streams import latency, programs
from _streams.measuring import Benchmark, millions, section_of
from _streams.programs import Data
from _streams.published import BYTEWAX_KEYED, PUBLISHED
from _streams.runners import RUNNERS, ClusterRunner, Runner
from _streams.sources import Marks

ROWS = 100_000
"""Records of the shortest run; ten times as many in columns."""
PYFLINK = ("map", "keyed", "window")
"""PyFlink runs in process mode. Thread mode needs a jar moved within the installation, and is
slower with bundles of this size: 125,000 records a second instead of 169,000 in a map, on two
cores."""

BYTEWAX_SUM = "Bytewax: keyed sum, state"
IN_ONE_PROCESS = (
    (programs.KEYED, programs.CALLS, 0.75),
    (programs.KEYED, BYTEWAX_SUM, 2.2),
    (programs.KEYED, "Pathway: keyed sum, from Python", 2.0),
    (programs.WINDOWED, "Bytewax: tumbling window, Python", 2.0),
    (programs.WINDOWED, "Pathway: tumbling window, from Python", 2.0),
    (programs.BATCHES, programs.LOOP, 1.5),
    (programs.SUM, programs.GROUPED, 1.3),
    (programs.FINAL_SUM, programs.GROUPED, 0.25),
    (programs.WINDOWS, programs.GROUPED_WINDOWS, 0.25),
    (programs.JOIN, programs.ARROW_JOIN, 0.8),
)
"""Programs, others that do the same work, and the least ratio of their rates by processor time."""
SUBTASKS = (1, 2, 4, 8)
MOST_GROWTH = 1.2
"""Goal: processor time per record with 8 subtasks, over that with 2."""
LEAST_JOIN = 0.4
"""Millions of records that the join with a Python function takes in a second of processor time."""


def peers(seconds: float) -> Iterator[tuple[str, float]]:
    """Run other projects' programs for so many seconds; give their names and records per second.

    Raises:
        PeersUnavailableError: their environment could not be made, or a program failed.
    """
    python = str(interpreter("streams"))
    for line in answers([python, str(PEERS / "bytewax_streams.py"), str(seconds)]):
        yield f"Bytewax: {line['program']}", line["records"] / line["seconds"]
    script = str(PEERS / "pathway_streams.py")
    for line in answers([str(interpreter("pathway")), script, str(seconds)]):
        yield f"Pathway: {line['program']}", line["records"] / line["seconds"]
    for program in PYFLINK:
        script = str(PEERS / "pyflink_streams.py")
        for line in answers([python, script, program, str(seconds)]):
            yield f"PyFlink: {program}", line["records"] / line["seconds"]


def section_of_others(beside: dict[str, float]) -> Section:
    section = Section("others, measured in this run", ("M records/s", ""), raw={"": beside})
    for name, rate in beside.items():
        section.add(name, millions(rate))
    return section


def published() -> Section:
    section = Section(
        "published, two cores or slots",
        ("M records/s", "Flink, Java", "Flink SQL", "PyFlink, best mode", "Bytewax"),
    )
    for name, figures in PUBLISHED.items():
        sql = "" if figures.flink_sql is None else f"{figures.flink_sql / 1e6:.1f}"
        section.add(
            name,
            f"{figures.flink_java / 1e6:.2f}",
            sql,
            f"{figures.pyflink / 1e6:.3f}",
            figures.bytewax,
        )
    return section


def goals(found: dict[str, float], beside: dict[str, float], cores: int) -> Iterator[Figure]:
    """Ratios to published figures, of all *cores*, and in one process to what the same run
    measured, by processor time. No ratio of programs that were not *found*."""
    where = "two slots: " if cores > 1 else ""
    pyflink, java = "PyFlink's best mode", "Flink's Java"
    compared = [
        (programs.MAP, pyflink, PUBLISHED["map"].pyflink, 8.0),
        (programs.KEYED, pyflink, PUBLISHED["keyed sum"].pyflink, 20.0),
        (programs.SUM, java, PUBLISHED["keyed sum"].flink_java, 2.0),
        (programs.WINDOWS, java, PUBLISHED["tumbling window"].flink_java, 2.0),
    ]
    if BYTEWAX_SUM not in beside:
        compared.append((programs.KEYED, "Bytewax, published", BYTEWAX_KEYED, 1.0))
    if cores == 1:
        measured = {**found, **beside}
        compared += [(mine, it, measured.get(it, 0), bound) for mine, it, bound in IN_ONE_PROCESS]
    for program, other, theirs, bound in compared:
        if program in found and theirs:
            name = other.partition(":")[0].strip()
            what = f"{where}{program}: over {name}"
            ratio = cores * found[program] / theirs
            yield held(what, ratio, bound, found[program], name, theirs)
    if programs.JOIN_ROWS in found and cores == 1:
        what, rate = programs.JOIN_ROWS, found[programs.JOIN_ROWS] / 1e6
        yield Figure(what, what, rate, LEAST_JOIN, "M/s", at_least=True)


def clock_goals(found: dict[str, float]) -> Iterator[Figure]:
    """Ratios of two slots to one process, and to pyarrow."""
    compared = [(it, programs.in_one_process(it), bound) for it, bound in programs.IN_SLOTS_TOO]
    for program, other, bound in (*compared, (programs.SUM, programs.GROUPED, 1.0)):
        if {program, other} <= found.keys():
            name = other.strip().removeprefix(f"{program}, ")
            what = f"two slots, by the clock: {program}: over {name}"
            ratio = found[program] / found[other]
            yield held(what, ratio, bound, found[program], name, found[other])


def held(
    what: str, ratio: float, bound: float | None, mine: float, other: str, theirs: float
) -> Figure:
    """A ratio of two rates, *mine* and *theirs*, with its goal."""
    shown, peer = f"{millions(mine)} M/s, {{}}", f"{other}: {millions(theirs)} M/s"
    return Figure(what, what, ratio, bound, "x", at_least=True, shown=shown, peer=peer)


def beside_one_process(benchmark: Benchmark) -> Section:
    """Compare two slots of a cluster in which nothing else starts with one process."""
    with closing(ClusterRunner(replaces_none=True)) as cluster:
        rates = benchmark.measure(programs.beside_one_process(cluster), cluster)
    section = section_of(
        "two slots of a cluster in which nothing else starts, and one process", rates
    )
    section.figures = list(clock_goals(rates.by_clock))
    return section


def growth(benchmark: Benchmark) -> Section:
    """Compare processor time per record with more and more subtasks."""
    rates: dict[str, float] = {}
    for number in SUBTASKS:
        with closing(ClusterRunner(number, replaces_none=True)) as cluster:
            found = programs.programs(cluster)
            chosen = {programs.in_subtasks(name, number): found[name] for name in programs.GROWING}
            rates |= benchmark.measure(chosen, cluster).by_processor
    most = max(SUBTASKS)
    columns = (f"{number} subtasks" for number in SUBTASKS)
    section = Section("processor time per record", ("ns", *columns), raw={"by_processor": rates})
    for program in programs.GROWING:
        names = {number: programs.in_subtasks(program, number) for number in SUBTASKS}
        if rates.keys() >= set(names.values()):
            costs = {number: 1e9 / rates[name] for number, name in names.items()}
            section.add(program, *(f"{cost:,.1f}" for cost in costs.values()))
            what = f"{program}: processor time per record, {most} subtasks over 2"
            shown, peer = f"{costs[most]:,.1f} ns, {{}}", f"2 subtasks: {costs[2]:,.1f} ns"
            ratio = costs[most] / costs[2]
            section.figures.append(
                Figure(what, what, ratio, MOST_GROWTH, "x", shown=shown, peer=peer)
            )
    return section


def latency_section(runner: Runner, duration: float) -> Section:
    section = Section(
        f"latency at {latency.RATE:,} records/s, buffer time-out {latency.BUFFER_TIMEOUT} ms",
        ("", "p50, ms", "p99, ms"),
    )
    p50, p99 = latency.percentiles(runner, duration)
    section.add("source to sink, by key", f"{p50 * 1000:.2f}", f"{p99 * 1000:.2f}")
    what = f"latency at {latency.RATE:,} records/s in one process"
    section.figures = [
        Figure("p50", f"{what}, p50", p50 * 1000, 5.0, "ms"),
        Figure("p99", f"{what}, p99", p99 * 1000, 30.0, "ms"),
    ]
    section.raw = {"p50": p50, "p99": p99}
    return section


def compare(options: Namespace, results: Results, benchmark: Benchmark) -> None:
    """Run all programs, and those of others."""
    runner = RUNNERS[options.runner]()
    with closing(runner):
        rates = benchmark.measure(programs.programs(runner), runner)
        section = section_of(runner.description, rates)
        section.notes = runner.notes()
        results.show(section)
        if runner.cores > 1:
            results.show(beside_one_process(benchmark))
    beside: dict[str, float] = {}
    if not options.no_peers:
        try:
            beside = dict(peers(options.seconds))
        except PeersUnavailableError as error:
            if options.record:
                sys.exit(str(error))
            print(f"\n{error}")
        else:
            results.show(section_of_others(beside))
    published().show()
    print()
    results.add(*goals(rates.by_processor, beside, runner.cores))
    if runner.cores == 1 and not options.only:  # its sink tells this process
        results.show(latency_section(runner, options.latency))


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="least length of a run (10)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runner", choices=RUNNERS, default="local", help="where programs run")
    parser.add_argument("--no-peers", action="store_true", help="without Bytewax and PyFlink")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="programs with this in the name"
    )
    parser.add_argument(
        "--growth", action="store_true", help="only the growth of processor time with subtasks"
    )
    parser.add_argument("--latency", type=float, default=3.0, help="seconds at the steady rate (3)")
    options = parse(parser, "runner", "growth")
    results = Results(options, "pyarrow", "numpy")
    with tempfile.TemporaryDirectory() as folder:
        make = partial(Data, ROWS, marks=Marks(Path(folder)))
        benchmark = Benchmark(options.seconds, options.rounds, make, options.only)
        if options.growth:
            results.show(growth(benchmark))
            results.end()
        compare(options, results, benchmark)
    results.end()


if __name__ == "__main__":
    main()
