"""A simulated cluster of thousands of TaskExecutors: registers, serves a job, loses nodes.

    python benchmarks/simulated_cluster.py [--task-executors 10000] [--slots 10] [--nodes 99]

Real Dispatcher, ResourceManager, JobMaster, SlotPool, TaskExecutors and task processes, each in a
simulated process of its own.  A job with a task for every slot is submitted, and the cluster starts
the workers for it; then a third of the nodes crashes at once, and the job is restarted on others
that take their place.  The nodes of the masters are spared.  Prints what each phase took, the
messages that were received, and the memory.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import math
import resource
import time
from typing import Any

from _results import Figure, Results, parse

from flinkray.actors.job_master.endpoint import JobMaster
from flinkray.core.errors import RpcConnectionError, RpcError
from flinkray.core.garbage_collection import spare_what_is_there
from flinkray.core.resources import ResourceProfile
from flinkray.scheduler.graph.job_graph import FixedDelayRestart
from flinkray.scheduler.job.job_scheduler import JobScheduler
from flinkray.scheduler.shared.states import ExecutionState, JobStatus
from flinkray.testing import SimulatedCluster, Simulation
from flinkray.testing.function_jobs import PythonJobBuilder

MEMORY = 2**27
"""Bytes of a slot; nobody uses them."""
LARGEST_VERTEX = 25_000
"""Tasks; a vertex can have 32,768 at most."""
MOST_MEMORY = 12.0
"""GiB at most."""
PATIENCE = 3000.0
"""Virtual seconds for a phase."""


async def waits(context: Any) -> None:
    """A task that runs until it is cancelled."""
    await asyncio.get_running_loop().create_future()


def peak_memory() -> float:
    """Of this process, GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class Phases:
    """Prints what each phase took."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._begin()

    def _begin(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._virtual = self._simulation.now
        self._steps = self._simulation.scheduler.steps
        self._messages = self._simulation.network.frames

    def done(self, name: str) -> None:
        """A phase is over, and the next one begins."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        virtual = self._simulation.now - self._virtual
        steps = self._simulation.scheduler.steps - self._steps
        messages = self._simulation.network.frames - self._messages
        print(
            f"{name:<34} {wall:7.1f} s {cpu:7.1f} s CPU {virtual:7.1f} s virtual "
            f"{steps:9d} steps {messages:9d} messages {peak_memory():7.2f} GiB at most",
            flush=True,
        )
        self._begin()


class Benchmark:
    """One run."""

    def __init__(self, simulation: Simulation, task_executors: int, slots: int, nodes: int) -> None:
        self._simulation = simulation
        self._task_executors = task_executors
        self._slots = slots
        per_node = math.ceil(task_executors / nodes)
        spare = nodes // 3 + 1  # for those that crash
        node = ResourceProfile(per_node, per_node * slots * MEMORY)
        self._cluster = SimulatedCluster(
            simulation,
            *[node] * (nodes + spare),
            configuration={
                "taskmanager.cpu.cores": "1",
                "taskmanager.memory": f"{slots * MEMORY}b",
                "taskmanager.numberOfTaskSlots": str(slots),
                "taskmanager.slots-per-task-process": str(slots),
                "resourcemanager.start-worker.max-failure-rate": "1000000",
                "slot.request.timeout": "1 h",
                "rpc.ask-timeout": "10 min",
                "heartbeat.interval": "30 s",
                "heartbeat.timeout": "150 s",
            },
        )
        self._nodes = nodes

    async def run(self) -> None:
        phases = Phases(self._simulation)
        await self._cluster.start()
        restarts = FixedDelayRestart(1_000_000, 0.1)
        tasks = self._task_executors * self._slots
        builder = PythonJobBuilder("waits", restart_strategy=restarts)
        for number in range(-(-tasks // LARGEST_VERTEX)):
            builder.add(
                waits,
                parallelism=min(LARGEST_VERTEX, tasks - number * LARGEST_VERTEX),
                slot_sharing_group=f"group {number}",
            )
        await self._cluster.submit(builder.build())
        phases.done("cluster started, job submitted")
        await self._registered()
        phases.done(f"{self._task_executors} TaskExecutors registered")
        await self._eventually(self._all_run)
        phases.done(f"{tasks} tasks running")
        for node in self._without_masters()[: self._nodes // 3]:
            self._simulation.crash_node(node)
        await self._eventually(self._is_restarted)
        await self._eventually(self._all_run)
        phases.done(f"{self._nodes // 3} of {self._nodes} nodes lost, restarted")

    async def _registered(self) -> None:
        async def all_are() -> bool:
            overview = await (await self._cluster.dispatcher()).request_cluster_overview()
            return len(overview.task_executors) >= self._task_executors

        await self._eventually(all_are)

    def _without_masters(self) -> list[str]:
        """Nodes that have workers and nothing else."""
        processes = self._simulation.victims()
        workers = {p.node for p in processes if p.kind == "TaskExecutor"}
        masters = {p.node for p in processes if p.kind not in ("TaskExecutor", "TaskProcess")}
        return sorted(workers - masters)

    def _scheduler(self) -> JobScheduler:
        """Of the job, in the process of its JobMaster: an answer of all tasks would be too long."""
        for name, service in self._cluster.network.services.items():
            if name.startswith("JobMaster"):
                for endpoint in service.endpoints():
                    if isinstance(endpoint, JobMaster):
                        return endpoint._scheduler
        raise RpcConnectionError("the JobMaster is not there")

    async def _all_run(self) -> bool:
        subtasks = self._scheduler()._graph.subtasks
        return all(subtask.current.state is ExecutionState.RUNNING for subtask in subtasks)

    async def _is_restarted(self) -> bool:
        scheduler = self._scheduler()
        return scheduler.status is not JobStatus.RUNNING or scheduler._job.restarts > 0

    async def _eventually(self, condition: Any) -> None:
        give_up = self._simulation.now + PATIENCE
        while True:
            try:
                if await condition():
                    return
            except RpcError as error:
                self._simulation.tell("not yet: %s", error)
            if self._simulation.now > give_up:
                raise SystemExit(f"not within {PATIENCE:g} virtual seconds: MISSED")
            await asyncio.sleep(2.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task-executors", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=10, help="of each TaskExecutor (default: 10)")
    parser.add_argument("--nodes", type=int, default=99)
    options = parse(parser)
    logging.getLogger("flinkray").setLevel(logging.ERROR)
    results = Results(options)
    spare_what_is_there()
    simulation = Simulation(1, log_level=logging.ERROR, time_limit=20_000, story_length=10)
    benchmark = Benchmark(simulation, options.task_executors, options.slots, options.nodes)
    simulation.run(benchmark.run())
    print("the job runs on the nodes that are left: met")
    number, tasks = options.task_executors, options.task_executors * options.slots
    what = f"{number:,} simulated TaskExecutors, {tasks:,} tasks, a third of the nodes lost: memory"
    results.add(Figure("memory", what, peak_memory(), MOST_MEMORY, "GiB"))
    results.end()


if __name__ == "__main__":
    main()
