"""Decorators that make a test of ``async def body(services, …)``, on one or several RPC services.

``@on_local_service`` runs the test on the cheapest service, on virtual time. Use this unless
another service can change the result. ``@on_every_service`` adds the simulated service, also on
virtual time, and Ray: for tests whose result sockets, processes or their deaths can change.
``@on_virtual_services`` leaves Ray out, for exact times. ``@on_local_service_with_threads`` has
real time and threads. Other parameters of the body are pytest's.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from flinkray.core.errors import RpcConnectionError
from flinkray.rpc import LocalNetwork, LocalRpcService, RayRpcService, RpcService
from flinkray.testing.simulation import Conditions, Simulation
from flinkray.testing.virtual_time import run_on_virtual_time
from tests.rpc.endpoints import EchoGateway


@dataclass
class Services:
    """Two processes of one cluster that run in this process, and what differs between services."""

    host: RpcService
    caller: RpcService
    crash: Callable[[str], Awaitable[None]]
    """As by SIGKILL; takes the address of an echo endpoint."""
    is_virtual: bool
    """Whether time is virtual."""
    host_error: type[Exception] | None = None
    """Set by a test after which closing the host fails."""

    async def let_time_pass(self, seconds: float) -> None:
        """So much virtual time; on Ray nothing but some turns of the loop and of the network."""
        if self.is_virtual:
            await asyncio.sleep(seconds)
            return
        for _ in range(20):
            await asyncio.sleep(0)
        with pytest.raises(RpcConnectionError):
            await self.caller.connect("host/nobody", EchoGateway)

    async def close(self) -> None:
        caller, host = await asyncio.gather(
            self.caller.close(), self.host.close(), return_exceptions=True
        )
        assert caller is None
        if self.host_error is None:
            assert host is None
        else:
            assert isinstance(host, self.host_error)


Body = Callable[[Services], Coroutine[Any, Any, None]]
Runner = Callable[[pytest.FixtureRequest, Body], None]


def _on_local_service(request: pytest.FixtureRequest, body: Body) -> None:
    run_on_virtual_time(_local(body, is_virtual=True))


def _on_local_service_with_threads(request: pytest.FixtureRequest, body: Body) -> None:
    asyncio.run(_local(body, is_virtual=False))


async def _local(body: Body, *, is_virtual: bool) -> None:
    network = LocalNetwork()

    async def crash(address: str) -> None:
        network.crash(address.split("/")[0])

    host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)
    services = Services(host, caller, crash, is_virtual=is_virtual)
    try:
        await body(services)
        await services.close()
    finally:
        await network.close()


def _on_ray(request: pytest.FixtureRequest, body: Body) -> None:
    request.getfixturevalue("ray_cluster")

    async def run() -> None:
        namespace = f"rpc-{uuid.uuid4().hex}"
        host = await RayRpcService.open(namespace, "host")
        caller = await RayRpcService.open(namespace, "caller")

        async def crash(address: str) -> None:
            os.kill(await (await caller.connect(address, EchoGateway)).pid(), signal.SIGKILL)

        services = Services(host, caller, crash, is_virtual=False)
        try:
            await body(services)
        except BaseException:
            await asyncio.gather(caller.close(), host.close(), return_exceptions=True)
            raise
        await services.close()

    asyncio.run(run())


def _on_simulated_service(request: pytest.FixtureRequest, body: Body) -> None:
    simulation = Simulation(0, conditions=Conditions(latency=(0.0, 0.0)), epoch=0.0)

    async def crash(address: str) -> None:
        simulation.crash(address.split("/")[0])

    async def run() -> None:
        host, caller = simulation.service("host"), simulation.service("caller")
        services = Services(host, caller, crash, is_virtual=True)
        await body(services)
        await services.close()

    simulation.run(run())


_RUNNERS: dict[str, Runner] = {
    "local": _on_local_service,
    "threads": _on_local_service_with_threads,
    "simulated": _on_simulated_service,
    "ray": _on_ray,
}


def _on(*kinds: str) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    def decorate(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(request: pytest.FixtureRequest, service_kind: str, **arguments: Any) -> None:
            async def body(services: Services) -> None:
                await test(services, **arguments)

            _RUNNERS[service_kind](request, body)

        _, *others = inspect.signature(test).parameters.values()
        own = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for name in ("request", "service_kind")
        ]
        run.__signature__ = inspect.Signature([*own, *others])  # type: ignore[attr-defined]
        marks = {"ray": [pytest.mark.ray]}
        parameters = [pytest.param(kind, marks=marks.get(kind, [])) for kind in kinds]
        decorated: Callable[..., None] = pytest.mark.parametrize("service_kind", parameters)(run)
        return decorated

    return decorate


on_every_service = _on("local", "simulated", "ray")
on_virtual_services = _on("local", "simulated")
on_local_service = _on("local")
on_local_service_with_threads = _on("threads")
on_ray = _on("ray")
