"""How many records a second stream programs take.

    python benchmarks/streams.py [--rows 1000000] [--rounds 3] [--runner local] [--no-peers]
                                 [--only TEXT ...]

Bounded inputs, made in the tasks that read them; medians of the rounds, in which all programs take
turns.  The local runner has one process and thread, the one called ``cluster`` starts a cluster and
has two of its slots.  Figures are records per second of the processor's time, of all processes
that run tasks together, so that what else the machine does counts less; and records per second of
the clock.  On a cluster neither counts the start of the job.  Goals are held by the processor's
time: those beside figures of two cores with as many cores as the runner has, those beside pyarrow
with one.  By the clock are held two slots beside one process, in a second cluster, in which no
process starts while a program runs; the loop in two processes at once shows what the machine gives
to two slots at most.

Beside the columnar programs stands pyarrow's own group-by on the same table, in one thread, from
the same run; beside the keyed sum a bare loop with a dictionary.  The final sum has the results of
the group-by; the running sum puts out a row for each row.

Bytewax and Pathway (one worker each, processor time) and PyFlink (one slot, bundles of 100,000,
time of the clock without the start of its workers) run from environments of their own, which are
made on first use; `--no-peers` does without.  Published figures (`_streams/published.py`) are those
of two cores.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from _peers import PEERS, PeersUnavailableError, interpreter
from _results import Figure, Results, Section, parse
from _streams import latency, programs
from _streams.programs import Data, Measurements
from _streams.published import BYTEWAX_KEYED, PUBLISHED
from _streams.runners import RUNNERS, ClusterRunner, Runner, Taken, medians

PYFLINK = {"map": 0.4, "keyed": 0.1, "window": 0.05}
"""Program, and the part of the rows that it is given.  Thread mode needs a jar moved within the
installation, and is slower with bundles of this size: 125,000 records a second instead of 169,000
in a map, on two cores."""

BYTEWAX_SUM = "Bytewax: keyed sum, state"
TWICE = {
    BYTEWAX_SUM: programs.KEYED,
    "Bytewax: tumbling window, Python": programs.WINDOWED,
    "Pathway: keyed sum, from Python": programs.KEYED,
    "Pathway: tumbling window, from Python": programs.WINDOWED,
}
"""Programs of others, and those that are to be at least twice as fast, with one core each."""

OVER_THE_LOOP = ((programs.KEYED, 0.4), (programs.BATCHES, 1.5))
"""Programs, and the least ratio to the loop with a dictionary."""
WITHIN_PYARROW = (
    (programs.FINAL_SUM, programs.GROUPED, 4.0),
    (programs.SUM, programs.GROUPED, 3.0),
    (programs.WINDOWS, programs.GROUPED_WINDOWS, 4.0),
)
"""Programs, those of pyarrow, and how many times as long the former may take."""


def measure(
    measurements: Measurements, runner: Runner, rounds: int, only: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Program -> records a second of processor time, and of the clock.

    Programs are those whose names have one of the texts *only* in them; all if there is none.
    """
    chosen = {
        name: measurement
        for name, measurement in measurements.items()
        if not only or any(text in name for text in only)
    }
    taken: dict[str, list[Taken]] = {name: [] for name in chosen}
    for _ in range(rounds):
        for name, (_, run) in chosen.items():
            runner.come_to_rest()
            taken[name].append(run())
    by_processor, by_clock = {}, {}
    for name, (records, _) in chosen.items():
        median = medians(taken[name])
        by_processor[name] = records / median.processor
        by_clock[name] = records / median.clock
    return by_processor, by_clock


def peers(rows: int) -> Iterator[tuple[str, float]]:
    """Names of other projects' programs, and records a second.

    Raises:
        PeersUnavailableError: their environment could not be made, or a program failed.
    """
    python = str(interpreter("streams"))
    for line in _answers([python, str(PEERS / "bytewax_streams.py"), str(rows)]):
        yield f"Bytewax: {line['program']}", line["records"] / line["seconds"]
    script = str(PEERS / "pathway_streams.py")
    for line in _answers([str(interpreter("pathway")), script, str(rows)]):
        yield f"Pathway: {line['program']}", line["records"] / line["seconds"]
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


def both(by_processor: dict[str, float], by_clock: dict[str, float]) -> dict[str, Any]:
    return {"per processor second": by_processor, "by the clock": by_clock}


def rates(title: str, kinds: dict[str, dict[str, float]]) -> Section:
    """*kinds* of rates, by program; the first are those that goals are held by."""
    first = next(iter(kinds.values()))
    section = Section(title, ("M records/s", *kinds), raw=kinds)
    for name in first:
        section.add(name, *(_millions(found[name]) for found in kinds.values()))
    return section


