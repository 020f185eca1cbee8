"""Calls between two processes on one node: flinkray's RPC against raw Ray actor calls, in one run.

Run: ``python -m benchmarks.rpc [rounds]``.  Printed are medians of the rounds and ratios; compare
ratios, as machines are noisy.  Both sides of each pair live in Ray actors.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import ray

from flinkray.core.message import message
from flinkray.rpc import (
    EndpointSpec,
    RayRpcService,
    RpcEndpoint,
    RpcGateway,
    RpcService,
    ask_timeout,
    oneway,
)

ASKS = 2000
PIPELINED = 20_000
RAW_PIPELINED = 4_000
OUTSTANDING = 1000


@message
class Measured:
    """Seconds of single asks, and calls per second."""

    p50: float
    p99: float
    pipelined: float
    tells: float


class EchoGateway(RpcGateway):
    """What is called."""

    @abstractmethod
    async def echo(self, value: int) -> int: ...

    @abstractmethod
    @oneway
    async def tell(self, value: int) -> None: ...


class Echo(RpcEndpoint, EchoGateway):
    """The called side."""

    async def echo(self, value: int) -> int:
        return value

    async def tell(self, value: int) -> None:
        return


class CallerGateway(RpcGateway):
    """What measures."""

    @abstractmethod
    @ask_timeout(None)
    async def measure(self, address: str) -> Measured: ...


class Caller(RpcEndpoint, CallerGateway):
    """The calling side."""

    async def measure(self, address: str) -> Measured:
        echo = await self.connect(address, EchoGateway)
        p50, p99 = await single(lambda: echo.echo(1))
        pipelined = await many(lambda: echo.echo(1), PIPELINED)
        begin = time.perf_counter()
        for _ in range(PIPELINED):
            await echo.tell(1)
        await echo.echo(1)  # handled after all of them
        tells = PIPELINED / (time.perf_counter() - begin)
        return Measured(p50, p99, pipelined, tells)


def create_echo(service: RpcService, arguments: object) -> RpcEndpoint:
    return Echo(service, "echo")


def create_caller(service: RpcService, arguments: object) -> RpcEndpoint:
    return Caller(service, "caller")


async def single(call: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """p50 and p99 of one call after the other."""
    durations = []
    for _ in range(ASKS):
        begin = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - begin)
    durations.sort()
    return durations[ASKS // 2], durations[ASKS * 99 // 100]


async def many(call: Callable[[], Awaitable[Any]], count: int) -> float:
    """Calls per second with :data:`OUTSTANDING` on their way."""
    begin = time.perf_counter()
    for _ in range(count // OUTSTANDING):
        await asyncio.gather(*(call() for _ in range(OUTSTANDING)))
    return count / (time.perf_counter() - begin)


class RawEcho:
    """The called side, by Ray alone."""

    async def echo(self, value: int) -> int:
        return value


class RawCaller:
    """The calling side, by Ray alone."""

    async def measure(self, echo: Any) -> tuple[float, float, float]:
        async def call() -> None:
            await echo.echo.remote(1)

        p50, p99 = await single(call)
        return p50, p99, await many(call, RAW_PIPELINED)


async def main(rounds: int) -> None:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    service = await RayRpcService.open("rpc-benchmark")
    module = "benchmarks.rpc"
    echo = await service.spawn(EndpointSpec("Echo", "echo", f"{module}:create_echo"))
    address = await service.spawn(EndpointSpec("Caller", "caller", f"{module}:create_caller"))
    caller = await service.connect(address, CallerGateway)
    raw_echo = ray.remote(RawEcho).options(num_cpus=0, max_concurrency=OUTSTANDING).remote()
    raw_caller = ray.remote(RawCaller).options(num_cpus=0).remote()
    ours, raws = [], []
    for _ in range(rounds):
        ours.append(await caller.measure(echo))
        raws.append(await raw_caller.measure.remote(raw_echo))
    p50, p99, pipelined, tells = (
        statistics.median(getattr(one, name) for one in ours)
        for name in ("p50", "p99", "pipelined", "tells")
    )
    raw_p50, raw_p99, raw_pipelined = (
        statistics.median(one[index] for one in raws) for index in range(3)
    )
    print(f"medians of {rounds} rounds        flinkray.rpc   raw async actor   ratio")
    for name, one, raw in (
        ("ask p50, us", p50 * 1e6, raw_p50 * 1e6),
        ("ask p99, us", p99 * 1e6, raw_p99 * 1e6),
        (f"asks/s, {OUTSTANDING} outstanding", pipelined, raw_pipelined),
        ("tells/s", tells, raw_pipelined),
    ):
        print(f"{name:28} {one:14,.0f} {raw:17,.0f}   {one / raw:6.3f}")
    await service.close()
    ray.shutdown()


if __name__ == "__main__":
    from benchmarks.rpc import main as importable_main  # messages must have one module name

    asyncio.run(importable_main(int(sys.argv[1]) if len(sys.argv) > 1 else 3))
