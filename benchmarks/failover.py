"""From SIGKILL to all tasks RUNNING again, on real Ray, with a TaskExecutor to spare.

    python benchmarks/failover.py [--rounds N] [--only TaskExecutor TaskProcess] [--waiting N]

64 tasks in 32 regions of two; after each kill only the regions that were hit restart.  The time is
from the kill to the moment that the JobMaster saw the last task RUNNING, by the clock of this one
machine.  Restarts have no delay.  Each kill waits until the spare TaskExecutor is there again, and
all task processes: that of each TaskExecutor with tasks, and those that wait
(taskmanager.prestarted-task-processes).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from collections import Counter
from statistics import median

import psutil
import ray
from _results import Figure, Results, parse
from ray.util.state import list_actors
from ray.util.state.common import ActorState

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.scheduler.graph.job_graph import FixedDelayRestart, JobGraph
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.task_jobs import TaskJobBuilder, waits

PAIRS = 32
SLOTS = 8
WORKERS = PAIRS // SLOTS + 1
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": str(SLOTS),
    "taskmanager.slots-per-task-process": str(SLOTS),
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "slotmanager.redundant-taskmanager-num": "1",
}
GOAL = 1.0
FLINK = "Flink: 12 s with its defaults, 2.6 s tuned"


def pairs(rounds: int) -> JobGraph:
    """32 pairs of tasks that wait."""

    builder = TaskJobBuilder("pairs", restart_strategy=FixedDelayRestart(rounds, 0.0))
    first = builder.add(waits, name="first", parallelism=PAIRS)
    second = builder.add(waits, name="second", parallelism=PAIRS)
    builder.connect(first, second, is_pointwise=True)
    return builder.build()


def executions(handle: JobHandle) -> list[ExecutionInfo]:
    return [e for vertex in handle.details().vertices for e in vertex.executions]


def wait_until_running(handle: JobHandle, attempts: int) -> list[ExecutionInfo]:
    """Until all run and so many attempts were made in all."""
    deadline = time.monotonic() + 30
    while True:
        found = executions(handle)
        made = sum(e.attempt_number + 1 for e in found)
        if made >= attempts and all(e.state is ExecutionState.RUNNING for e in found):
            return found
        if time.monotonic() > deadline:
            states = Counter((e.state.name, e.attempt_number, e.location) for e in found)
            pending = handle.details().pending_reason
            raise TimeoutError(f"not all RUNNING in {attempts} attempts: {pending}; {states}")
        time.sleep(0.02)


def wait_for_spare(client: ClusterClient, namespace: str, waiting: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        workers = client.cluster_overview().task_executors
        if len(workers) >= WORKERS and sum(w.free_slots for w in workers) >= SLOTS:
            processes = [a for a in alive("TaskProcess") if a.ray_namespace == namespace]
            # one waits on the spare whatever the setting: nothing runs there
            if len(processes) >= (len(workers) - 1) * (1 + waiting) + 1:
                return
        time.sleep(0.2)
    raise TimeoutError("no spare TaskExecutor with its task processes")


def alive(kind: str) -> list[ActorState]:
    """Actors of a class."""
    found: list[ActorState] = list_actors(
        address=ray.get_runtime_context().gcs_address,
        filters=[("state", "=", "ALIVE"), ("class_name", "=", kind)],
        detail=True,
        limit=1000,
    )
    return found


def kill_one(handle: JobHandle, kind: str) -> float:
    """Kill a process that has tasks, which is there for longer than those that wait; returns when
    that was."""
    location = handle.details().vertices[0].executions[0].location or ""
    resource_id = re.findall(r"^\S+", location)[0]
    pids = [
        actor.pid
        for actor in alive(kind)
        if (actor.name or "").endswith(resource_id) and actor.pid is not None
    ]
    os.kill(min(pids, key=lambda pid: psutil.Process(pid).create_time()), signal.SIGKILL)
    return time.time()


def measure(kind: str, rounds: int, waiting: int, results: Results) -> None:
    cluster_id = f"failover-{kind}"
    configuration = {**CONFIGURATION, "taskmanager.prestarted-task-processes": str(waiting)}
    with flinkray.connect(cluster_id=cluster_id, configuration=configuration) as client:
        handle = client.submit(pairs(rounds + 1))
        found = wait_until_running(handle, 2 * PAIRS)
        times, restarted = [], []
        for _ in range(rounds):
            wait_for_spare(client, f"flinkray-{cluster_id}", waiting)
            before = {(e.subtask_index, i): e.attempt_number for i, e in enumerate(found)}
            killed = kill_one(handle, kind)
            found = wait_until_running(handle, sum(before.values()) + 2 * PAIRS + 1)
            new = [e for i, e in enumerate(found) if e.attempt_number != before[e.subtask_index, i]]
            times.append(max(e.state_timestamps[ExecutionState.RUNNING.name] for e in new) - killed)
            restarted.append(len(new))
        handle.cancel()
        handle.wait(timeout=60)
    print(
        f"SIGKILL of a {kind}, {waiting} waiting: all RUNNING after {median(times):.3f} s "
        f"(of {len(times)}: {min(times):.3f} to {max(times):.3f}); "
        f"{median(restarted):g} of {2 * PAIRS} tasks restarted"
    )
    what = f"SIGKILL of a {kind} while {2 * PAIRS} tasks run: all RUNNING again"
    results.add(Figure(kind, what, median(times), GOAL, "s", peer=FLINK))
    results.raw[kind] = times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    kinds = ("TaskExecutor", "TaskProcess")
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--waiting", type=int, default=1, help="per TaskExecutor (1)")
    options = parse(parser, "only")
    results = Results(options, "ray")
    ray.init(
        address="local",
        num_cpus=4,
        log_to_driver=False,
        _system_config={"worker_niceness": 0},
    )
    for kind in options.only:
        measure(kind, options.rounds, options.waiting, results)
    ray.shutdown()
    results.end()


if __name__ == "__main__":
    main()
