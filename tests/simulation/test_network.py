"""What may befall frames and connections; each shows, to the program and in the story."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace

import pytest

from flinkray.core.errors import RecipientUnreachableError, RpcConnectionError, RpcTimeoutError
from flinkray.rpc.calls.proxy import asks_within
from flinkray.testing.simulation import Conditions, Simulation, simulate
from tests.rpc.endpoints import EchoEndpoint, EchoGateway, echo_spec


async def echo_of(simulation: Simulation) -> EchoGateway:
    """A proxy of an echo endpoint in another process; nothing befalls the way there."""
    service = simulation.service()
    address = await service.spawn(echo_spec("echo-1"))
    return await service.connect(address, EchoGateway)


def set_shares(simulation: Simulation, **shares: float) -> None:
    network = simulation.network
    network.set_conditions(replace(network.conditions, **shares))  # type: ignore[arg-type]


async def outcome(call: Awaitable[object]) -> object:
    try:
        return await call
    except (RpcTimeoutError, RecipientUnreachableError) as error:
        return type(error)


@simulate(seeds=10)
async def test_calls_of_one_sender_arrive_in_the_order_they_were_sent(
    simulation: Simulation,
) -> None:
    echo = await echo_of(simulation)
    set_shares(simulation, delay=0.3)
    for number in range(30):
        await echo.note(number)
    assert await echo.notes() == tuple(range(30))


@simulate(seeds=20)
async def test_message_is_not_dropped_as_a_duplicate_if_a_later_one_was_duplicated(
    simulation: Simulation,
) -> None:
    """Seed 4156 of the whole cluster: an ask in flight was refused, and waited for ever."""
    echo = await echo_of(simulation)
    set_shares(simulation, delay=0.3, duplication=0.5)
    for number in range(30):
        await echo.note(number)
    assert await echo.notes() == tuple(range(30))


def test_calls_of_two_senders_are_in_an_order_that_depends_on_the_seed() -> None:
    async def program(simulation: Simulation) -> tuple[int, ...]:
        echo = await echo_of(simulation)

        async def send(first: int) -> None:
            service = simulation.service(f"sender-{first}")
            theirs = await service.connect("echo-1/echo", EchoGateway)
            await asyncio.sleep(1 - simulation.now)
            for number in range(first, first + 5):
                await theirs.note(number)
            await asyncio.sleep(10)

        for first in (0, 10):
            simulation.start(f"sender-{first}", send, first)
        await asyncio.sleep(2)
        return await echo.notes()

    orders = [simulation.run(program(simulation)) for simulation in map(Simulation, range(10))]
    assert len(set(orders)) > 5
    for order in orders:
        assert [n for n in order if n < 10] == [0, 1, 2, 3, 4]
        assert [n for n in order if n >= 10] == [10, 11, 12, 13, 14]


@simulate(seeds=10)
async def test_call_whose_frame_is_lost_times_out(simulation: Simulation) -> None:
    echo = await echo_of(simulation)
    set_shares(simulation, loss=0.4)
    with asks_within(1.0):
        outcomes = [await outcome(echo.echo(number)) for number in range(20)]
    assert RpcTimeoutError in outcomes
    assert set(outcomes) - {RpcTimeoutError} == {
        number for number, seen in enumerate(outcomes) if seen is not RpcTimeoutError
    }
    assert "ask echo" in simulation.story.text()
    assert "from test lost" in simulation.story.text()


@simulate(seeds=20)
async def test_lost_call_without_a_timeout_fails_by_a_closed_connection(
    simulation: Simulation,
) -> None:
    echo = await echo_of(simulation)
    set_shares(simulation, loss=1.0)
    with pytest.raises(RecipientUnreachableError):
        await echo.hang()


@simulate(seeds=10)
async def test_notice_that_an_endpoint_has_ended_is_never_lost_by_network_faults(
    simulation: Simulation,
) -> None:
    async def host() -> None:
        EchoEndpoint(simulation.service("host")).start()
        await asyncio.sleep(1000)

    simulation.start("host", host)
    await asyncio.sleep(1)
    service = simulation.service()
    echo = await service.connect("host/echo", EchoGateway)
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    service.watch(echo, ended.set_result)
    await echo.close_yourself()
    set_shares(simulation, loss=1.0)
    assert "terminated" in await ended


@simulate(seeds=10)
async def test_a_duplicated_call_is_handled_once(simulation: Simulation) -> None:
    echo = await echo_of(simulation)
    set_shares(simulation, duplication=1.0)
    for number in range(5):
        await echo.note(number)
    assert await echo.echo("once") == "once"
    await asyncio.sleep(3)
    assert await echo.notes() == (0, 1, 2, 3, 4)
    assert simulation.story.text().count("a second time") > 5
    assert simulation.network.services["echo-1"].refused_frames >= 5


@simulate(seeds=10)
async def test_connection_that_breaks_after_a_call_was_handled_fails_the_caller(
    simulation: Simulation,
) -> None:
    echo = await echo_of(simulation)
    set_shares(simulation, breaks_after=1.0)
    with pytest.raises(RecipientUnreachableError, match="reset"):
        await echo.echo("ambiguous")
    assert "then the connection breaks" in simulation.story.text()
    set_shares(simulation, breaks_after=0.0)
    assert await echo.echo("reconnected") == "reconnected"


@simulate(seeds=10)
async def test_connection_that_breaks_before_a_call_loses_the_call(simulation: Simulation) -> None:
    echo = await echo_of(simulation)
    set_shares(simulation, breaks_before=1.0)
    await echo.note(1)
    with pytest.raises(RecipientUnreachableError, match="reset"):
        await echo.echo("lost")
    set_shares(simulation, breaks_before=0.0)
    assert await echo.notes() == ()


@simulate(seeds=10)
async def test_reset_connection_fails_its_pending_calls(simulation: Simulation) -> None:
    echo = await echo_of(simulation)
    pending = asyncio.ensure_future(echo.hang())
    await asyncio.sleep(1)
    (connection,) = simulation.network.connections()
    connection.break_off("the connection was reset")
    with pytest.raises(RecipientUnreachableError, match="reset"):
        await pending
    assert await echo.echo("again") == "again"


@simulate(seeds=10)
async def test_short_network_partition_only_delays_a_call(simulation: Simulation) -> None:
    echo = await echo_of(simulation)
    partition = simulation.partition(["test"], ["echo-1"])
    answer = asyncio.ensure_future(echo.echo("late"))
    await asyncio.sleep(5)
    assert not answer.done()
    simulation.heal(partition)
    assert await answer == "late"
    assert 5 < simulation.now < 6


@simulate(seeds=10)
async def test_long_network_partition_breaks_connections_and_lets_none_be_opened(
    simulation: Simulation,
) -> None:
    echo = await echo_of(simulation)
    service = simulation.network.services["client"]
    partition = simulation.partition(["test"], ["node-0"])
    with pytest.raises(RecipientUnreachableError, match="nothing was heard for 15 s"):
        await echo.hang()
    with pytest.raises(RpcConnectionError, match="does not answer"):
        await service.connect("echo-1/echo", EchoGateway)
    simulation.heal(partition)
    again = await service.connect("echo-1/echo", EchoGateway)
    assert await again.echo("healed") == "healed"


@simulate(seeds=10)
async def test_one_way_partition_loses_messages_in_one_direction_only(
    simulation: Simulation,
) -> None:
    echo = await echo_of(simulation)
    simulation.partition(["echo-1"], ["test"], one_way=True)
    await echo.note(1)
    with asks_within(1.0), pytest.raises(RpcTimeoutError):
        await echo.echo("handled")
    simulation.heal()
    assert await echo.notes() == (1,)


@simulate(seeds=10, nodes=2)
async def test_partition_of_a_node_cuts_off_only_the_processes_of_that_node(
    simulation: Simulation,
) -> None:
    service = simulation.service()
    names = ["echo-1", "echo-2"]
    addresses = [await service.spawn(echo_spec(name)) for name in names]
    echoes = [await service.connect(address, EchoGateway) for address in addresses]
    simulation.partition(["test"], [simulation.process("echo-2").node])
    assert simulation.process("echo-1").node != simulation.process("echo-2").node
    assert await echoes[0].echo("reached") == "reached"
    with asks_within(1.0), pytest.raises(RpcTimeoutError):
        await echoes[1].echo("not reached")


@simulate(seeds=5, conditions=Conditions(latency=(0.01, 0.02)))
async def test_sender_waits_while_the_receiver_does_not_read_its_messages(
    simulation: Simulation,
) -> None:
    echo = await echo_of(simulation)
    simulation.hang("echo-1")
    calls = [asyncio.ensure_future(echo.echo(bytes(100_000))) for _ in range(10)]
    await asyncio.sleep(1)
    note = asyncio.ensure_future(echo.note(1))
    await asyncio.sleep(1)
    assert not note.done()
    simulation.resume("echo-1")
    await note
    assert [len(await call) for call in calls] == [100_000] * 10  # type: ignore[arg-type]
