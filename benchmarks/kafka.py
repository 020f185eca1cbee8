"""What a record costs from Kafka to Kafka: JSON, a tumbling window of each key, exactly once.

    python benchmarks/kafka.py [--seconds 10] [--rounds 3] [--no-peers] [--profile]

Reads visits of 1000 users (JSON of about 150 bytes) from two partitions, counts visits and adds up
amounts of each user in windows of 1 s, and writes the results as JSON in transactions; in one
subtask and in two subtasks of a cluster. A checkpoint begins every 5 s. After each run, the results
that Kafka has committed must count each record once. The broker is the tests' one (`noida-db`), or
the cluster that FLINKRAY_TEST_KAFKA names; the broker's processor time is not counted.

Each program first runs with more and more records until they take at least the seconds that were
asked for, from the first record that a task reads to the end of the sinks' input. Figures are
medians of the rounds: seconds of processor time, of all task processes, for a million records, and
records per second by the clock. The clock's figure is also the broker's, which runs on the same
cores.

Peers do the same on the same broker, each in one process, in an environment of their own, which is
made on first use: Quix Streams with `processing_guarantee="exactly-once"`, and Bytewax with its
recovery store (its sink writes without transactions, so that a failure repeats results).

`--profile` runs the program cut off behind each of its steps: a step costs as much as the program
costs more with the step.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from operator import attrgetter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from _peers import PeersUnavailableError, answers, interpreter
from _results import Figure, Results, Section, parse
from _streams.kafka_window import CHECKPOINTS, LARGEST_ANSWER, STEPS, WRITTEN, Messages, run
from _streams.measuring import Benchmark, Rates
from _streams.programs import Program
from _streams.runners import ClusterRunner, LocalRunner, Runner, Taken, medians
from _streams.sources import Marks

from tests.streaming.kafka.brokers import any_broker, why_not

MOST = {1: 8.0, 2: 9.0}
"""Goals: seconds of processor time for a million records, by the number of subtasks."""
PROFILED = 5
"""Blocks of messages that a run of the profile reads."""
PEERS = ("Quix Streams", "Bytewax")


def title(subtasks: int) -> str:
    return f"{subtasks} subtask{'s' if subtasks > 1 else ''}"


def peer(python: Path, name: str, messages: Messages) -> Taken:
    """Run the peer's program until it has read all messages."""
    script = str(Path(__file__).parent / "peers" / "kafka_windows.py")
    target = messages.broker.topic(2)
    numbers = map(str, (messages.records, CHECKPOINTS, LARGEST_ANSWER))
    topics = (messages.broker.servers, messages.topic, target)
    (line,) = answers([str(python), script, name, *topics, *numbers])
    return Taken(line["processor"], line["clock"])


def seconds_a_million(rates: Rates) -> dict[str, float]:
    return {name: 1e6 / rate for name, rate in rates.by_processor.items()}


def section_of(rates: Rates) -> Section:
    columns = ("", "processor time, s/M", "records/s by the clock")
    section = Section("from Kafka to Kafka", columns, raw=rates._asdict())
    for name, cost in seconds_a_million(rates).items():
        section.add(name, f"{cost:.2f}", f"{rates.by_clock[name]:,.0f}")
    section.figures = list(goals(rates))
    return section


def goals(rates: Rates) -> Iterator[Figure]:
    cost = seconds_a_million(rates)
    for subtasks, most in MOST.items():
        name = title(subtasks)
        if name in cost:
            what = f"Kafka, JSON, window, Kafka, exactly once, {name}: processor time per million"
            shown = f"{{}}, {rates.by_clock[name]:,.0f} records/s by the clock"
            others = [f"{peer}: {cost[peer]:.1f} s" for peer in PEERS if peer in cost]
            yield Figure(what, what, cost[name], most, "s", shown=shown, peer="; ".join(others))


def profile(found: Mapping[int, Mapping[str, float]]) -> Section:
    """Show what each step of the program costs: its cost, less that of the step before."""
    section = Section("profile", ("processor time, s/M", *map(title, found)))
    before = dict.fromkeys(found, 0.0)
    for step in STEPS:
        costs = {subtasks: of[step] for subtasks, of in found.items()}
        section.add(step, *(f"{cost - before[n]:.2f}" for n, cost in costs.items()))
        before = costs
    section.add("all", *(f"{cost:.2f}" for cost in before.values()))
    section.raw = {title(subtasks): of for subtasks, of in found.items()}
    return section


def costs_up_to(cluster: Runner, messages: Messages, rounds: int) -> dict[str, float]:
    """Return the program's cost up to each step. Medians of the rounds."""
    taken = {step: [run(cluster, step, messages) for _ in range(rounds)] for step in STEPS}
    return {step: 1e6 * medians(of).processor / messages.records for step, of in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="least length of a run (10)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program (3)")
    parser.add_argument("--no-peers", action="store_true", help="without Quix Streams and Bytewax")
    parser.add_argument(
        "--profile", action="store_true", help="show the cost of each step of the program"
    )
    options = parse(parser, "profile")
    if reason := why_not():
        sys.exit(reason)
    results = Results(options, "confluent-kafka")
    with (
        tempfile.TemporaryDirectory() as folder,
        any_broker(Path(folder)) as broker,
        tempfile.TemporaryDirectory() as marks,
    ):
        make = partial(Messages, broker, Marks(Path(marks)))
        records = attrgetter("records")
        benchmark = Benchmark(options.seconds, options.rounds, make)
        rates, steps = Rates({}, {}), {}
        for subtasks in MOST:
            with closing(ClusterRunner(subtasks, replaces_none=True)) as cluster:
                program = Program(records, partial(run, cluster, WRITTEN))
                rates = rates.plus(benchmark.measure({title(subtasks): program}, cluster))
                if options.profile:
                    steps[subtasks] = costs_up_to(cluster, make(PROFILED), options.rounds)
        if not options.no_peers:
            try:
                python = interpreter("kafka")
                peers = {name: Program(records, partial(peer, python, name)) for name in PEERS}
                rates = rates.plus(benchmark.measure(peers, LocalRunner()))
            except PeersUnavailableError as error:
                sys.exit(str(error))
        results.show(section_of(rates))
        if steps:
            results.show(profile(steps))
    results.end()


if __name__ == "__main__":
    main()
