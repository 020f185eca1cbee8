"""Processes that are taken for dead and live, or that never go on; what waits for its moment."""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from dataclasses import replace
from random import Random

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcError
from flinkray.rpc import EndpointSpec, RpcEndpoint, RpcGateway, RpcService, ask_timeout
from flinkray.testing.simulation import Faults, Simulation, simulate
from flinkray.testing.simulation.calls import CallObserver, ObservedCall, observed_calls
from flinkray.testing.simulation.process import ProcessState
from tests.rpc.endpoints import EchoGateway, echo_spec


@simulate(seeds=10, nodes=2)
async def test_process_taken_for_dead_can_be_replaced_and_calls_others_until_it_is_ended(
    simulation: Simulation,
) -> None:
    client = simulation.service()
    await client.spawn(echo_spec("other"))
    heard: list[float] = []
    stay = asyncio.Event()

    async def program() -> None:
        service = simulation.service("late")
        other = await service.connect("other/echo", EchoGateway)
        while True:
            assert await other.echo("hello") == "hello"
            heard.append(simulation.now)
            await asyncio.sleep(0.1)

    process = simulation.start("late", program)
    await asyncio.sleep(1)
    simulation.banish(process)
    await asyncio.sleep(1)
    assert heard[-1] > 1.5
    assert "late" not in simulation.network.services
    successor = await client.spawn(echo_spec("late"))
    echo = await client.connect(successor, EchoGateway)
    assert await echo.echo("I am the new one") == "I am the new one"
    simulation.end_banished(process)
    await asyncio.sleep(1)
    assert heard[-1] < simulation.now - 0.9
    assert await echo.echo("still") == "still"
    stay.set()


