"""Endpoints that the tests of the services host and spawn."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import ray

from flinkray.core.errors import FlinkRayError
from flinkray.core.ids import JobMasterId
from flinkray.core.message import message
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    FencedRpcGateway,
    RayRpcService,
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


@message
class Moody:
    """A message that arrives only when it is in the mood."""

    in_the_mood: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.in_the_mood:
            raise ValueError("not in the mood")


class OrderError(FlinkRayError):
    """An error with attributes."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number


class EchoGateway(RpcGateway):
    """Says back what it hears."""

    @abstractmethod
    async def echo(self, value: object, *, times: int = 1) -> object: ...

    @abstractmethod
    async def fail(self, how: str) -> None: ...

    @abstractmethod
    async def pid(self) -> int: ...

    @abstractmethod
    async def identity(self) -> str: ...

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
    async def keep(self, length: int) -> None: ...

    @abstractmethod
    async def unsendable(self) -> object: ...

    @abstractmethod
    async def moody(self) -> Moody: ...

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
        self.kept: list[bytes] = []

    async def echo(self, value: object, *, times: int = 1) -> object:
        return value if times == 1 else (value,) * times

    async def fail(self, how: str) -> None:
        if how == "later":
            await asyncio.sleep(0.01)
        if how == "order":
            raise OrderError(7, "seven")
        raise ValueError(f"failed {how}", 42)

    async def pid(self) -> int:
        return os.getpid()

    async def identity(self) -> str:
        return self.rpc_service.identity

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

    async def keep(self, length: int) -> None:
        self.kept.append(b"x" * length)

    async def unsendable(self) -> object:
        return object()

    async def moody(self) -> Moody:
        moody = Moody()
        Moody.in_the_mood = False
        return moody

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

    @abstractmethod
    @ask_timeout(None)
    async def lead_later(self) -> None: ...


class Leader(FencedRpcEndpoint[JobMasterId], LeaderGateway):
    """Notes what it has done; waits with some of it until :attr:`may_lead` is set."""

    def __init__(
        self, rpc_service: RpcService, token: JobMasterId, deeds: list[JobMasterId] | None = None
    ) -> None:
        super().__init__(rpc_service, "leader", token)
        self.deeds = [] if deeds is None else deeds
        self.may_lead = asyncio.Event()
        self.waiting = asyncio.Event()

    def act(self) -> None:
        self.deeds.append(self.fencing_token)

    async def lead(self) -> str:
        self.act()
        return str(self.fencing_token)

    async def lead_later(self) -> None:
        self.waiting.set()
        await self.may_lead.wait()
        self.act()


class SpawnerGateway(RpcGateway):
    """Starts processes on behalf of others."""

    @abstractmethod
    @ask_timeout(60.0)
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


class SlowToEnd(EchoEndpoint):
    """Its process hangs when all is closed but its calls to Ray, and leaves a note before."""

    def __init__(self, rpc_service: RayRpcService, note: Path) -> None:
        super().__init__(rpc_service)
        self._executor = rpc_service.head._executor
        self._note = note

    async def on_stop(self) -> None:
        shut_down = self._executor.shutdown

        def hang(wait: bool = True, *, cancel_futures: bool = False) -> None:
            if wait:
                self._note.touch()
                threading.Event().wait()
            shut_down(wait, cancel_futures=cancel_futures)

        self._executor.shutdown = hang  # type: ignore[method-assign]


def create_slow_to_end(service: RayRpcService, note: str) -> RpcEndpoint:
    return SlowToEnd(service, Path(note))


class WhereGateway(RpcGateway):
    """Tells where it is."""

    @abstractmethod
    async def where(self) -> tuple[str | None, str]: ...


class Where(RpcEndpoint, WhereGateway):
    """Asks Ray."""

    async def where(self) -> tuple[str | None, str]:
        worker: Any = ray._private.worker.global_worker
        resources = worker.core_worker.resource_ids()
        return ray.get_runtime_context().get_placement_group_id(), repr(resources)


def create_where(service: RpcService, arguments: object) -> RpcEndpoint:
    return Where(service, "where")


class Scripted(EchoEndpoint):
    """Starts and stops as the test says; notes what happens to it."""

    def __init__(self, service: RpcService, endpoint_id: str = "echo") -> None:
        super().__init__(service, endpoint_id)
        self.may_start = asyncio.Event()
        self.may_stop = asyncio.Event()
        self.start_error: Exception | None = None
        self.stop_error: Exception | None = None
        self.insists_on_starting = False
        self.story: list[str] = []

    async def on_start(self) -> None:
        try:
            await self.may_start.wait()
        except asyncio.CancelledError:
            if not self.insists_on_starting:
                raise
        if self.start_error is not None:
            raise self.start_error
        self.story.append("on_start")

    async def on_stop(self) -> None:
        self.validate_runs_in_main_thread()
        self.story.append("on_stop")
        await self.may_stop.wait()
        if self.stop_error is not None:
            raise self.stop_error


def starting(service: RpcService, endpoint_id: str = "echo") -> Scripted:
    """One that starts at once, and stops when the test lets it."""
    endpoint = Scripted(service, endpoint_id)
    endpoint.may_start.set()
    endpoint.start()
    return endpoint


def running(service: RpcService) -> Scripted:
    """One that starts, and stops, at once."""
    endpoint = starting(service)
    endpoint.may_stop.set()
    return endpoint


LEFT: list[object] = []
"""What endpoints of this process have left."""


def leaving_spec(name: str, what: str) -> EndpointSpec:
    """A role whose process may have another one, and whose endpoint leaves something at its end."""
    return EndpointSpec(
        "Echo",
        name,
        f"{__name__}:create_leaving",
        Point(0, 0.0, what),
        detached=True,
        may_take_over=True,
        may_return=True,
    )


def create_leaving(rpc_service: RpcService, arguments: Point) -> Leaving:
    return Leaving(rpc_service, arguments.name)


class Leaving(EchoEndpoint):
    """Leaves something in its process when it ends."""

    def __init__(self, rpc_service: RpcService, what: str) -> None:
        super().__init__(rpc_service)
        self._what = what
        self.has_run_user_code = what == "user code"

    async def on_stop(self) -> None:
        loop = asyncio.get_running_loop()
        match self._what:
            case "task":
                LEFT.append(loop.create_task(asyncio.Event().wait()))
            case "timer":
                LEFT.append(loop.call_later(600, self.close))
            case "thread":
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            case "socket":
                LEFT.append(socket.create_server(("127.0.0.1", 0)))
            case "file":
                LEFT.append(os.open(__file__, os.O_RDONLY))
            case "endpoint":
                LEFT.append(self)
            case "error":
                raise OrderError(14, "the end fails")
