"""The simulation itself: what a scenario sees of it."""

from __future__ import annotations

from flinkray.core.errors import RecipientUnreachableError, RpcError
from flinkray.testing.simulation import Simulation, simulate
from tests.rpc.endpoints import EchoGateway, echo_spec


@simulate(seeds=20)
async def test_spawned_endpoint_answers_and_is_restarted_after_a_crash(
    simulation: Simulation,
) -> None:
    service = simulation.service("client")
    address = await service.spawn(echo_spec("echo-1", max_restarts=-1))
    echo = await service.connect(address, EchoGateway)
    assert [await echo.echo(number) for number in range(5)] == list(range(5))
    simulation.crash("echo-1")
    try:
        await echo.echo(5)
    except RecipientUnreachableError as error:
        simulation.tell("as expected: %s", error)
    else:
        raise AssertionError("a dead process has answered")
    again = await simulation.eventually(
        lambda: service.connect(address, EchoGateway), within=5, retry_on=(RpcError,)
    )
    assert await again.echo("again") == "again"