@simulate(seeds=10)
async def test_watcher_is_told_of_the_end_of_a_process_taken_for_dead_and_it_is_restarted(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    watcher = RpcEndpoint(service, "watcher")
    watcher.start()
    told: list[str] = []
    echo = await service.connect(
        await service.spawn(echo_spec("echo", max_restarts=-1)), EchoGateway
    )
    watcher.watch(echo, told.append)
    first = simulation.process("echo")
    simulation.banish(first)
    await simulation.eventually(lambda: told, within=5)

    async def answers() -> bool:
        again = await service.connect("echo/echo", EchoGateway)
        return await again.echo("new") == "new"

    await simulation.eventually(answers, within=10, retry_on=(RpcError,))
    assert first.is_alive
    await watcher.close()


@simulate(seeds=5)
async def test_process_that_was_taken_for_dead_can_neither_spawn_nor_kill_processes(
    simulation: Simulation,
) -> None:
    refused: list[str] = []

    async def program() -> None:
        service = simulation.service("late")
        await asyncio.sleep(1)
        for attempt in (service.spawn(echo_spec("child")), service.kill("echo")):
            with pytest.raises(RpcConnectionError, match="taken for dead"):
                await attempt
            refused.append("refused")

    await simulation.service().spawn(echo_spec("echo"))
    process = simulation.start("late", program)
    await asyncio.sleep(0.5)
    simulation.banish(process)
    await asyncio.sleep(1)
    assert len(refused) == 2
    assert simulation.processes("echo")


@simulate(seeds=5)
async def test_frozen_process_cannot_be_resumed_and_can_be_killed(simulation: Simulation) -> None:
    service = simulation.service()
    await service.spawn(echo_spec("echo", max_restarts=-1))
    process = simulation.process("echo")
    simulation.freeze(process)
    simulation.resume(process)
    assert process.state is ProcessState.STOPPED
    simulation.stop_faults()
    assert process.state is ProcessState.STOPPED
    simulation.crash(process)
    await simulation.eventually(
        lambda: service.connect("echo/echo", EchoGateway), within=10, retry_on=(RpcError,)
    )


async def _calls(simulation: Simulation) -> None:
    """A call every tenth of a second, each by a new connection if need be; they are answered when
    the faults are over."""
    service = simulation.service(ask_timeout=1.0)
    await service.spawn(echo_spec("echo", max_restarts=-1))

    async def is_answered() -> bool:
        echo = await service.connect("echo/echo", EchoGateway)
        return await echo.echo("x") == "x"

    while simulation.now < 10:
        try:
            await is_answered()
        except (RpcError, RecipientUnreachableError) as error:
            simulation.tell("%r", error)
        await asyncio.sleep(0.1)
    await simulation.eventually(is_answered, within=10, retry_on=(RpcError,))


@simulate(seeds=5)
async def test_process_that_freezes_while_it_ends_is_found_by_name_and_can_be_killed(
    simulation: Simulation,
) -> None:
    """Seed 20085 of the whole cluster: a SlotPool froze when it was no longer needed."""
    service = simulation.service()
    await service.spawn(echo_spec("echo"))
    process = simulation.process("echo")
    simulation.slow_down(process, 0.5)
    ending = asyncio.ensure_future(service.stop("echo"))
    await simulation.eventually(lambda: "echo" not in simulation.network.services, within=5)
    simulation.freeze(process)
    await asyncio.sleep(1)
    assert process.is_alive
    assert await service.process_names("ech") == ("echo",)
    await service.kill("echo")
    assert not process.is_alive
    assert await service.process_names("ech") == ()
    ending.cancel()


def test_faults_aimed_at_a_method_occur_at_its_calls_and_differ_by_seed() -> None:
    marks = {
        "will be killed: it had sent a message",
        "will be killed: it was about to send a message",
        "echo will be killed in",
        "echo hangs",
        "a second time",
        " lost",
        "then the connection breaks",
        "what it sends is held back for",
        "is taken for dead",
        "of all operations fail",
        "the power is gone for a moment",
    }
    seen: set[str] = set()
    for seed in range(60):
        faults = Faults(aimed=1.0, storage_every=1e9, power_every=1e9, until=10, vary=False)
        simulation = Simulation(seed, faults=faults, story_length=100_000)
        simulation.run(_calls(simulation))
        text = simulation.story.text()
        assert "no fault after this" in text
        seen |= {mark for mark in marks if mark in text}
        if seen == marks:
            return
    raise AssertionError(marks - seen)


def test_processes_spared_by_faults_lose_no_message_unless_aimed_faults_may_lose_it() -> None:
    for seed in range(8):
        faults = Faults(aimed=1.0, aims_lose=False, spare=("",), until=10, vary=False)
        simulation = Simulation(seed, faults=faults, story_length=100_000)
        simulation.run(_calls(simulation))
        lost = (" lost", "lost with its connection", "lost with its sender")
        assert not [line for line in simulation.story.lines() if line.endswith(lost)]


class PatientGateway(RpcGateway):
    """Is waited for without end."""

    @abstractmethod
    @ask_timeout(None)
    async def answer(self) -> None: ...


class Patient(RpcEndpoint, PatientGateway):
    """Answers at once."""

    async def answer(self) -> None:
        pass


def create_patient(rpc_service: RpcService, arguments: object) -> Patient:
    return Patient(rpc_service, "patient")


def test_lost_call_without_a_timeout_fails_or_is_answered_despite_aimed_faults() -> None:
    """Otherwise a spared caller waits for ever for a lost call while its connection lives."""

    async def program(simulation: Simulation) -> None:
        service = simulation.service()
        factory = f"{__name__}:{create_patient.__name__}"
        await service.spawn(EndpointSpec("Patient", "patient", factory, max_restarts=-1))
        while simulation.now < 10:
            try:
                patient = await service.connect("patient/patient", PatientGateway)
                await asyncio.wait_for(patient.answer(), 60)
            except (RpcError, RecipientUnreachableError) as error:
                simulation.tell("%r", error)
            await asyncio.sleep(0.1)

    for seed in range(40):
        faults = Faults(aimed=1.0, until=10, vary=False)
        simulation = Simulation(seed, faults=faults)
        simulation.run(program(simulation))


def test_faults_are_aimed_at_the_storage_only_if_storage_faults_are_allowed() -> None:
    for seed in range(40):
        faults = Faults(aimed=1.0, until=10, vary=False)
        simulation = Simulation(seed, faults=faults, story_length=100_000)
        simulation.run(_calls(simulation))
        text = simulation.story.text()
        assert "of all operations fail" not in text
        assert "the power is gone" not in text


def test_disk_loses_power_only_if_power_faults_are_allowed() -> None:
    async def program(simulation: Simulation) -> bytes | None:
        disk = simulation.disk()
        disk.write("file", b"x" * 10)
        await asyncio.sleep(10)
        return disk.read("file")

    left = [
        simulation.run(program(simulation))
        for simulation in (
            Simulation(seed, faults=Faults(power_every=every, vary=False))
            for every in (0.0, 1.0)
            for seed in range(10)
        )
    ]
    assert left[:10] == [b"x" * 10] * 10
    assert b"x" * 10 not in left[10:]


def test_fault_aimed_at_a_whole_method_loses_its_first_calls_or_their_answers() -> None:
    """Calls of other methods are not lost, here those that look up an endpoint."""
    lost: dict[str, set[int]] = {"ask": set(), "result": set()}
    for seed in range(60):
        faults = Faults(closed=("echo.echo",), until=10, vary=False)
        simulation = Simulation(seed, faults=faults, story_length=100_000)
        simulation.run(_calls(simulation))
        frames = re.findall(r"(ask echo|resolve echo|result) (#\d+)(.*)", simulation.story.text())
        numbers = [number for kind, number, _ in frames if kind == "ask echo"]
        of_calls = [" lost" in rest for kind, _, rest in frames if kind == "ask echo"]
        of_answers = [" lost" in r for kind, n, r in frames if kind == "result" and n in numbers]
        assert not any(" lost" in rest for kind, n, rest in frames if n not in numbers)
        for kind, are_lost in (("ask", of_calls), ("result", of_answers)):
            assert are_lost == sorted(are_lost, reverse=True)
            lost[kind].add(sum(are_lost))
    assert lost["ask"] > {0, 1, 3, 10}
    assert lost["result"] > {0, 1, 3, 10}


def test_seeds_that_lose_all_calls_of_a_method_have_no_other_faults_except_crashes() -> None:
    names = ("A.one", "A.two", "A.two")
    faults = Faults(loss=0.1, crash_every=1.0, hang_every=1.0, aimed=0.5, closed=names)
    of_seeds = [faults.of_seed(Random(seed)) for seed in range(200)]
    closed = [f for f in of_seeds if f.closed]
    assert 40 <= len(closed) <= 80
    assert all(f == Faults(closed=f.closed, crash_every=f.crash_every) for f in closed)
    assert {f.crash_every > 0 for f in closed} == {True, False}
    twice = sum(f.closed == ("A.two",) for f in closed)
    assert twice > len(closed) / 2
    without = [replace(faults, closed=()).of_seed(Random(seed)) for seed in range(200)]
    assert all(a == b for a, b in zip(of_seeds, without, strict=True) if not a.closed)


@simulate(seeds=5)
async def test_observer_of_calls_sees_each_handled_call_with_its_sender_and_result(
    simulation: Simulation,
) -> None:
    seen: list[tuple[str, str, str, tuple[object, ...]]] = []
    ends: list[object] = []

    class Observer(CallObserver):
        def begins(self, call: ObservedCall) -> None:
            seen.append((call.sender.name, call.receiver.name, call.method, call.arguments))

        def succeeded(self, call: ObservedCall, result: object) -> None:
            ends.append(result)

    with observed_calls(Observer()):
        service = simulation.service()
        echo = await service.connect(await service.spawn(echo_spec("echo")), EchoGateway)
        await echo.echo("x")
    assert seen == [("test", "echo", "echo", ("x", 1))]
    assert ends == ["x"]
