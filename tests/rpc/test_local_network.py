"""Processes that are pretended: which of them start, end and come back, and under which name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import ClassVar

import pytest

from flinkray.core.errors import ProcessExistsError, RecipientUnreachableError, RpcConnectionError
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService, RpcService
from flinkray.testing import ManualClock
from flinkray.testing.virtual_time import on_virtual_time
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, SpawnerGateway, echo_spec


class Slow(EchoEndpoint):
    """Starts and stops when the test lets it, or fails to."""

    may_start: ClassVar[asyncio.Event]
    may_stop: ClassVar[asyncio.Event]
    problem: ClassVar[Exception | None]
    survives_cancelling: ClassVar[bool]
    made: ClassVar[int]

    async def on_start(self) -> None:
        try:
            await Slow.may_start.wait()
        except asyncio.CancelledError:
            if not Slow.survives_cancelling:
                raise
        if Slow.problem is not None:
            raise Slow.problem

    async def on_stop(self) -> None:
        await Slow.may_stop.wait()


def create_slow(service: RpcService, arguments: object) -> Slow:
    Slow.made += 1
    return Slow(service)


def slow_spec(**options: object) -> EndpointSpec:
    Slow.may_start, Slow.may_stop, Slow.problem = asyncio.Event(), asyncio.Event(), None
    Slow.survives_cancelling, Slow.made = False, 0
    factory = f"{__name__}:create_slow"
    return EndpointSpec("Echo", "slow", factory, **options)  # type: ignore[arg-type]


# --- names ----------------------------------------------------------------------------------------


@on_virtual_time
async def test_spawn_with_the_name_of_a_running_process_is_refused_at_once() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker"))
    with pytest.raises(ProcessExistsError, match="worker"):
        await service.spawn(echo_spec("worker"))
    assert service.clock.monotonic() == 0.0
    with pytest.raises(ProcessExistsError, match="caller"):
        LocalRpcService("caller", network)
    EchoEndpoint(service, "own")
    with pytest.raises(ProcessExistsError, match="caller"):
        await service.spawn(echo_spec("caller"))
    assert service.is_up
    assert service.clock.monotonic() == 0.0
    assert await (await service.connect("worker/echo", EchoGateway)).echo(1) == 1
    await network.close()


@on_virtual_time
async def test_spawn_waits_for_the_name_of_a_process_that_is_ending() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    spec = slow_spec()
    Slow.may_start.set()
    address = await service.spawn(spec)
    service.loop.call_later(3.0, Slow.may_stop.set)
    stopping = asyncio.ensure_future(service.stop("slow"))
    await asyncio.sleep(1.0)
    with pytest.raises(ProcessExistsError):  # it still has its endpoint
        await service.spawn(echo_spec("slow"))
    await stopping
    await asyncio.sleep(2.0)
    assert await service.spawn(echo_spec("slow")) == address
    await network.close()


async def create_late(service: RpcService, arguments: object) -> Slow:
    await Slow.may_start.wait()
    if Slow.problem is not None:
        raise Slow.problem
    return Slow(service)


@pytest.mark.parametrize("problem", [None, OSError("no way to start")])
@on_virtual_time
async def test_spawn_waits_for_the_name_of_a_process_whose_factory_still_runs(
    problem: Exception | None,
) -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    spec = replace(slow_spec(), factory=f"{__name__}:create_late")
    first = asyncio.ensure_future(service.spawn(spec))
    second = asyncio.ensure_future(service.spawn(echo_spec("slow")))
    await asyncio.sleep(1.0)
    assert not second.done()
    Slow.problem = problem
    Slow.may_start.set()
    if problem is None:
        assert await first == "slow/echo"
        with pytest.raises(ProcessExistsError):
            await second
    else:
        with pytest.raises(OSError, match="no way to start"):
            await first
        assert await second == "slow/echo"
    await network.close()


@on_virtual_time
async def test_spawn_waits_ten_seconds_for_the_name_of_a_restarting_process() -> None:
    network = LocalNetwork(restart_delay=30.0)
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker", max_restarts=1))
    network.crash("worker")
    with pytest.raises(ProcessExistsError):
        await service.spawn(echo_spec("worker"))
    assert service.clock.monotonic() == pytest.approx(10.0, abs=0.1)
    await service.kill("worker")
    await service.spawn(echo_spec("worker"))
    assert service.clock.monotonic() == pytest.approx(10.0, abs=0.1)
    await network.close()


@on_virtual_time
async def test_name_of_a_process_that_dies_while_starting_can_be_used_again() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    spawning = asyncio.ensure_future(service.spawn(slow_spec()))
    await asyncio.sleep(1.0)
    await service.kill("slow")
    with pytest.raises(RpcConnectionError, match="slow died at its start"):
        await spawning
    assert await service.spawn(echo_spec("slow")) == "slow/echo"
    await network.close()


@on_virtual_time
async def test_process_names_are_sorted_and_a_restarted_process_has_a_new_incarnation() -> None:
    network = LocalNetwork()
    services = [LocalRpcService(name, network) for name in ("b", "a", "ab")]
    assert await services[0].process_names("") == ("a", "ab", "b")
    assert await services[0].process_names("a") == ("a", "ab")
    assert [service.incarnation for service in services] == ["1", "2", "3"]
    services[1].abort()
    assert LocalRpcService("a", network).incarnation == "4"
    await network.close()


@on_virtual_time
async def test_spawn_fails_with_the_error_of_on_start_or_when_the_start_is_cancelled() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    spec = slow_spec()
    Slow.problem = OSError("disk full")
    Slow.may_start.set()
    with pytest.raises(OSError, match="disk full"):
        await service.spawn(spec)
    spec = slow_spec()
    spawning = asyncio.ensure_future(service.spawn(spec))
    await asyncio.sleep(1.0)
    (endpoint,) = network.services["slow"].endpoints()
    Slow.may_stop.set()
    endpoint.close()
    with pytest.raises(RpcConnectionError, match="slow/echo was closed before it had started"):
        await spawning
    assert await service.spawn(echo_spec("slow")) == "slow/echo"
    await network.close()


# --- who spawned it -------------------------------------------------------------------------------


@pytest.mark.parametrize("detached", [False, True])
@on_virtual_time
async def test_only_a_detached_process_outlives_its_parent_even_while_starting(
    detached: bool,
) -> None:
    network = LocalNetwork()
    service, parent = LocalRpcService("caller", network), LocalRpcService("parent", network)
    owner = EchoEndpoint(parent)
    owner.start()
    owner.create_task(parent.spawn(slow_spec(detached=detached)))
    await asyncio.sleep(1.0)
    network.crash("parent")
    await asyncio.sleep(1.0)
    assert await service.process_names("") == (("caller", "slow") if detached else ("caller",))
    Slow.may_start.set()
    await asyncio.sleep(1.0)
    if detached:
        assert await (await service.connect("slow/echo", EchoGateway)).echo(1) == 1
        await service.kill("slow")
    assert await service.spawn(echo_spec("slow")) == "slow/echo"
    await network.close()


@pytest.mark.parametrize("killed", [None, "cancelled", "fails"])
@on_virtual_time
async def test_process_whose_start_fails_after_its_parent_died_leaves_nothing(
    killed: str | None,
) -> None:
    network = LocalNetwork()
    service, parent = LocalRpcService("caller", network), LocalRpcService("parent", network)
    owner = EchoEndpoint(parent)
    owner.start()
    owner.create_task(parent.spawn(slow_spec(detached=True, max_restarts=5)))
    await asyncio.sleep(1.0)
    network.crash("parent")
    await asyncio.sleep(1.0)
    Slow.problem = OSError("no way to start")
    Slow.survives_cancelling = killed == "fails"
    if killed is not None:
        await service.kill("slow")
    else:
        Slow.may_start.set()
    await asyncio.sleep(1.0)
    assert await service.process_names("") == ("caller",)
    assert await service.spawn(echo_spec("slow")) == "slow/echo"
    assert service.clock.monotonic() == pytest.approx(3.0)
    assert Slow.made == 1
    await network.close()


@on_virtual_time
async def test_detached_process_is_ended_when_its_spawn_is_cancelled() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    spawning = asyncio.ensure_future(service.spawn(slow_spec(detached=True)))
    await asyncio.sleep(1.0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    assert await service.process_names("") == ("caller",)
    assert await service.spawn(echo_spec("slow")) == "slow/echo"
    await network.close()


@on_virtual_time
async def test_crash_of_a_process_ends_only_its_own_children() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    for parent in ("one", "two"):
        spec = EndpointSpec("Spawner", parent, "tests.rpc.endpoints:create_spawner")
        gateway = await service.connect(await service.spawn(spec), SpawnerGateway)
        await gateway.spawn_echo(f"{parent}-owned", False)
    network.crash("one")
    assert list(network.services) == ["caller", "two", "two-owned"]
    await service.close()
    assert list(network.services) == []  # one is the other's, and both are the caller's


# --- ends and restarts ----------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [0, 1, 2, -1])
@on_virtual_time
async def test_process_restarts_as_often_after_an_endpoint_error_as_after_a_crash(
    restarts: int,
) -> None:
    network = LocalNetwork(restart_delay=5.0)
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker", max_restarts=restarts))
    for _ in range(restarts if restarts >= 0 else 5):
        await (await service.connect("worker/echo", EchoGateway)).break_yourself()
        await asyncio.sleep(4.9)
        assert await service.process_names("worker") == ()
        await asyncio.sleep(0.2)
        assert await service.process_names("worker") == ("worker",)
    await (await service.connect("worker/echo", EchoGateway)).break_yourself()
    await asyncio.sleep(20.0)
    assert await service.process_names("worker") == (("worker",) if restarts < 0 else ())
    await network.close()


@pytest.mark.parametrize("end", ["close", "stop"])
@on_virtual_time
async def test_process_that_is_closed_or_stopped_normally_does_not_restart(end: str) -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker", max_restarts=-1))
    if end == "close":
        await (await service.connect("worker/echo", EchoGateway)).close_yourself()
    else:
        await service.stop("worker")
    await asyncio.sleep(20.0)
    assert await service.process_names("worker") == ()
    before = service.clock.monotonic()
    await service.spawn(echo_spec("worker"))
    assert service.clock.monotonic() == before
    await network.close()


@on_virtual_time
async def test_late_end_of_a_predecessor_does_not_affect_the_restarted_process() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker", max_restarts=-1))
    before = network.services["worker"]
    for _ in range(2):
        network.crash("worker")
        await asyncio.sleep(1.0)
        await network.end(before)
        assert await service.process_names("worker") == ("worker",)
    await network.close()


@on_virtual_time
async def test_process_that_is_stopped_before_its_restart_does_not_restart() -> None:
    network = LocalNetwork(restart_delay=5.0)
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker", max_restarts=-1))
    network.crash("worker")
    await service.stop("worker")
    await asyncio.sleep(20.0)
    assert await service.process_names("worker") == ()
    await network.close()


@on_virtual_time
async def test_crash_of_an_absent_or_unknown_process_uses_up_no_restart() -> None:
    network = LocalNetwork(restart_delay=5.0)
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker", max_restarts=1))
    network.crash("nobody")
    network.crash("worker")
    network.crash("worker")
    await asyncio.sleep(5.1)
    assert await service.process_names("worker") == ("worker",)
    await network.close()


@on_virtual_time
async def test_process_that_crashes_while_it_restarts_restarts_once() -> None:
    network = LocalNetwork(restart_delay=5.0)
    service = LocalRpcService("caller", network)
    spec = slow_spec(max_restarts=-1)
    Slow.may_start.set()
    await service.spawn(spec)
    Slow.may_start.clear()
    network.crash("slow")
    await asyncio.sleep(6.0)
    assert Slow.made == 2
    network.crash("slow")
    Slow.may_start.set()
    await asyncio.sleep(20.0)
    assert Slow.made == 3
    assert await (await service.connect("slow/echo", EchoGateway)).echo(1) == 1
    await network.close()


@on_virtual_time
async def test_failed_restarts_use_up_the_permitted_restarts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = LocalNetwork(restart_delay=5.0)
    service = LocalRpcService("caller", network)
    spec = slow_spec(max_restarts=3)
    Slow.may_start.set()
    await service.spawn(spec)
    Slow.problem = OSError("not yet")
    network.crash("slow")
    await asyncio.sleep(60.0)
    assert Slow.made == 4
    assert await service.process_names("slow") == ()
    assert [r.message for r in caplog.records if "restarting" in r.message] == [
        "restarting slow failed"
    ] * 3
    assert await service.spawn(echo_spec("slow")) == "slow/echo"
    await network.close()


@on_virtual_time
async def test_process_that_ends_with_an_error_is_removed_and_the_error_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker"))
    second = Slow(network.services["worker"], "second")
    Slow.may_start, Slow.may_stop = asyncio.Event(), asyncio.Event()
    Slow.problem = None
    second.start()
    Slow.may_start.set()
    Slow.may_stop.set()
    await asyncio.sleep(1.0)
    second.mailbox.fail(OSError("disk full"))
    second.close()
    await (await service.connect("worker/echo", EchoGateway)).close_yourself()
    await asyncio.sleep(1.0)
    assert await service.process_names("worker") == ()
    assert any("disk full" in record.getMessage() for record in caplog.records)
    await network.close()


@on_virtual_time
async def test_closing_the_network_ends_processes_that_are_already_ending() -> None:
    network = LocalNetwork()
    service = LocalRpcService("caller", network)
    await service.spawn(echo_spec("worker"))
    blocker = Slow(network.services["worker"], "second")
    Slow.may_start, Slow.may_stop = asyncio.Event(), asyncio.Event()
    Slow.problem = None
    Slow.may_start.set()
    blocker.start()
    echo = await service.connect("worker/echo", EchoGateway)
    await echo.close_yourself()
    await asyncio.sleep(1.0)
    assert not blocker.is_running
    assert not blocker.terminated.done()
    closing = asyncio.ensure_future(network.close())
    await asyncio.sleep(1.0)
    assert closing.done()
    assert blocker.terminated.done()


# --- the service of a process ---------------------------------------------------------------------


@on_virtual_time
async def test_service_uses_the_given_clock_and_random_or_its_own() -> None:
    clock, chance = ManualClock(), Random(7)
    given = LocalRpcService("given", clock=clock, random=chance)
    assert given.clock is clock
    assert given.random is chance
    assert given.ask_timeout == RpcService.DEFAULT_ASK_TIMEOUT
    own = [LocalRpcService(name) for name in ("one", "one", "two")]
    first, again, other = (service.random.random() for service in own)
    assert first == again != other
    await asyncio.sleep(2.0)
    assert own[0].clock.monotonic() == 2.0


@on_virtual_time
async def test_child_process_has_the_clock_and_the_ask_timeout_of_its_parent() -> None:
    clock = ManualClock()
    network = LocalNetwork()
    service = LocalRpcService("caller", network, clock=clock, ask_timeout=7.0)
    await service.spawn(echo_spec("worker", max_restarts=1))
    network.crash("worker")
    await asyncio.sleep(0.1)
    child = network.services["worker"]
    assert child.clock is clock
    assert child.ask_timeout == 7.0
    access, same = service.socket_access, child.socket_access
    assert (access.host, access.secret, access.tls) == ("127.0.0.1", network.secret, None)
    assert same == access
    assert len(network.secret) == 32
    assert network.secret != LocalNetwork().secret
    await network.close()


@on_virtual_time
async def test_dead_process_runs_no_more_and_its_pending_work_can_call_no_process() -> None:
    network = LocalNetwork()
    service, dying = LocalRpcService("caller", network), LocalRpcService("dying", network)
    echo = EchoEndpoint(service)
    echo.start()
    proxy = await dying.connect("caller/echo", EchoGateway)
    pending = asyncio.ensure_future(proxy.hang())
    runs: list[float] = []
    dying.schedule_periodically(lambda: runs.append(dying.clock.monotonic()), 1.0)
    waiting = dying.create_task(asyncio.Event().wait(), "waits")
    await asyncio.sleep(2.5)
    assert dying.is_up
    network.crash("dying")
    assert not dying.is_up
    with pytest.raises(RecipientUnreachableError, match="the process dying died"):
        await pending
    with pytest.raises(RecipientUnreachableError):
        await proxy.echo(1)
    await asyncio.sleep(10.0)
    assert runs == [1.0, 2.0]
    assert waiting.cancelled()
    assert not service._peers
    assert echo.is_running
    with pytest.raises(RpcConnectionError):
        await dying.connect("caller/echo", EchoGateway)
    with pytest.raises(RpcConnectionError, match="no process dying is running"):
        await service.connect("dying/echo", EchoGateway)
    dying.abort()  # again: of a name that is another's by now, nothing is taken
    successor = LocalRpcService("dying", network)
    dying.abort()
    assert successor.is_up
    await network.close()


def test_death_of_a_process_does_not_wait_for_its_threads() -> None:
    async def main() -> None:
        service = LocalRpcService()
        begun, may_end = threading.Event(), threading.Event()

        def blocks() -> None:
            begun.set()
            assert may_end.wait(300)

        blocked = asyncio.ensure_future(service.run_blocking(blocks))
        await asyncio.sleep(0)
        assert begun.wait(300)
        service.abort()
        may_end.set()
        await blocked
        refused: Callable[[], None] = may_end.set
        with pytest.raises(RuntimeError, match="shutdown"):
            await service.run_blocking(refused)

    asyncio.run(main())
