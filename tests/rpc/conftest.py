"""Pairs of services: one that hosts, one that calls."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import pytest

from flinkray.rpc import LocalNetwork, LocalRpcService, RayRpcService
from flinkray.rpc.base_service import BaseRpcService
from tests.rpc.endpoints import EchoGateway


@dataclass
class Pair:
    """Two processes of one cluster that run in this process, and how to crash others."""

    host: BaseRpcService
    caller: BaseRpcService
    crash: Callable[[str], Awaitable[None]]
    """As by SIGKILL; takes the address of an echo endpoint."""


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.ray)])
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    host: BaseRpcService
    caller: BaseRpcService
    if request.param == "local":
        network = LocalNetwork()
        host, caller = LocalRpcService("host", network), LocalRpcService("caller", network)

        async def crash(address: str) -> None:
            network.crash(address.split("/")[0])
    else:
        request.getfixturevalue("ray_cluster")
        namespace = f"rpc-{uuid.uuid4().hex}"
        host = await RayRpcService.open(namespace, "host")
        caller = await RayRpcService.open(namespace, "caller")

        async def crash(address: str) -> None:
            os.kill(await (await caller.connect(address, EchoGateway)).pid(), signal.SIGKILL)

    yield Pair(host, caller, crash)
    results = await asyncio.gather(caller.close(), host.close(), return_exceptions=True)
    if isinstance(host, LocalRpcService):
        await host.network.close()
    assert results == [None, None]
