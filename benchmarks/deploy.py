"""From submission to all tasks RUNNING, on real Ray; and the messages that it takes.

    python benchmarks/deploy.py [--rounds N] [--only cold warm messages]

Jobs are stream programs whose sources have almost no records; they run until they are cancelled.
Times are from before the submission until the JobMaster saw the last task RUNNING, by the clock of
this one machine.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from itertools import pairwise
from statistics import median

import ray
from _results import Figure, Results, parse
from _streams.runners import wait_for_prestarted

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.connectors import DataGeneratorSource, DiscardingSink
from flinkray.rpc import LocalRpcService
from flinkray.scheduler.graph.job_graph import JobGraph
from flinkray.scheduler.reports.job_info import JobDetails
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.function_jobs import PythonJobBuilder
from flinkray.testing.mini_cluster import MiniCluster

SLOTS = 200
RECORDS_PER_SECOND = 0.05
SHARED = {
    "taskmanager.numberOfTaskSlots": str(SLOTS),
    "taskmanager.slots-per-task-process": str(SLOTS),
}
GOALS = {
    "1": ("1 task on a worker that is there", 0.2, ""),
    "2 x 200": (
        "2 x 200 tasks, all to all, in slots of one task process",
        2.0,
        "Flink: 4.6 to 8.8 s",
    ),
}
"""Job -> what is measured, seconds from submission to all RUNNING, peer."""
JOBS: dict[str, tuple[int, ...]] = {
    "1": (1,),
    "8": (8,),
    "64": (64,),
    "2 x 200": (200, 200),
}
"""Job -> parallelisms of its vertices, which read each other, all to all."""


def submit(client: ClusterClient, name: str) -> JobHandle:
    """Submit a stream program with the vertices that :data:`JOBS` names."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    first, *others = JOBS[name]
    source = DataGeneratorSource(lambda number: number, 1_000_000, RECORDS_PER_SECOND)
    stream = env.set_parallelism(first).from_source(source)
    for parallelism in others:
        keyed = stream.key_by(lambda number: number)
        stream = keyed.map(lambda number: number).set_parallelism(parallelism)
    stream.sink_to(DiscardingSink())
    return client.job(env.execute_async(name).get_job_id())


def job_of_functions(name: str) -> JobGraph:
    """Return the job for a cluster in one process. Its functions wait, and need no threads."""

    async def waits(context: object) -> None:
        await asyncio.get_running_loop().create_future()

    builder = PythonJobBuilder("waits")
    vertices = [builder.add(waits, name=f"v{i}", parallelism=p) for i, p in enumerate(JOBS[name])]
    for producer, consumer in pairwise(vertices):
        builder.connect(producer, consumer)
    return builder.build()


def running_since(details: JobDetails) -> float | None:
    """When the last task was seen RUNNING; None: not all are."""
    executions = [e for vertex in details.vertices for e in vertex.executions]
    if not executions or any(e.state is not ExecutionState.RUNNING for e in executions):
        return None
    return max(e.state_timestamps[ExecutionState.RUNNING.name] for e in executions)


def until_running(handle: JobHandle) -> float:
    """When the last task was seen RUNNING."""
    deadline = time.monotonic() + 120
    while (since := running_since(handle.details())) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"not all RUNNING: {handle.details().pending_reason}")
        time.sleep(0.05)
    return since


def measure(client: ClusterClient, name: str) -> float:
    """Return the seconds from submission to all RUNNING. The job is then cancelled, and has ended
    on return."""
    wait_for_prestarted(client.cluster_id)
    submitted = time.time()
    handle = submit(client, name)
    since = until_running(handle)
    handle.cancel()
    handle.wait(timeout=60)
    return since - submitted


def cold(rounds: int) -> None:
    """The first job of a cluster: worker, TaskExecutor and task process have yet to be started."""
    times = []
    for number in range(rounds):
        with flinkray.connect(cluster_id=f"cold{number}", configuration=SHARED) as client:
            times.append(measure(client, "1"))
    print(f"cold, 1 task: {_shown(times)}")


def warm(rounds: int, results: Results) -> None:
    """Workers are there, and have been used."""
    with flinkray.connect(cluster_id="warm", configuration=SHARED) as client:
        measure(client, "2 x 200")
        times: dict[str, list[float]] = {name: [] for name in JOBS}
        for _ in range(rounds):
            for name in JOBS:
                times[name].append(measure(client, name))
    for name, found in times.items():
        print(f"warm, {name} tasks: {_shown(found)}")
        if name in GOALS:
            tasks, goal, peer = GOALS[name]
            what = f"{tasks}: from submission to all RUNNING"
            results.add(Figure(name, what, median(found), goal, "s", peer=peer))
    results.raw["warm"] = times


def messages() -> None:
    """Calls of all processes of a cluster, by method, from submission to all RUNNING."""
    asyncio.run(_messages())


async def _messages() -> None:
    print(
        "calls from submission to all RUNNING, all processes together (in one process; one worker)"
    )
    counts = {name: await _count(job_of_functions(name)) for name in JOBS}
    methods = sorted({method for found in counts.values() for method in found})
    print(f"{'':60}" + "".join(f"{name:>10}" for name in counts))
    for method in methods:
        print(f"{method:60}" + "".join(f"{found[method]:10}" for found in counts.values()))
    tasks = {"1": 1, "8": 8, "64": 64, "2 x 200": 400}
    per_task = "".join(f"{sum(found.values()) / tasks[n]:10.2f}" for n, found in counts.items())
    print(f"{'per task':60}{per_task}")


async def _count(graph: JobGraph) -> Counter[str]:
    with tempfile.TemporaryDirectory() as storage:
        async with MiniCluster(storage, configuration=SHARED) as cluster:
            await cluster.submit(warm_up := job_of_functions("1"))
            await _until_running(cluster, warm_up)
            await (await cluster.dispatcher()).cancel_job(warm_up.job_id)
            await cluster.result(warm_up.job_id)
            before = _calls(cluster)
            await cluster.submit(graph)
            await _until_running(cluster, graph)
            after = _calls(cluster)
            asked = "request_job_details"  # by this benchmark
            return Counter({m: n for m, n in (after - before).items() if asked not in m})


async def _until_running(cluster: MiniCluster, graph: JobGraph) -> None:
    while running_since(await cluster.details(graph.job_id)) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _calls(cluster: MiniCluster) -> Counter[str]:
    calls: Counter[str] = Counter()
    services: list[LocalRpcService] = list(cluster.network.services.values())
    for service in services:
        for method, metrics in service.metrics.called.items():
            calls[method] += metrics.calls
    return calls


def _shown(times: list[float]) -> str:
    return f"{median(times):.3f} s (of {len(times)}: {min(times):.3f} to {max(times):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    sections = ("cold", "warm", "messages")
    parser.add_argument("--only", nargs="+", choices=sections, default=sections)
    options = parse(parser, "only")
    results = Results(options, "ray")
    if "messages" in options.only:
        messages()
    if set(options.only) & {"cold", "warm"}:
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=4,
            log_to_driver=False,
            _system_config={"worker_niceness": 0},
        )
        if "warm" in options.only:
            warm(options.rounds, results)
        if "cold" in options.only:
            cold(min(options.rounds, 3))
        ray.shutdown()
    results.end()


if __name__ == "__main__":
    main()
