"""Endpoints that the tests of the services host and spawn."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod

import ray

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.core.message import message
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    FencedRpcGateway,
    RpcEndpoint,
    RpcGateway,
    RpcService,
    ask_timeout,
    oneway,
)


@message
class Point:
    """A message."""

    x: int
    y: float
    name: str = "p"


class OrderError(FlinkRayError):
    """An error with attributes."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number


class UnregisteredError(Exception):
    """Not one of flinkray's."""


class EchoGateway(RpcGateway):
    """Says back what it hears."""

    @abstractmethod
    async def echo(self, value: object, *, times: int = 1) -> object: ...

    @abstractmethod
    async def fail(self, how: str) -> None: ...

    @abstractmethod
    async def pid(self) -> int: ...

    @abstractmethod
    async def environment(self, name: str) -> str | None: ...

    @abstractmethod
    async def running(self) -> bool: ...

    @abstractmethod
    @ask_timeout(None)
    async def hang(self) -> None: ...

    @abstractmethod
    @ask_timeout(0.05)
    async def too_slow(self) -> None: ...

    @abstractmethod
    async def bytes_of_length(self, length: int) -> bytes: ...

    @abstractmethod
    async def unsendable(self) -> object: ...

    @abstractmethod
    @oneway
    async def note(self, number: int) -> None: ...

    @abstractmethod
    async def notes(self) -> tuple[int, ...]: ...

    @abstractmethod
    @oneway
    async def close_yourself(self) -> None: ...

    @abstractmethod
    @oneway
    async def break_yourself(self) -> None: ...


class OtherGateway(RpcGateway):
    """Implemented by no endpoint here."""

    @abstractmethod
    async def other(self) -> None: ...


class EchoEndpoint(RpcEndpoint, EchoGateway):
    """Hangs until :attr:`release` is set."""

    def __init__(self, rpc_service: RpcService, endpoint_id: str = "echo") -> None:
        super().__init__(rpc_service, endpoint_id)
        self.release = asyncio.Event()
        self.hanging = asyncio.Event()
        self.seen: list[int] = []

    async def echo(self, value: object, *, times: int = 1) -> object:
        return value if times == 1 else (value,) * times

    async def fail(self, how: str) -> None:
        if how == "later":
            await asyncio.sleep(0.01)
        if how == "order":
            raise OrderError(7, "seven")
        if how == "unregistered":
            raise UnregisteredError("who am I?")
        raise ValueError(f"failed {how}", 42)

    async def pid(self) -> int:
        return os.getpid()

    async def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    async def running(self) -> bool:
        return self.is_running

    async def hang(self) -> None:
        self.hanging.set()
        await self.release.wait()

    async def too_slow(self) -> None:
        await self.release.wait()

    async def bytes_of_length(self, length: int) -> bytes:
        return bytes(length)

    async def unsendable(self) -> object:
        return object()

    async def note(self, number: int) -> None:
        self.seen.append(number)

    async def notes(self) -> tuple[int, ...]:
        return tuple(self.seen)

    async def close_yourself(self) -> None:
        self.close()

    async def break_yourself(self) -> None:
        self.on_fatal_error(RuntimeError("broken on purpose"))


class LeaderGateway(FencedRpcGateway):
    """Of one leader session."""

    @abstractmethod
    async def lead(self) -> str: ...


class Leader(FencedRpcEndpoint[JobMasterId], LeaderGateway):
    """Counts the handlers that ran."""

    calls = 0

    async def lead(self) -> str:
        self.calls += 1
        return str(self.fencing_token)


class SpawnerGateway(RpcGateway):
    """Starts processes on behalf of others."""

    @abstractmethod
    async def spawn_echo(self, name: str, detached: bool) -> str: ...


class Spawner(RpcEndpoint, SpawnerGateway):
    """Owner of what it spawns."""

    async def spawn_echo(self, name: str, detached: bool) -> str:
        return await self.rpc_service.spawn(echo_spec(name, detached=detached))


def echo_spec(name: str, **options: object) -> EndpointSpec:
    return EndpointSpec("Echo", name, f"{__name__}:create_echo", **options)  # type: ignore[arg-type]


def create_echo(rpc_service: RpcService, arguments: object) -> EchoEndpoint:
    return EchoEndpoint(rpc_service)


async def create_spawner(rpc_service: RpcService, arguments: object) -> Spawner:
    return Spawner(rpc_service, "spawner")


def create_nothing(rpc_service: RpcService, arguments: object) -> RpcEndpoint:
    raise OrderError(13, "the factory fails")


class WhereGateway(RpcGateway):
    """Tells where it is."""

    @abstractmethod
    async def where(self) -> tuple[str | None, str]: ...


class Where(RpcEndpoint, WhereGateway):
    """Asks Ray."""

    async def where(self) -> tuple[str | None, str]:
        resources = ray._private.worker.global_worker.core_worker.resource_ids()
        return ray.get_runtime_context().get_placement_group_id(), repr(resources)


def create_where(service: RpcService, arguments: object) -> RpcEndpoint:
    return Where(service, "where")
