"""The two sides of what is measured: endpoints of flinkray, and actors of bare Ray."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any

import ray

from _rpc.timing import in_batches, one_by_one, told
from flinkray.core.message import message
from flinkray.rpc import RayRpcService, RpcEndpoint, RpcGateway, RpcService, ask_timeout, oneway
from flinkray.rpc.ray.directory import RayDirectory


@message
class Load:
    """How many calls one round makes."""

    asks: int
    pipelined: int
    outstanding: int


class EchoGateway(RpcGateway):
    """What is called."""

    @abstractmethod
    async def echo(self, value: int) -> int: ...

    @abstractmethod
    @oneway
    async def tell(self, value: int) -> None: ...

    @abstractmethod
    async def length(self, value: bytes) -> int: ...


class Echo(RpcEndpoint, EchoGateway):
    """The called side."""

    async def echo(self, value: int) -> int:
        return value

    async def tell(self, value: int) -> None:
        return

    async def length(self, value: bytes) -> int:
        return len(value)


class CallerGateway(RpcGateway):
    """What measures."""

    @abstractmethod
    @ask_timeout(None)
    async def calls(self, address: str, load: Load) -> dict[str, float]: ...

    @abstractmethod
    @ask_timeout(None)
    async def calls_through_ray(self, address: str, load: Load) -> dict[str, float]:
        """The same by the way of those who cannot open a connection."""

    @abstractmethod
    @ask_timeout(None)
    async def payload(self, address: str, size: int, asks: int) -> dict[str, float]: ...


class Caller(RpcEndpoint, CallerGateway):
    """The calling side."""

    def __init__(self, rpc_service: RpcService) -> None:
        super().__init__(rpc_service, "caller")
        self._through_ray: RayRpcService | None = None

    async def calls(self, address: str, load: Load) -> dict[str, float]:
        echo = await self.connect(address, EchoGateway)
        return await measure_calls(echo, load)

    async def calls_through_ray(self, address: str, load: Load) -> dict[str, float]:
        if self._through_ray is None:
            assert isinstance(self.rpc_service, RayRpcService)
            namespace = self.rpc_service.namespace
            self._through_ray = await RayRpcService.open(namespace, transport="ray")
        echo = await self._through_ray.connect(address, EchoGateway)
        return await measure_calls(echo, load)

    async def on_stop(self) -> None:
        if self._through_ray is not None:
            await self._through_ray.close()

    async def payload(self, address: str, size: int, asks: int) -> dict[str, float]:
        echo = await self.connect(address, EchoGateway)
        body = bytes(size)
        p50, p99 = await one_by_one(lambda: echo.length(body), asks)
        return {"p50": p50, "p99": p99}


async def measure_calls(echo: EchoGateway, load: Load) -> dict[str, float]:
    """One round: asks one by one, asks in batches, tells."""
    p50, p99 = await one_by_one(lambda: echo.echo(1), load.asks)
    return {
        "p50": p50,
        "p99": p99,
        "pipelined": await in_batches(lambda: echo.echo(1), load.pipelined, load.outstanding),
        "tells": await told(lambda: echo.tell(1), lambda: echo.echo(1), load.pipelined),
    }


def create_echo(service: RpcService, arguments: object) -> RpcEndpoint:
    return Echo(service, "echo")


def create_caller(service: RpcService, arguments: object) -> RpcEndpoint:
    return Caller(service)


async def create_tcp_echo(service: RpcService, arguments: object) -> RpcEndpoint:
    """An echo that is not to be found on a unix socket."""
    assert isinstance(service, RayRpcService)
    directory = RayDirectory(service.namespace)
    record = await service.run_blocking(directory.get, service.process_name)
    assert record is not None
    await service.run_blocking(directory.put, service.process_name, replace(record, unix_path=None))
    return Echo(service, "echo")


class RawEcho:
    """The called side by Ray alone, an async actor."""

    async def echo(self, value: int) -> int:
        return value

    async def length(self, value: bytes) -> int:
        return len(value)


class RawSyncEcho:
    """The called side by Ray alone, a sync actor."""

    def echo(self, value: int) -> int:
        return value


class RawCaller:
    """The calling side by Ray alone, an async actor."""

    async def calls(self, echo: Any, load: Load) -> dict[str, float]:
        async def call() -> None:
            await echo.echo.remote(1)

        p50, p99 = await one_by_one(call, load.asks)
        rate = await in_batches(call, load.pipelined, load.outstanding)
        return {"p50": p50, "p99": p99, "pipelined": rate}

    async def payload(self, echo: Any, size: int, asks: int) -> dict[str, float]:
        body = bytes(size)

        async def call() -> None:
            await echo.length.remote(body)

        p50, p99 = await one_by_one(call, asks)
        return {"p50": p50, "p99": p99}


def raw_actor(cls: type, name: str, max_concurrency: int | None = None) -> Any:
    """An actor of Ray alone, which takes no CPU from Ray's books."""
    options: dict[str, Any] = {"num_cpus": 0, "name": name}
    if max_concurrency is not None:
        options["max_concurrency"] = max_concurrency
    return ray.remote(cls).options(**options).remote()
