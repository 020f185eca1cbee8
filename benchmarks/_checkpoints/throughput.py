"""What an interval of one second costs the throughput of a keyed program."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any

from _results import Figure, Results
from _streams.programs import BLOCK_RECORDS, RunningSum
from _streams.runners import ClusterRunner, Runner, Taken, time_of
from _streams.sources import Values

from flinkray.datastream import (
    Configuration,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DiscardingSink
from flinkray.testing.threaded_cluster import threaded_cluster

RECORDS = 24_000_000  # some 20 s: runs of 5 s differ by up to a fifth from each other
KEYS = (1_000, 100_000)


def keyed_sum(env: StreamExecutionEnvironment, keys: int) -> None:
    """A running sum per key, with value state."""
    template = [(n * 7919 % keys, n) for n in range(max(keys, BLOCK_RECORDS))]
    source: Any = Values(template, RECORDS // len(template))
    env.from_source(source, WatermarkStrategy.no_watermarks(), "pairs").uid("pairs").key_by(
        lambda value: value[0], Types.LONG()
    ).process(RunningSum()).uid("sum").sink_to(DiscardingSink())


class OneProcess(Runner):
    """A cluster whose processes are threads of this one."""

    description = "one slot of a cluster in one process"
    cores = 1

    def __init__(self) -> None:
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._cluster = self._stack.enter_context(threaded_cluster(folder))

    def environment(self) -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment(cluster=self._cluster.client)
        return env.set_parallelism(1)

    def execute(self, env: StreamExecutionEnvironment) -> Taken:
        return time_of(lambda: env.execute("benchmark"))

    def notes(self) -> list[str]:
        return []

    def close(self) -> None:
        self._stack.close()


def measure(rounds: int, results: Results) -> None:
    runners: dict[str, Callable[[], Runner]] = {
        "in one process": OneProcess,
        "in two slots": ClusterRunner,
    }
    for where, make in runners.items():
        runner = make()
        try:
            for keys in KEYS:
                compare(runner, where, keys, rounds, results)
        finally:
            runner.close()


def compare(runner: Runner, where: str, keys: int, rounds: int, results: Results) -> None:
    """In turns, since the machine's other work comes and goes."""
    plain, taking = [], []
    for _ in range(rounds):
        plain.append(run(runner, keys, {}))
        with tempfile.TemporaryDirectory() as folder:
            settings = {
                "execution.checkpointing.interval": "1 s",
                "execution.checkpointing.dir": folder,
            }
            taking.append(run(runner, keys, settings))
    processor = median(t.processor / p.processor for p, t in zip(plain, taking, strict=True)) - 1
    clock = median(t.clock / p.clock for p, t in zip(plain, taking, strict=True)) - 1
    seconds = median(p.clock for p in plain)
    print(
        f"{RECORDS / seconds / 1e6:.2f} M records/s {where}, {keys:,} keys; with a checkpoint each "
        f"second {processor:+.1%} of the processor's time, {clock:+.1%} of the clock's",
        flush=True,
    )
    what = f"processor time that an interval of 1 s costs, {keys:,} keys {where}"
    results.add(Figure(f"cost {keys} {where}", what, processor * 100, 5, "%"))


def run(runner: Runner, keys: int, settings: dict[str, str]) -> Taken:
    env = runner.environment()
    env.configure(Configuration.from_dict(settings))
    keyed_sum(env, keys)
    return runner.execute(env)
