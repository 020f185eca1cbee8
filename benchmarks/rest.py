"""The REST endpoint while many look at a cluster of many jobs.

    python benchmarks/rest.py [--jobs N] [--tasks T] [--clients C] [--job-pages P] [--seconds S]
                              [--json FILE]

A cluster in one process (real masters and TaskExecutors on one event loop, in a thread of its own)
runs N jobs with T tasks in all.  The endpoint has an event loop and a thread of its own, and asks
the cluster across threads.  The clients are another process.  Each asks, every 3 s, for
``/overview`` and ``/jobs/overview``, as Flink's dashboard does; P of them ask for a job each, too.

- *latency*: of ``/jobs/overview``, as clients see it; once all of them together, and once by one
  client that comes so seldom that each of its looks is a new one.
- *masters*: the processor time of the cluster's thread while the clients look, less what it takes
  while nobody does.

What is in one process shares the interpreter's lock: the latencies are longer than those of
processes of their own would be.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import chain, repeat
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

import aiohttp  # noqa: E402
from _results import Figure, Results, parse  # noqa: E402

from flinkray.actors.gateways import DispatcherGateway  # noqa: E402
from flinkray.client import ClusterClient  # noqa: E402
from flinkray.client.client_session import session_of  # noqa: E402
from flinkray.client.loop_thread import LoopThread  # noqa: E402
from flinkray.core.config import ReadableConfig  # noqa: E402
from flinkray.core.resources import ResourceProfile  # noqa: E402
from flinkray.rest import RestServer  # noqa: E402
from flinkray.rest.server import RestSettings  # noqa: E402
from flinkray.testing.cluster_under_test import scripted_job  # noqa: E402
from flinkray.testing.threaded_cluster import threaded_cluster  # noqa: E402

INTERVAL = 3.0
"""Seconds between two looks of a client: as Flink's dashboard."""
SLOWEST, MOST_OF_A_CORE = 50.0, 5.0
"""The goals: p95 of ``/jobs/overview`` in ms, and what the clients cost the masters, in percent."""

T = TypeVar("T")


class AcrossThreads:
    """The cluster, for an endpoint on another event loop."""

    def __init__(self, client: ClusterClient) -> None:
        self._session = session_of(client)
        self.questions = 0

    async def ask(
        self,
        question: str,
        call: Callable[[DispatcherGateway], Awaitable[T]],
        timeout: float | None,
    ) -> T:
        self.questions += 1
        asked = self._session.start(self._session.dispatcher.ask(question, call, timeout))
        return await asyncio.wrap_future(asked)


class ThreadClock:
    """Processor seconds of the thread that runs a loop."""

    def __init__(self, client: ClusterClient) -> None:
        self._session = session_of(client)

    def seconds(self) -> float:
        async def used() -> float:
            return time.thread_time()

        return self._session.run(used())


async def look(session: aiohttp.ClientSession, url: str) -> float:
    begun = time.perf_counter()
    async with session.get(url) as response:
        assert response.status == 200, await response.text()
        await response.read()
    return time.perf_counter() - begun


async def dashboard(
    session: aiohttp.ClientSession, url: str, job: str | None, offset: float, until: float
) -> list[float]:
    """The latencies of ``/jobs/overview``."""
    latencies = []
    due = time.perf_counter() + offset
    while due < until:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await look(session, f"{url}/overview")
        latencies.append(await look(session, f"{url}/jobs/overview"))
        if job is not None:
            await look(session, f"{url}/jobs/{job}")
        due += INTERVAL
    return latencies


