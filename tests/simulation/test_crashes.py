"""Deaths, hangs and slowness of processes and nodes."""

from __future__ import annotations

import asyncio
import gc
import warnings
from itertools import pairwise

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcError
from flinkray.rpc import EndpointSpec, Placement
from flinkray.testing.simulation import Simulation, SimulationError, simulate
from tests.rpc.endpoints import EchoGateway, echo_spec


@simulate(seeds=10)
async def test_no_task_callback_or_timer_of_a_killed_process_runs_again(
    simulation: Simulation,
) -> None:
    seen: list[str] = []

    async def program() -> None:
        try:
            seen.append("begun")
            asyncio.get_running_loop().call_later(2, seen.append, "a timer")
            await asyncio.sleep(1)
            seen.append("woken")
        except asyncio.CancelledError:
            seen.append("cancelled")
        finally:
            seen.append("finally")

    process = simulation.start("victim", program)
    await asyncio.sleep(0.5)
    simulation.crash("victim")
    gc.collect(0)  # a coroutine that is collected runs its finally blocks
    await asyncio.sleep(5)
    assert seen == ["begun"]
    assert not process.is_alive


@simulate(seeds=20)
async def test_process_is_killed_at_a_random_step_while_it_runs(simulation: Simulation) -> None:
    seen: list[int] = []

    async def program() -> None:
        for number in range(100):
            seen.append(number)
            await asyncio.sleep(0)

    process = simulation.start("victim", program)
    steps = simulation.random.randint(2, 50)
    simulation.crash(process, after_steps=steps)
    await asyncio.sleep(1)
    # the first step makes the task
    assert seen == list(range(steps - 1))


def test_coroutines_of_dead_processes_are_closed_without_warnings() -> None:
    async def never() -> None:
        """Not awaited: Python would complain."""

    async def program() -> None:
        waiting = never()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            del waiting
            raise ValueError("on the way out")

    async def main(simulation: Simulation) -> None:
        simulation.start("victim", program)
        await asyncio.sleep(1)
        simulation.crash("victim")
        simulation.start("survivor", program)
        await asyncio.sleep(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulation = Simulation(0)
        simulation.run(main(simulation))
        gc.collect()


@simulate(seeds=10)
async def test_simulated_process_that_kills_itself_still_finishes_its_current_step(
    simulation: Simulation,
) -> None:
    seen: list[str] = []

    async def program() -> None:
        simulation.crash("victim")
        seen.append("the same step")
        await asyncio.sleep(0)
        seen.append("the next")

    simulation.start("victim", program)
    await asyncio.sleep(1)
    assert seen == ["the same step"]


@simulate(seeds=10)
async def test_hung_process_answers_calls_only_after_it_is_resumed(simulation: Simulation) -> None:
    service = simulation.service()
    address = await service.spawn(echo_spec("echo-1"))
    echo = await service.connect(address, EchoGateway)
    simulation.hang("echo-1")
    answer = asyncio.ensure_future(echo.echo("late"))
    await asyncio.sleep(5)
    assert not answer.done()
    simulation.resume("echo-1")
    assert await answer == "late"
    assert 5 < simulation.now < 6


@simulate(seeds=10)
async def test_every_step_of_a_slow_process_takes_the_configured_time(
    simulation: Simulation,
) -> None:
    moments: list[float] = []

    async def program() -> None:
        for _ in range(5):
            moments.append(simulation.now)
            await asyncio.sleep(0)

    process = simulation.start("slow", program)
    simulation.slow_down(process, 0.1)
    await asyncio.sleep(2)
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    assert pauses == pytest.approx([0.1] * 4)


@simulate(seeds=10)
async def test_pending_calls_fail_and_watches_fire_when_a_process_is_killed(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    address = await service.spawn(echo_spec("echo-1", max_restarts=1))
    echo = await service.connect(address, EchoGateway)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(echo, ended.set_result)
    pending = asyncio.ensure_future(echo.hang())
    await asyncio.sleep(0.1)
    simulation.crash("echo-1")
    killed = simulation.now
    with pytest.raises(RecipientUnreachableError):
        await pending
    assert "echo-1" in await ended
    assert simulation.now - killed < 0.1


@simulate(seeds=10)
async def test_restarted_process_has_no_state_of_the_killed_one_and_old_connections_fail(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    address = await service.spawn(echo_spec("echo-1", max_restarts=1))
    echo = await service.connect(address, EchoGateway)
    await echo.note(7)
    simulation.crash("echo-1")
    again = await simulation.eventually(
        lambda: service.connect(address, EchoGateway), within=5, retry_on=(RpcError,)
    )
    assert await again.notes() == ()
    with pytest.raises(RecipientUnreachableError):
        await echo.notes()
    simulation.crash("echo-1")
    await asyncio.sleep(5)
    with pytest.raises(RpcConnectionError):
        await service.connect(address, EchoGateway)


@simulate(seeds=10)
async def test_process_dies_with_its_parent_unless_it_is_detached(
    simulation: Simulation,
) -> None:
    client = simulation.service()
    await client.spawn(EndpointSpec("Spawner", "spawner", "tests.rpc.endpoints:create_spawner"))

    async def parent() -> None:
        service = simulation.service("parent")
        await service.spawn(echo_spec("child"))
        await service.spawn(echo_spec("free", detached=True))
        await asyncio.sleep(100)

    simulation.start("parent", parent)
    await asyncio.sleep(1)
    assert [p.name for p in simulation.processes()] == ["spawner", "parent", "child", "free"]
    simulation.crash("parent")
    await asyncio.sleep(1)
    assert [p.name for p in simulation.processes()] == ["spawner", "free"]


@simulate(seeds=10, nodes=3)
async def test_crash_of_a_node_kills_its_processes_without_closing_connections(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    on_node = Placement(node_id="node-1")
    address = await service.spawn(echo_spec("echo-1", placement=on_node, max_restarts=-1))
    assert simulation.process("echo-1").node == "node-1"
    echo = await service.connect(address, EchoGateway)
    simulation.crash_node("node-1")
    crashed = simulation.now
    with pytest.raises(RpcError):
        await echo.echo("anyone?")
    # Ray's word, or the call's own time-out
    assert simulation.now - crashed >= 1
    again = await simulation.eventually(
        lambda: service.connect(address, EchoGateway), within=15, retry_on=(RpcError,)
    )
    assert await again.echo("there") == "there"
    assert simulation.process("echo-1").node != "node-1"
    simulation.restart_node("node-1")
    await service.spawn(echo_spec("echo-2", placement=on_node))
    assert simulation.process("echo-2").node == "node-1"


@simulate(seeds=2)
async def test_process_of_the_scenario_itself_cannot_be_crashed(simulation: Simulation) -> None:
    with pytest.raises(SimulationError, match="nothing may befall the process test"):
        simulation.crash("test")
    with pytest.raises(SimulationError, match="no process nobody"):
        simulation.crash("nobody")
