"""How long a record takes from its source to the function behind a key_by, in another task process.

A generator makes records at a fixed rate, each with the time at which it was made; in another slot,
and so in another process, a keyed function with state notes how old each is.  Both read the
machine's monotonic clock.  The first seconds do not count.

On a machine that is busy, records are late because threads wait for a processor.  With
``--real-time`` every run is done once more, in turn, with the threads of both task processes
scheduled before those of others (``SCHED_RR``, which takes the right to do so): what is left then
is their own.  The goals are held by these runs then.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _results import Figure, Results, parse  # noqa: E402
from _streams.runners import task_processes, wait_for_prestarted  # noqa: E402

import flinkray  # noqa: E402
from flinkray.client import ClusterClient  # noqa: E402
from flinkray.datastream import MapFunction, StreamExecutionEnvironment  # noqa: E402
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink  # noqa: E402
from flinkray.datastream.state import ValueStateDescriptor  # noqa: E402

KEYS = 1000
WARM_UP = 2.0
"""Seconds that do not count."""
GOALS = {"p50": 5.0, "p99": 30.0}
"""Milliseconds."""


class Age(MapFunction[Any, Any]):
    """Counts by key, and notes how old records are when they come."""

    def __init__(self, path: str) -> None:
        self.path = path

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.ages: list[int] = []
        self.begun = time.monotonic_ns()

    def map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        now = time.monotonic_ns()
        if now - self.begun > WARM_UP * 1e9:
            self.ages.append(now - value[1])
        return value

    def close(self) -> None:
        Path(self.path).write_text(json.dumps(self.ages))


def schedule(policy: int) -> None:
    """All threads of the task processes, and those that they will start."""
    parameters = os.sched_param(os.sched_get_priority_min(policy))
    for process in task_processes():
        for thread in process.threads():
            os.sched_setscheduler(thread.id, policy, parameters)


def run(client: ClusterClient, rate: float, seconds: float, timeout: int) -> dict[str, float]:
    """Seconds, by quantile."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(1).set_buffer_timeout(timeout)
    source = DataGeneratorSource(
        lambda n: (n % KEYS, time.monotonic_ns()), int(rate * (seconds + WARM_UP)), rate
    )
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "ages"))
        records = env.from_source(source, None, "paced").slot_sharing_group("source")
        aged = records.key_by(lambda v: v[0]).map(Age(path)).slot_sharing_group("keyed")
        aged.sink_to(DiscardingSink())
        env.execute("latency")
        ages = sorted(json.loads(Path(path).read_text()))
    quantiles = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
    found = {name: ages[int(q * (len(ages) - 1))] / 1e9 for name, q in quantiles.items()}
    return {**found, "max": ages[-1] / 1e9, "records": len(ages)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=float, default=10_000.0, help="records per second (10,000)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run (10)")
    parser.add_argument("--buffer-timeouts", default="1,100", help="milliseconds (1,100)")
    parser.add_argument("--real-time", action="store_true", help="also with SCHED_RR")
    options = parse(parser, "real_time")
    results = Results(options, "flinkray", "ray")
    configuration = {"taskmanager.numberOfTaskSlots": "2"}
    kinds = {"": os.SCHED_OTHER, "real-time, ": os.SCHED_RR}
    if not options.real_time:
        del kinds["real-time, "]
    figures = {}
    with flinkray.connect("local", configuration=configuration, ray_options=_RAY) as client:
        for timeout in map(int, options.buffer_timeouts.split(",")):
            for kind, policy in kinds.items():
                wait_for_prestarted(client.cluster_id)
                schedule(policy)
                name = f"{kind}buffer time-out {timeout} ms"
                figures[name] = run(client, options.rate, options.seconds, timeout)
                print(f"{name}: {_told(figures[name])}", flush=True)
    kind = f"{[*kinds][-1]}buffer time-out 1 ms"
    for name, most in GOALS.items():
        if kind in figures:
            what = f"age of a record at {options.rate:,.0f} records/s between two task processes"
            value = figures[kind][name] * 1e3
            results.add(Figure(f"{kind}, {name}", f"{what}, {kind}, {name}", value, most, "ms"))
    results.raw = figures
    results.end()


def _told(figures: dict[str, float]) -> str:
    return ", ".join(
        f"{name} {value:,.0f}" if name == "records" else f"{name} {value * 1e3:.2f} ms"
        for name, value in figures.items()
    )


_RAY = {"num_cpus": 2, "include_dashboard": False}

if __name__ == "__main__":
    main()
