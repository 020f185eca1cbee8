"""Fault programmes: what is allowed happens, nothing else does, and it ends in time."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from random import Random

import pytest

from flinkray.core.errors import RpcError
from flinkray.testing.simulation import Faults, Simulation, simulate
from tests.rpc.endpoints import EchoGateway, echo_spec

_UNTIL = 20.0


async def talk(simulation: Simulation) -> int:
    """Calls without end between processes on several nodes, and blocking work; counts answers."""
    service = simulation.service()
    disk = simulation.disk("shared")
    answers = 0
    for name in ("echo-1", "echo-2"):
        await service.spawn(echo_spec(name, max_restarts=-1))

    async def call(name: str) -> None:
        nonlocal answers
        while simulation.now < 30:
            try:
                echo = await service.connect(f"{name}/echo", EchoGateway)
                await echo.echo(name)
                await service.run_blocking(disk.read, "file")
                answers += 1
            except (RpcError, OSError) as error:
                simulation.tell("%r", error)
            await asyncio.sleep(0.2)

    await asyncio.gather(call("echo-1"), call("echo-2"))
    return answers


def story_of(faults: Faults, seed: int) -> str:
    simulation = Simulation(seed, faults=faults, nodes=2, story_length=100_000)
    simulation.run(talk(simulation))
    return simulation.story.text()


_VISIBLE: dict[str, tuple[Faults, str]] = {
    "loss": (Faults(loss=0.2), r"from \S+ lost$"),
    "duplication": (Faults(duplication=0.2), "a second time"),
    "repeated": (Faults(repeated=0.2, repeatable=("echo.echo",)), "echo is sent to echo-. again"),
    "breaks_before": (Faults(breaks_before=0.1), "the connection was reset"),
    "breaks_after": (Faults(breaks_after=0.1), "then the connection breaks"),
    "reset": (Faults(reset_every=2), "the connection from test to echo-. is reset"),
    "crash": (Faults(crash_every=4), "is dead: it was killed"),
    "hang": (Faults(hang_every=4), "echo-. hangs"),
    "slow": (Faults(slow_every=4), "echo-.: each step takes"),
    "partition": (Faults(partition_every=4), "partition from"),
    "node crash": (Faults(node_crash_every=4), "node-. crashes"),
    "storage": (Faults(storage_every=2), "disk shared: .* operations"),
}


@pytest.mark.parametrize("kind", _VISIBLE)
def test_event_log_shows_each_kind_of_fault_exactly_when_the_kind_is_allowed(kind: str) -> None:
    faults, mark = _VISIBLE[kind]
    text = "\n".join(story_of(faults, seed) for seed in range(4))  # some seeds leave it out
    assert re.search(mark, text, re.MULTILINE)
    for other, (_, other_mark) in _VISIBLE.items():
        if other != kind and not {kind, other} <= {"breaks_before", "breaks_after", "reset"}:
            assert not re.search(other_mark, text, re.MULTILINE), other


def test_network_delay_fault_makes_calls_take_longer() -> None:
    async def longest(simulation: Simulation) -> float:
        service = simulation.service()
        address = await service.spawn(echo_spec("echo-1"))
        echo = await service.connect(address, EchoGateway)
        times = []
        for number in range(50):
            begin = simulation.now
            await echo.echo(number)
            times.append(simulation.now - begin)
        return max(times)

    def measure(faults: Faults) -> float:
        simulation = Simulation(0, faults=faults)
        return simulation.run(longest(simulation))

    assert measure(Faults()) < 0.01
    assert measure(Faults(delay=0.2, vary=False)) > 0.5


_ALL = Faults(
    loss=0.2,
    duplication=0.2,
    breaks_before=0.05,
    breaks_after=0.05,
    delay=0.2,
    reset_every=2,
    crash_every=3,
    hang_every=3,
    slow_every=3,
    partition_every=5,
    node_crash_every=8,
    storage_every=3,
    torn_writes=0.2,
    until=_UNTIL,
)


@simulate(seeds=30, faults=_ALL, nodes=2)
async def test_no_fault_occurs_after_the_faults_were_ended_and_all_processes_answer(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    for name in ("echo-1", "echo-2"):
        await simulation.eventually(
            lambda name=name: service.spawn(echo_spec(name, max_restarts=-1, detached=True)),  # type: ignore[misc]
            within=60,
            retry_on=(RpcError,),
        )
    await simulation.quiet()
    assert simulation.now >= _UNTIL
    for name in ("echo-1", "echo-2"):
        await simulation.eventually(
            lambda name=name: service.connect(f"{name}/echo", EchoGateway),  # type: ignore[misc]
            within=30,
            retry_on=(RpcError,),
        )
    for _ in range(50):
        for name in ("echo-1", "echo-2"):
            echo = await service.connect(f"{name}/echo", EchoGateway)
            assert await echo.echo(name) == name
        simulation.disk().write("file", b"")
        await asyncio.sleep(1)


@simulate(seeds=20, faults=Faults(crash_every=1, hang_every=1, slow_every=1, spare=("echo-1",)))
async def test_processes_excluded_from_faults_are_never_crashed_hung_or_slowed(
    simulation: Simulation,
) -> None:
    async def idle() -> None:
        await asyncio.sleep(1000)

    spared = [simulation.start("echo-1", idle), simulation.main_process]
    simulation.start("echo-2", idle)
    await asyncio.sleep(20)
    assert all(process.is_alive and process.step_cost == 0 for process in spared)
    assert "echo-1" not in simulation.story.text()


@simulate(seeds=5, faults=Faults(clock_error=60, vary=False))
async def test_wall_clocks_of_processes_differ_and_virtual_time_does_not(
    simulation: Simulation,
) -> None:
    seen: list[tuple[float, float]] = []

    async def look(name: str) -> None:
        clock = simulation.service(name).clock
        seen.append((clock.time() - simulation.epoch, clock.monotonic()))

    for name in ("a", "b", "c"):
        simulation.start(name, look, name)
    await asyncio.sleep(1)
    assert len({wrong for wrong, _ in seen}) == 3
    assert all(-60 <= wrong <= 60 for wrong, _ in seen)
    assert {monotonic for _, monotonic in seen} == {0.0}


def test_each_seed_leaves_out_some_kinds_of_faults_and_varies_the_rates_of_the_rest() -> None:
    def of(seed: int, field: Callable[[Faults], float]) -> float:
        return field(Simulation(seed, faults=_ALL).faults)

    crashes = {of(seed, lambda faults: faults.crash_every) for seed in range(50)}
    losses = {of(seed, lambda faults: faults.loss) for seed in range(50)}
    assert {0, 3} < crashes
    assert {0, 0.2} < losses
    exact = Simulation(0, faults=Faults(loss=0.3, vary=False))
    assert exact.faults.loss == 0.3


def test_stopping_the_faults_resumes_hung_and_slow_processes() -> None:
    async def program(simulation: Simulation) -> None:
        await asyncio.sleep(5)
        simulation.stop_faults()
        simulation.stop_faults()
        before = simulation.story.count
        await asyncio.sleep(100)
        assert simulation.story.count == before

    async def idle() -> None:
        await asyncio.get_running_loop().create_future()

    simulation = Simulation(2, faults=Faults(hang_every=1, slow_every=1, vary=False))

    async def main() -> None:
        process = simulation.start("victim", idle)
        await program(simulation)
        assert process.step_cost == 0
        assert process.state.value == "running"

    simulation.run(main())
    assert "victim hangs" in simulation.story.text()


def test_some_seeds_have_only_faults_that_are_aimed_at_single_calls() -> None:
    """The effect of one lost message does not last where processes die all the time."""
    faults = Faults(loss=0.1, crash_every=1.0, torn_writes=0.1, aimed=0.5, until=9.0)
    of_seeds = [faults.of_seed(Random(seed)) for seed in range(50)]
    alone = [f for f in of_seeds if f == Faults(aimed=f.aimed, until=9.0) and f.aimed > 0]
    assert 10 <= len(alone) <= 30
    assert any(f.crash_every > 0 and f.aimed > 0 for f in of_seeds)


def test_nearly_every_seed_without_aimed_faults_has_some_other_faults() -> None:
    of_seeds = [Faults(loss=0.1, crash_every=1.0).of_seed(Random(seed)) for seed in range(50)]
    assert sum(f.loss > 0 or f.crash_every > 0 for f in of_seeds) > 40
