"""How many records a second stream programs take.

    python benchmarks/streams.py [--seconds 10] [--rounds 5] [--runner local] [--no-peers]
                                 [--only TEXT ...]

Bounded inputs, made in the tasks that read them. Each program first runs with more and more records
until they take at least the seconds that were asked for, from the first record that a task reads to
the end of the last sink's input. Then all programs take turns; figures are medians of the rounds.
A program that came below these seconds has no ratio.

The local runner has one process and thread; the runner ``cluster`` starts a cluster with two
slots. Figures are records per second of processor time, of all processes that run tasks together,
and records per second by the clock. Goals beside published figures of two cores are checked by
processor time, times the number of the runner's cores. Goals beside pyarrow and other projects
measured in this run are checked by processor time of one core. Two slots beside one process are
compared by the clock, in a second cluster in which no process starts while a program runs. The
loop in two processes at the same time shows what the machine gives to two slots at most.

Peers on the same data in this process: pyarrow's group-by and join, in one thread, and a bare loop
with a dictionary. The final sum has the results of the group-by; the running sum puts out a row for
each row. Bytewax and Pathway (one worker each, processor time) and PyFlink (one slot, bundles of
100,000, clock time without the start of its workers) run in environments of their own, which are
made on first use; `--no-peers` does without. Published figures (`_streams/published.py`) are those
of two cores.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from _peers import PEERS, PeersUnavailableError, interpreter
from _results import Figure, Results, Section, parse
from _streams import latency, programs
from _streams.programs import Data, Program
from _streams.published import BYTEWAX_KEYED, PUBLISHED
from _streams.runners import RUNNERS, ClusterRunner, Runner, Taken, medians
from _streams.sources import Marks

ROWS = 100_000
"""Records of the shortest run; ten times as many in columns."""
PYFLINK = ("map", "keyed", "window")
"""PyFlink runs in process mode. Thread mode needs a jar moved within the installation, and is
slower with bundles of this size: 125,000 records a second instead of 169,000 in a map, on two
cores."""

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


class Rates(NamedTuple):
    """Records per second of each program that ran long enough."""

    by_processor: dict[str, float]
    by_clock: dict[str, float]


class Benchmark:
    """Runs programs for the wanted time."""

    def __init__(self, seconds: float, rounds: int, only: Sequence[str], folder: Path) -> None:
        """Run only programs whose names contain one of the texts *only*; all if it is empty."""
        self._seconds = seconds
        self._rounds = rounds
        self._only = only
        self._marks = Marks(folder)

    def measure(self, programs: Mapping[str, Program], runner: Runner) -> Rates:
        chosen = {
            name: program
            for name, program in programs.items()
            if not self._only or any(text in name for text in self._only)
        }
        data = {name: self._enough(program, runner) for name, program in chosen.items()}
        taken: dict[str, list[Taken]] = {name: [] for name in chosen}
        for _ in range(self._rounds):
            for name, program in chosen.items():
                taken[name].append(self._run(program, data[name], runner))
        rates = Rates({}, {})
        for name, program in chosen.items():
            records, median = program.records(data[name]), medians(taken[name])
            least = min(run.clock for run in taken[name])
            if least < self._seconds:
                print(f"{name}: no figure, one of the runs took only {least:.1f} s")
                continue
            rates.by_processor[name] = records / median.processor
            rates.by_clock[name] = records / median.clock
        return rates

    def _enough(self, program: Program, runner: Runner) -> Data:
        """Return data that take the program a fifth longer than the wanted seconds."""
        times = 1
        wanted = 1.2 * self._seconds
        while True:
            data = Data(ROWS, times, self._marks)
            took = self._run(program, data, runner).clock
            if took >= wanted:
                return data
            # the first runs take longer for a record: they start processes and fill caches
            times = math.ceil(times * min(20.0, max(1.1, 1.1 * wanted / took)))

    @staticmethod
    def _run(program: Program, data: Data, runner: Runner) -> Taken:
        runner.come_to_rest()
        return program.run(data)


def peers(seconds: float) -> Iterator[tuple[str, float]]:
    """Run other projects' programs for so many seconds; give their names and records per second.

    Raises:
        PeersUnavailableError: their environment could not be made, or a program failed.
    """
    python = str(interpreter("streams"))
    for line in _answers([python, str(PEERS / "bytewax_streams.py"), str(seconds)]):
        yield f"Bytewax: {line['program']}", line["records"] / line["seconds"]
    script = str(PEERS / "pathway_streams.py")
    for line in _answers([str(interpreter("pathway")), script, str(seconds)]):
        yield f"Pathway: {line['program']}", line["records"] / line["seconds"]
    for program in PYFLINK:
        script = str(PEERS / "pyflink_streams.py")
        for line in _answers([python, script, program, str(seconds)]):
            yield f"PyFlink: {program}", line["records"] / line["seconds"]


def _answers(command: list[str]) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode != 0:
        raise PeersUnavailableError(f"{' '.join(command)} failed:\n{done.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def section_of(title: str, rates: Rates) -> Section:
    section = Section(title, ("M records/s", "per processor second", "by the clock"))
    section.raw = rates._asdict()
    for name in rates.by_clock:
        section.add(name, _millions(rates.by_processor[name]), _millions(rates.by_clock[name]))
    return section


def section_of_others(beside: dict[str, float]) -> Section:
    section = Section("others, measured in this run", ("M records/s", ""), raw={"": beside})
    for name, rate in beside.items():
        section.add(name, _millions(rate))
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


def beside_one_process(benchmark: Benchmark) -> Section:
    """Compare two slots of a cluster in which nothing else starts with one process."""
    with closing(ClusterRunner(replaces_none=True)) as cluster:
        rates = benchmark.measure(programs.beside_one_process(cluster), cluster)
    section = section_of(
        "two slots of a cluster in which nothing else starts, and one process", rates
    )
    section.figures = list(clock_goals(rates.by_clock))
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
    parser.add_argument("--seconds", type=float, default=10.0, help="least length of a run (10)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runner", choices=RUNNERS, default="local", help="where programs run")
    parser.add_argument("--no-peers", action="store_true", help="without Bytewax and PyFlink")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="programs with this in the name"
    )
    parser.add_argument("--latency", type=float, default=3.0, help="seconds at the steady rate (3)")
    options = parse(parser, "runner")
    results = Results(options, "pyarrow", "numpy")
    runner = RUNNERS[options.runner]()
    with closing(runner), tempfile.TemporaryDirectory() as folder:
        benchmark = Benchmark(options.seconds, options.rounds, options.only, Path(folder))
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
    results.end()


if __name__ == "__main__":
    main()
