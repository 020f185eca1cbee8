"""Queries of keyed state while its job runs as fast as it can, on Ray.

    python benchmarks/queryable_state.py [--rounds N] [--seconds S] [--parallelism P]
                                         [--switch-interval T]

A generator makes records as fast as they are taken, and behind a key_by a reducing state adds them
up for each of 10,000 keys, in Python, record by record.  A client in another process queries that
state.  Each round has windows without queries and windows with each kind of them, so that what
queries cost the job is the ratio of neighbours:

- *batches*: as fast as possible, 100 keys in each query, four at a time;
- *paced*: 5,000 queries a second, 10 keys in each message, one message after the other;
- *single*: one key after the other, as fast as they are answered.

The client has to share the machine's cores with the job.  What it takes for itself is told, too.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from _results import Figure, Results, parse  # noqa: E402

import flinkray  # noqa: E402
from flinkray.client import ClusterClient, JobHandle, QueryableStateClient  # noqa: E402
from flinkray.core.kv_states import UnknownKvStateLocationError  # noqa: E402
from flinkray.datastream import StreamExecutionEnvironment, Types  # noqa: E402
from flinkray.datastream.connectors import DataGeneratorSource  # noqa: E402
from flinkray.datastream.state import ReducingStateDescriptor  # noqa: E402

KEYS = 10_000
BATCH, AT_A_TIME = 100, 4
PACED, PACED_BATCH = 5_000, 10
LEAST_QUERIES, MOST_P99 = 5_000, 5.0
"""Goals: queries per second by batches, and milliseconds."""

SUMS: ReducingStateDescriptor[int] = ReducingStateDescriptor(
    "sum", lambda one, other: one + other, Types.LONG()
)


class Queries:
    """Of one job."""

    def __init__(self, client: ClusterClient, job: JobHandle) -> None:
        self._client = QueryableStateClient(client)
        self._job_id = job.job_id
        self._next = 0
        self.seconds: list[float] = []
        """Of each message with its answers."""
        self.answered = 0

    async def ask(self, number: int) -> None:
        """For the next so many keys."""
        keys = [(self._next + n) % KEYS for n in range(number)]
        self._next += number
        begun = time.perf_counter()
        states = await self._client.get_kv_states_async(self._job_id, "sums", keys, SUMS)
        self.seconds.append(time.perf_counter() - begun)
        assert all(state is not None for state in states)
        self.answered += number

    async def batches(self, until: float) -> None:
        async def one() -> None:
            while time.perf_counter() < until:
                await self.ask(BATCH)

        await asyncio.gather(*(one() for _ in range(AT_A_TIME)))

    async def paced(self, until: float) -> None:
        due = time.perf_counter()
        while due < until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await self.ask(PACED_BATCH)
            due += PACED_BATCH / PACED

    async def single(self, until: float) -> None:
        while time.perf_counter() < until:
            await self.ask(1)

    async def nothing(self, until: float) -> None:
        await asyncio.sleep(until - time.perf_counter())

    async def until_there(self) -> None:
        while True:
            try:
                await self.ask(KEYS)
                return
            except (UnknownKvStateLocationError, AssertionError):
                await asyncio.sleep(0.1)


def records(job: JobHandle) -> int:
    """What the keyed operator has taken so far."""
    [vertex] = [v for v in job.details().vertices if "Queryable" in v.name]
    return sum(e.io_metrics.records_in or 0 for e in vertex.executions if e.io_metrics)


async def window(
    kind: Callable[[float], Awaitable[None]], queries: Queries, job: JobHandle, seconds: float
) -> dict[str, float]:
    queries.seconds, queries.answered = [], 0
    loop = asyncio.get_running_loop()
    before = await loop.run_in_executor(None, records, job)
    begun, own = time.perf_counter(), time.process_time()
    await kind(begun + seconds)
    taken, own = time.perf_counter() - begun, time.process_time() - own
    after = await loop.run_in_executor(None, records, job)
    counted = time.perf_counter() - begun
    latencies = sorted(queries.seconds) or [0.0]
    return {
        "records/s": (after - before) / counted,
        "queries/s": queries.answered / taken,
        "p50": latencies[len(latencies) // 2],
        "p99": latencies[int(0.99 * (len(latencies) - 1))],
        "client": own / taken,
    }


async def measure(
    client: ClusterClient, job: JobHandle, rounds: int, seconds: float
) -> dict[str, dict[str, float]]:
    queries = Queries(client, job)
    await queries.until_there()
    kinds = {"batches": queries.batches, "paced": queries.paced, "single": queries.single}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in kinds}
    for number in range(rounds + 1):
        for name, kind in kinds.items():
            before = await window(queries.nothing, queries, job, seconds)
            during = await window(kind, queries, job, seconds)
            after = await window(queries.nothing, queries, job, seconds)
            alone = (before["records/s"] + after["records/s"]) / 2
            during["cost"] = 1 - during["records/s"] / alone
            during["alone"] = alone
            if number:  # the first round warms up
                found[name].append(during)
    return {
        name: {key: median(r[key] for r in of_kind) for key in of_kind[0]}
        for name, of_kind in found.items()
    }


def run(client: ClusterClient, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=client)
    env.set_parallelism(options.parallelism)
    source = DataGeneratorSource(lambda n: n % KEYS, 10**12)
    numbers = env.from_source(source, None, "numbers", Types.LONG())
    numbers.key_by(lambda n: n, key_type=Types.LONG()).as_queryable_state("sums", SUMS)
    result = env.execute_async("queryable state")
    job = client.job(str(result.get_job_id()))
    try:
        return asyncio.run(measure(client, job, options.rounds, options.seconds))
    finally:
        job.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each window (4)")
    parser.add_argument("--parallelism", type=int, default=1)
    parser.add_argument("--switch-interval", default=None, help="see docs/configuration.md")
    options = parse(parser)
    results = Results(options, "flinkray", "ray")
    configuration = {"taskmanager.numberOfTaskSlots": str(options.parallelism)}
    if options.switch_interval is not None:
        configuration["queryable-state.switch-interval"] = options.switch_interval
    with flinkray.connect("local", configuration=configuration, ray_options=_RAY) as client:
        figures = run(client, options)
    for name, found in figures.items():
        print(
            f"{name}: {found['queries/s']:,.0f} queries/s, p50 {found['p50'] * 1e3:.2f} ms, "
            f"p99 {found['p99'] * 1e3:.2f} ms; the job: {found['alone'] / 1e3:,.0f} k records/s "
            f"without queries, {found['cost']:.1%} less with them; the client takes "
            f"{found['client']:.0%} of a core"
        )
    batches, paced = figures["batches"], figures["paced"]
    what = f"queries of a running job's state a second, by {BATCH} keys a message"
    shown = f"{{}}, p99 {batches['p99'] * 1e3:.1f} ms"
    rate, goal = batches["queries/s"], LEAST_QUERIES
    results.add(Figure("batches", what, rate, goal, at_least=True, shown=shown))
    what = f"p99 at {PACED:,} queries of a running job's state a second"
    shown = f"{{}}; the job loses {paced['cost']:.0%}"
    results.add(Figure("paced", what, paced["p99"] * 1e3, MOST_P99, "ms", shown=shown))
    results.raw = figures
    results.end()


_RAY = {"num_cpus": 2, "include_dashboard": False}

if __name__ == "__main__":
    main()