async def dashboards(url: str, clients: int, pages: int, seconds: float) -> list[float]:
    """All clients, which begin one after the other within an interval."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get(f"{url}/jobs") as response:
            jobs = [job["id"] for job in (await response.json())["jobs"]]
        until = time.perf_counter() + seconds
        every = await asyncio.gather(
            *(
                dashboard(session, url, job, n * INTERVAL / clients, until)
                for n, job in zip(range(clients), chain(jobs[:pages], repeat(None)), strict=False)
            )
        )
    return [latency for latencies in every for latency in latencies]


async def alone(url: str, looks: int) -> list[float]:
    """One client, each of whose looks is a new one."""
    async with aiohttp.ClientSession() as session:
        latencies = []
        for _ in range(looks):
            latencies.append(await look(session, f"{url}/jobs/overview"))
            await asyncio.sleep(INTERVAL + 0.1)
    return latencies


def in_another_process(kind: str, url: str, *numbers: float) -> list[float]:
    command = [sys.executable, __file__, "--look", kind, url, *map(str, numbers)]
    found: list[float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def until_all_run(client: ClusterClient, tasks: int) -> None:
    while sum(job.tasks.get("RUNNING", 0) for job in client.list_jobs()) < tasks:
        time.sleep(0.5)


def measure(jobs: int, tasks: int, clients: int, pages: int, seconds: float) -> dict[str, Any]:
    node = ResourceProfile(tasks + 1, (tasks + 1) * 2**30)
    with tempfile.TemporaryDirectory() as storage, threaded_cluster(storage, node) as cluster:
        client = cluster.client
        begun = time.perf_counter()
        for n in range(jobs):
            script = ["register", "wait"]
            client.submit(scripted_job(script, parallelism=tasks // jobs, name=f"job {n}"))
        until_all_run(client, jobs * (tasks // jobs))
        print(f"{jobs} jobs run after {time.perf_counter() - begun:.0f} s", file=sys.stderr)
        clock = ThreadClock(client)
        used = clock.seconds()
        time.sleep(seconds)
        idle = clock.seconds() - used
        across = AcrossThreads(client)
        loop = LoopThread("rest")
        try:
            server = RestServer(across, RestSettings.of(ReadableConfig({"rest.bind-port": "0"})))
            loop.run(server.start())
            one = in_another_process("alone", server.url, max(5, int(seconds / INTERVAL)))
            across.questions, used = 0, clock.seconds()
            begun = time.perf_counter()
            many = in_another_process("dashboards", server.url, clients, pages, seconds)
            taken = time.perf_counter() - begun
            looking = clock.seconds() - used
            loop.run(server.close())
        finally:
            loop.close()
    return {
        "looks": len(many),
        "questions to the cluster": across.questions,
        "p50, ms": 1000 * median(many),
        "p95, ms": 1000 * quantiles(many, n=20)[-1],
        "slowest, ms": 1000 * max(many),
        "new looks of one client, p50, ms": 1000 * median(one),
        "new looks of one client, slowest, ms": 1000 * max(one),
        "masters without clients, share of a core": idle / seconds,
        "masters for the clients, share of a core": looking / taken - idle / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--job-pages", type=int, default=10)
    parser.add_argument("--look", nargs="+", help=argparse.SUPPRESS)
    arguments = parse(parser)
    if arguments.look:
        kind, url, number, *others = arguments.look
        if kind == "alone":
            latencies = asyncio.run(alone(url, int(number)))
        else:
            pages, seconds = others
            latencies = asyncio.run(dashboards(url, int(number), int(pages), float(seconds)))
        print(json.dumps(latencies))
        return
    results = Results(arguments, "aiohttp")
    figures = measure(
        arguments.jobs, arguments.tasks, arguments.clients, arguments.job_pages, arguments.seconds
    )
    for name, value in figures.items():
        print(f"{name}: {value:.3g}" if isinstance(value, float) else f"{name}: {value}")
    who = f"{arguments.clients} clients that look at {arguments.jobs} jobs by REST every 3 s"
    masters = 100 * figures["masters for the clients, share of a core"]
    results.add(
        Figure("masters", f"{who}: masters' share of a core", masters, MOST_OF_A_CORE, "%"),
        Figure("p95", f"{who}: `/jobs/overview`, p95", figures["p95, ms"], SLOWEST, "ms"),
    )
    results.raw = figures
    results.end()


if __name__ == "__main__":
    main()
