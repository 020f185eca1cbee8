"""From SIGKILL of a JobMaster to the moment that the next one has decided what goes on, and what a
running stream job notices of that, on real Ray.

    python benchmarks/takeover.py [--rounds N] [--per-second N]

A source of 10,000 records/s, two subtasks each, a keyed function with state, and checkpoints.  The
JobMaster is killed again and again, at random times.  The time of the decision is what the next
JobMaster says of its job's status, by the clock of this one machine.  The last task writes down
when it has waited longer than 5 ms for the next record.  No attempt number may grow.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from _machine import facts
from ray.util.state import list_actors

import flinkray
from flinkray.client import JobHandle
from flinkray.datastream import (
    Configuration,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.scheduler.shared.states import JobStatus

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "300m",
    "restart-strategy.type": "none",
    "jobmaster.max-failovers": "100000",
}
GAP = 0.005
"""Seconds between two records that are worth a line."""


class Gaps(KeyedProcessFunction[int, int, int]):
    """Counts by key, and writes down the longest waits for records: when one was over, and how long
    it was."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        index = runtime_context.get_index_of_this_subtask()
        self._file = Path(self._folder, f"gaps-{index}")
        self._last = time.time()

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        now = time.time()
        if now - self._last > GAP:
            with self._file.open("a") as file:
                file.write(f"{now} {now - self._last}\n")
        self._last = now
        self._count.update((self._count.value() or 0) + 1)
        yield value


def job_master_pid() -> int | None:
    """Of the only one, which was a prestarted process: its ``repr`` says what it is now."""
    found = list_actors(
        address=ray.get_runtime_context().gcs_address,
        filters=[("state", "=", "ALIVE")],
        detail=True,
    )
    pids = [a.pid for a in found if "JobMaster-" in f"{a.name} {a.repr_name}"]
    return pids[0] if pids else None


def decided_after(job: JobHandle, killed: float) -> float:
    """Seconds since then until the job was RUNNING under the next JobMaster."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        details = job.details()
        at = details.status_timestamps.get(JobStatus.RUNNING.name, 0.0)
        if details.status is JobStatus.RUNNING and at > killed:
            return at - killed
        time.sleep(0.02)
    raise TimeoutError(f"{job.job_id} has no JobMaster that has taken over")


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def gaps(folder: Path, since: float) -> list[tuple[float, float]]:
    lines = [
        line.split() for file in folder.glob("gaps-*") for line in file.read_text().splitlines()
    ]
    return [(float(at), float(gap)) for at, gap in lines if float(at) > since]


def longest(found: list[tuple[float, float]], begin: float, end: float) -> float:
    """Of those that were over between these times, or began there."""
    within = (gap for at, gap in found if at >= begin and at - gap <= end)
    return max(within, default=GAP)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="JobMasters that are killed (20)")
    parser.add_argument("--per-second", type=float, default=10_000.0, help="records (10,000)")
    arguments = parser.parse_args()
    for name, value in facts("flinkray", "ray").items():
        print(f"{name:<28}{value}")
    ray.init(address="local", num_cpus=8, include_dashboard=True, log_to_driver=False)
    with (
        tempfile.TemporaryDirectory() as folder,
        flinkray.connect(cluster_id="takeover", configuration=CONFIGURATION) as client,
    ):
        env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
        checkpoints = {
            "execution.checkpointing.interval": "1 s",
            "execution.checkpointing.dir": f"{folder}/checkpoints",
        }
        env.configure(Configuration.from_dict(checkpoints)).set_parallelism(2)
        source = DataGeneratorSource(lambda n: n, 10**9, arguments.per_second)
        numbers = env.from_source(
            source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
        )
        numbers.key_by(lambda n: n % 64).process(Gaps(folder)).sink_to(DiscardingSink())
        job = client.job(env.execute_async("takeover").get_job_id())
        deadline = time.monotonic() + 60
        while job.status() is not JobStatus.RUNNING and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(5)
        quiet = time.time()
        time.sleep(10)
        undisturbed = longest(gaps(Path(folder), quiet), quiet, time.time())
        decided, output = [], []
        for _ in range(arguments.rounds):
            time.sleep(random.uniform(1.0, 3.0))
            while (pid := job_master_pid()) is None:  # Ray does not show it yet
                time.sleep(0.1)
            killed = time.time()
            os.kill(pid, signal.SIGKILL)
            decided.append(decided_after(job, killed))
            time.sleep(1)
            found = gaps(Path(folder), killed)
            output.append(longest(found, killed, killed + decided[-1] + 0.5))
        attempts = {e.attempt_number for v in job.details().vertices for e in v.executions}
        job.cancel()
    ray.shutdown()
    print(
        f"kill to decision            median {quantile(decided, 0.5) * 1e3:.0f} ms, "
        f"p99 {quantile(decided, 0.99) * 1e3:.0f} ms, of {len(decided)}"
    )
    print(
        f"longest gap of the output   median {quantile(output, 0.5) * 1e3:.0f} ms, "
        f"p99 {quantile(output, 0.99) * 1e3:.0f} ms (goal: below 100 ms); "
        f"{undisturbed * 1e3:.0f} ms in 10 s without a kill"
    )
    print(f"attempt numbers             {sorted(attempts)}")
    if attempts != {0}:
        raise SystemExit("tasks were restarted")


if __name__ == "__main__":
    main()