def _millions(rate: float) -> str:
    return f"{rate / 1e6:,.3f}" if rate < 1e6 else f"{rate / 1e6:,.2f}"


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
    """Ratios to published figures, of all cores, and to what the same run measured, of one, by the
    processor's time; none of programs that were not *found*."""
    where = "two slots: " if cores > 1 else ""
    pyflink, java, loop = "PyFlink's best mode", "Flink's Java", programs.LOOP
    compared = [(program, other, beside.get(other), 2.0, 1) for other, program in TWICE.items()]
    compared += [(program, loop, found.get(loop), bound, 1) for program, bound in OVER_THE_LOOP]
    compared += [
        (programs.MAP, pyflink, PUBLISHED["map"].pyflink, 8.0, cores),
        (programs.KEYED, pyflink, PUBLISHED["keyed sum"].pyflink, 20.0, cores),
        (programs.SUM, java, PUBLISHED["keyed sum"].flink_java, 2.0, cores),
        (programs.WINDOWS, java, PUBLISHED["tumbling window"].flink_java, 2.0, cores),
    ]
    if BYTEWAX_SUM not in beside:
        compared.append((programs.KEYED, "Bytewax, published", BYTEWAX_KEYED, 1.0, cores))
    for program, other, theirs, bound, workers in compared:
        if program in found and theirs is not None:
            name = other.partition(":")[0].strip()
            what = f"{where}{program}: over {name}"
            ratio = workers * found[program] / theirs
            yield held(what, ratio, bound, found[program], name, theirs)
    if programs.JOIN in found:
        what = f"{where}{programs.JOIN}"
        yield Figure(what, what, found[programs.JOIN] / 1e6, unit="M/s")
    for program, other, bound in WITHIN_PYARROW:
        if {program, other} <= found.keys():
            what = f"{where}{program}: time, over {other.strip()}"
            ratio = found[other] / found[program]
            yield held(what, ratio, bound, found[program], other, found[other], at_least=False)


def clock_goals(found: dict[str, float]) -> Iterator[Figure]:
    """Of programs in two slots beside one process."""
    for program in programs.IN_SLOTS_TOO:
        alone = programs.in_one_process(program)
        if {program, alone} <= found.keys():
            what = f"two slots, by the clock: {program}: over one process"
            ratio = found[program] / found[alone]
            yield held(what, ratio, 1.4, found[program], "one process", found[alone])


def held(
    what: str,
    ratio: float,
    bound: float,
    mine: float,
    other: str,
    theirs: float,
    *,
    at_least: bool = True,
) -> Figure:
    """A ratio of two rates, *mine* and *theirs*, with its goal."""
    shown, peer = f"{_millions(mine)} M/s, {{}}", f"{other.strip()}: {_millions(theirs)} M/s"
    return Figure(what, what, ratio, bound, "x", at_least=at_least, shown=shown, peer=peer)


def beside_one_process(data: Data, rounds: int, only: Sequence[str]) -> Section:
    """Two slots of a cluster in which nothing else starts, and one process."""
    with closing(ClusterRunner(replaces_none=True)) as cluster:
        chosen = programs.beside_one_process(data, cluster)
        by_processor, by_clock = measure(chosen, cluster, rounds, only)
    title = "two slots of a cluster in which nothing else starts, and one process"
    section = rates(title, both(by_processor, by_clock))
    section.figures = list(clock_goals(by_clock))
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="ten times as many in columns")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runner", choices=RUNNERS, default="local", help="where programs run")
    parser.add_argument("--no-peers", action="store_true", help="without Bytewax and PyFlink")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="programs with this in the name"
    )
    parser.add_argument("--latency", type=float, default=3.0, help="seconds at the steady rate (3)")
    options = parse(parser, "runner")
    results = Results(options, "pyarrow", "numpy")
    data = Data(options.rows)
    runner = RUNNERS[options.runner]()
    with closing(runner):
        chosen = programs.measurements(data, runner)
        by_processor, by_clock = measure(chosen, runner, options.rounds, options.only)
        section = rates(runner.description, both(by_processor, by_clock))
        section.notes = runner.notes()
        results.show(section)
    if runner.cores > 1:
        results.show(beside_one_process(data, options.rounds, options.only))
    beside: dict[str, float] = {}
    if not options.no_peers:
        try:
            beside = dict(peers(options.rows))
        except PeersUnavailableError as error:
            if options.record:
                sys.exit(str(error))
            print(f"\n{error}")
        else:
            results.show(rates("others, measured in this run", {"": beside}))
    published().show()
    print()
    results.add(*goals(by_processor, beside, runner.cores))
    if runner.cores == 1 and not options.only:  # its sink tells this process
        results.show(latency_section(runner, options.latency))
    results.end()


if __name__ == "__main__":
    main()
