"""From SIGKILL of a task process to the first records that its job processes again."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import psutil
from _results import Figure, Results
from _streams.runners import (
    processor_seconds,
    task_processes,
    wait_for_prestarted,
)

import flinkray
from flinkray.scheduler.shared.states import ExecutionState

from .jobs import BYTES_OF_KEY
from .programs import PARALLELISM, keep, running

GOAL = 1.0
FLINK = "Flink: 12.9 s with its defaults, 3.5 s tuned"
_LONGEST = 240.0


def measure(keys: int, rounds: int, results: Results) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        flinkray.connect(ray_options={"num_cpus": PARALLELISM}) as cluster,
        running(cluster, partial(keep, keys=keys, witness=Path(folder)), "1 s") as job,
    ):
        first, told = [], []
        for _ in range(rounds):
            job.durations(2, keys * BYTES_OF_KEY, _LONGEST)
            wait_for_prestarted(cluster.cluster_id)
            pid = busiest().pid
            killed = time.time()
            os.kill(pid, signal.SIGKILL)
            opened, begun = wait_for_records(Path(folder), killed)
            first.append(begun - killed)
            executions = [e for v in job.handle.details().vertices for e in v.executions]
            at = {
                state.name: max(e.state_timestamps.get(state.name, 0.0) for e in executions)
                for state in (ExecutionState.DEPLOYING, ExecutionState.RUNNING)
            }
            told.append(
                f"deployed after {at['DEPLOYING'] - killed:.2f} s, restored {opened - killed:.2f}, "
                f"running {at['RUNNING'] - killed:.2f}, first record {begun - killed:.2f}"
            )
    size = keys * BYTES_OF_KEY / 1e6
    what = f"SIGKILL of a task process, {size:.0f} MB of state in {PARALLELISM} slots"
    print(f"{what}:")
    for line in told:
        print(f"  {line}")
    what += ": first record of the last subtask"
    results.add(Figure("kill", what, median(first), GOAL, "s", peer=FLINK))


def busiest() -> psutil.Process:
    """One that has tasks."""
    return max(task_processes(), key=processor_seconds)


def wait_for_records(folder: Path, killed: float) -> tuple[float, float]:
    """When the last of all subtasks was opened, and had processed a record, after the kill."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = {}
        for path in folder.iterdir():
            subtask, _, opened = path.name.split("-")
            text = path.read_text()
            if float(opened) > killed and text:
                found[subtask] = float(opened), float(text)
        if len(found) == PARALLELISM:
            last_opened, last_begun = map(max, zip(*found.values(), strict=True))
            return last_opened, last_begun
        time.sleep(0.02)
    raise TimeoutError("no records within 60 s")
