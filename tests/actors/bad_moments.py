"""Deaths and losses at chosen moments of a simulated cluster in which everything takes a while."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flinkray.core.ids import JobID
from flinkray.core.resources import ResourceProfile
from flinkray.rpc.wire.envelope import Envelope, Kind
from flinkray.scheduler.shared.states import ExecutionState
from flinkray.testing.simulation import Simulation, simulate
from flinkray.testing.simulation.link import End
from flinkray.testing.waiting import eventually
from tests.actors.chaos_cluster import ChaosCluster

NODE = ResourceProfile(4, 2**33)
RUNS = ["register", "wait"]

Test = Callable[..., Awaitable[None]]


def on_cluster(
    *nodes: ResourceProfile,
    configuration: dict[str, str] | None = None,
    expected_error: str | None = None,
) -> Callable[[Test], Callable[..., None]]:
    """Runs a test in a simulation, with a cluster in which everything takes a while.

    *expected_error*: what is in the first, and only, error that is logged.
    """

    def decorate(test: Test) -> Callable[..., None]:
        async def run(simulation: Simulation, **parameters: Any) -> None:
            cluster = ChaosCluster(
                simulation,
                *nodes,
                configuration=configuration or {},
                expected_error=expected_error,
            )
            cluster.set_conditions(restart=(0.0, 0.0))
            async with cluster:
                await test(cluster, **parameters)
            assert cluster.expected_error is None, "the error was not logged"

        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]
        _, *parameters = inspect.signature(test).parameters.values()
        one = inspect.Parameter("simulation", inspect.Parameter.KEYWORD_ONLY)
        others = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        run.__signature__ = inspect.Signature([one, *others])  # type: ignore[attr-defined]
        return simulate(seeds=3)(run)

    return decorate


def starts_of(cluster: ChaosCluster, kind: str) -> int:
    """How many processes of a kind have been started."""
    return sum(name.startswith(kind) for name in cluster.starts)


def start_slowly(cluster: ChaosCluster, kind: str, delay: float) -> None:
    """From now on processes of a kind take so long, and others no time."""
    cluster.set_conditions(start=(0.0, 0.0))
    cluster.simulation.durations.start_times[kind] = delay, delay


async def until_up(cluster: ChaosCluster, kind: str) -> None:
    await eventually(lambda: cluster.processes(kind), 50, f"a {kind}")


async def until_executing(cluster: ChaosCluster, job_id: JobID) -> None:
    async def executing() -> bool:
        vertices = (await cluster.details(job_id)).vertices
        executions = [e for vertex in vertices for e in vertex.executions]
        return bool(executions) and all(e.state is ExecutionState.RUNNING for e in executions)

    await eventually(executing, 150, "all executions RUNNING")


async def dispatcher_is_back(cluster: ChaosCluster) -> None:
    async def answers() -> bool:
        await (await cluster.dispatcher()).list_jobs()
        return True

    await eventually(answers, 150, "the Dispatcher's answer")


@contextmanager
def losing(cluster: ChaosCluster, method: str, number: int = 1) -> Iterator[list[str]]:
    """The call of that method with that number, counted from 1, does not arrive; gives who sent
    it."""
    seen: list[str] = []
    lost: list[str] = []

    def is_lost(end: End, envelope: Envelope) -> bool:
        if envelope.method != method:
            return False
        seen.append(end.process.name)
        if len(seen) == number:
            lost.append(end.process.name)
        return len(seen) == number

    network = cluster.network
    network.intercept, network.is_faulty = is_lost, True
    try:
        yield lost
    finally:
        network.intercept = None


@contextmanager
def losing_answer(cluster: ChaosCluster, method: str) -> Iterator[list[str]]:
    """The answer to the first call of that method is lost with its connection; gives who sent
    it."""
    asked: set[tuple[object, int]] = set()
    lost: list[str] = []

    def is_lost(end: End, envelope: Envelope) -> bool:
        call = end.connection, envelope.sequence
        if envelope.method == method:
            asked.add(call)
        elif envelope.kind is Kind.RESULT and call in asked and not lost:
            lost.append(end.process.name)
            end.connection.break_off("the connection was reset")
            return True
        return False

    network = cluster.network
    network.intercept, network.is_faulty = is_lost, True
    try:
        yield lost
    finally:
        network.intercept = None
