"""A process that stood still looks at its mailbox before it declares its peers lost."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from flinkray.core.ids import ResourceID
from flinkray.rpc import (
    EndpointSpec,
    HeartbeatManager,
    HeartbeatSender,
    HeartbeatSettings,
    LocalRpcService,
    RpcEndpoint,
    RpcGateway,
    RpcService,
    oneway,
)
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.envelope import PROTOCOL_VERSION, Kind
from flinkray.rpc.wire.fragments import LENGTH
from flinkray.rpc.wire.frames import FrameStream
from flinkray.testing.simulation import Simulation, simulate
from tests.rpc.on_services import Services, on_ray

PEER = ResourceID("peer")
SETTINGS = HeartbeatSettings(interval=10.0, timeout=50.0)


class ListenerGateway(RpcGateway):
    """Hears heartbeats."""

    @abstractmethod
    @oneway
    async def beat(self, sender: ResourceID) -> None: ...

    @abstractmethod
    @oneway
    async def chatter(self, number: int) -> None: ...

    @abstractmethod
    async def listen_to(self, address: str, settings: tuple[float, float]) -> None: ...

    @abstractmethod
    async def pid(self) -> int: ...

    @abstractmethod
    async def lost(self) -> tuple[ResourceID, ...]: ...


class Listener(RpcEndpoint, ListenerGateway):
    """Notes whom it has declared lost; can request heartbeats, too."""

    def __init__(self, service: RpcService, name: str = "listener") -> None:
        super().__init__(service, name)
        self.gone: list[ResourceID] = []
        self.news = asyncio.Event()
        """Set when somebody was heard or declared lost."""
        self.heard = 0
        self.heartbeats: HeartbeatManager[None, None] | None = None
        self.target: ListenerGateway | None = None
        self.is_faithful = False
        """Whether it goes on with a target that it has declared lost."""

    def monitor(
        self,
        target: ListenerGateway | None,
        settings: HeartbeatSettings,
        kind: type[HeartbeatManager[None, None]] = HeartbeatManager,
    ) -> None:
        self.heartbeats = kind(
            self,
            settings,
            payload=lambda _: None,
            on_timeout=self._is_lost,
            on_unreachable=lambda _: None,
        )

        self.target = target
        self.begin()

    def begin(self) -> None:
        assert self.heartbeats is not None
        self.heartbeats.monitor_target(PEER, self.send)

    async def send(self, payload: None) -> None:
        if self.target is not None:
            await self.target.beat(ResourceID(self.endpoint_id))

    def _is_lost(self, target: ResourceID) -> None:
        self.gone.append(target)
        self.news.set()
        if self.is_faithful:
            self.begin()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.news.clear()
            await self.news.wait()

    async def beat(self, sender: ResourceID) -> None:
        self.heard += 1
        self.news.set()
        assert self.heartbeats is not None
        if isinstance(self.heartbeats, HeartbeatSender):
            self.heartbeats.receive_heartbeat(PEER, None)
        else:
            self.heartbeats.request_heartbeat(PEER, None)

    async def chatter(self, number: int) -> None:
        """What else may be in a mailbox."""

    async def listen_to(self, address: str, settings: tuple[float, float]) -> None:
        gateway = await self.connect(address, ListenerGateway)
        self.monitor(gateway, HeartbeatSettings(*settings))

    async def pid(self) -> int:
        return os.getpid()

    async def lost(self) -> tuple[ResourceID, ...]:
        return tuple(self.gone)


def create_listener(service: RpcService, arguments: object) -> Listener:
    return Listener(service)


class JumpingLoop(asyncio.SelectorEventLoop):
    """A real loop with real sockets, whose clock can jump as it does for a process that stood
    still."""

    offset = 0.0

    def time(self) -> float:
        return super().time() + self.offset


def tell(sequence: int, method: str, argument: object) -> bytes:
    parts = (
        PROTOCOL_VERSION, int(Kind.TELL), sequence, 1, method, None, None, None,
        codec.encode((argument,)),
    )  # fmt: skip
    frame: bytes = msgpack.packb(parts)
    return LENGTH.pack(len(frame)) + frame


def on_jumping_loop(body: Callable[[JumpingLoop, socket.socket, Listener], Any]) -> None:
    """Run *body* with a listener, and the other end of a socket that leads to it."""
    loop = JumpingLoop()
    asyncio.set_event_loop(loop)

    async def run() -> None:
        service = LocalRpcService("host")
        listener = Listener(service)
        listener.start()
        mine, theirs = socket.socketpair()
        for sock in (mine, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                sock.setsockopt(socket.SOL_SOCKET, option, 4 * 2**20)
        _, stream = await loop.create_connection(FrameStream, sock=theirs)
        stream.attach(service.new_peer(stream, "peer#1"))
        await body(loop, mine, listener)
        mine.close()
        await service.close()

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()
        asyncio.set_event_loop(None)


@pytest.mark.parametrize("stall", [45.0, 50.01, 60.0, 10_000.0])
@pytest.mark.parametrize("kind", [HeartbeatManager, HeartbeatSender])
def test_heartbeats_that_wait_in_the_socket_during_a_stall_count_after_it(
    stall: float, kind: type[HeartbeatManager[None, None]]
) -> None:
    async def body(loop: JumpingLoop, peer: socket.socket, listener: Listener) -> None:
        listener.monitor(None, SETTINGS, kind)
        peer.sendall(tell(1, "beat", PEER))
        await listener.until(lambda: listener.heard == 1)
        # the heartbeats lie behind much else
        frames = [tell(number, "chatter", number) for number in range(2, 3002)]
        frames += [tell(number, "beat", PEER) for number in range(3002, 3006)]
        data = b"".join(frames)
        loop.offset += 5.0
        await asyncio.sleep(0)
        peer.setblocking(False)
        assert peer.send(data) == len(data)
        loop.offset += stall
        await listener.until(lambda: listener.heard == 5 or listener.gone != [])
        assert listener.gone == []
        assert listener.heard == 5

    on_jumping_loop(body)


@on_ray
async def test_process_that_resumes_after_sigstop_does_not_report_its_peers_as_lost(
    services: Services,
) -> None:
    """The peers ran on and have lost the stopped process."""
    spec = EndpointSpec("Listener", "stopped", f"{__name__}:create_listener")
    address = await services.caller.spawn(spec)
    stopped = await services.caller.connect(address, ListenerGateway)
    here = Listener(services.caller, "here")
    here.start()
    settings = (0.05, 1.0)
    await stopped.listen_to(here.address, settings)
    here.monitor(stopped, HeartbeatSettings(*settings), HeartbeatSender)
    await here.until(lambda: here.heard > 0)
    here.is_faithful = True
    pid = await stopped.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        await here.until(lambda: len(here.gone) == 2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert await stopped.lost() == ()  # an ask that lies behind the heartbeats
    heard = here.heard
    await here.until(lambda: here.heard >= heard + 5)
    assert await stopped.lost() == ()


async def listener_in_a_process_of_its_own(simulation: Simulation) -> ListenerGateway:
    """It listens to an endpoint of the caller, in the process ``stopped``."""
    here = Listener(simulation.service("caller"), "here")
    here.start()
    spec = EndpointSpec("Listener", "stopped", f"{__name__}:create_listener")
    stopped = await here.connect(await here.rpc_service.spawn(spec), ListenerGateway)
    await stopped.listen_to(here.address, (SETTINGS.interval, SETTINGS.timeout))
    return stopped


@simulate(seeds=20)
async def test_simulated_process_that_resumes_after_a_stop_reports_no_peer_as_lost(
    simulation: Simulation,
) -> None:
    service = simulation.service("caller")
    spec = EndpointSpec("Listener", "stopped", f"{__name__}:create_listener")
    stopped = await service.connect(await service.spawn(spec), ListenerGateway)
    here = Listener(service, "here")
    here.start()
    await stopped.listen_to(here.address, (SETTINGS.interval, SETTINGS.timeout))
    here.monitor(stopped, SETTINGS, HeartbeatSender)
    here.is_faithful = True
    await asyncio.sleep(simulation.random.uniform(10, 30))
    simulation.hang("stopped")
    await asyncio.sleep(simulation.random.uniform(45, 120))
    simulation.resume("stopped")
    await asyncio.sleep(100)
    assert await stopped.lost() == ()
    assert len(here.gone) <= 2  # it did notice the silence


@simulate(seeds=20)
async def test_peer_that_died_during_stalls_is_reported_within_a_bound(
    simulation: Simulation,
) -> None:
    """The bound is the timeout, counted without the stalls, and a little more."""
    stopped = await listener_in_a_process_of_its_own(simulation)
    await stopped.beat(PEER)
    await stopped.pid()
    before = simulation.random.uniform(0, 49)
    await asyncio.sleep(before)
    simulation.hang("stopped")
    await asyncio.sleep(simulation.random.uniform(0, 200))
    simulation.resume("stopped")
    # stalls that come again and again do not put it off for ever
    slept = 0.0
    while not await stopped.lost():
        assert slept < SETTINGS.timeout * 1.06 + 1 - before + 6 * 3
        await asyncio.sleep(3)
        slept += 3
        if slept < 18:
            simulation.hang("stopped")
            await asyncio.sleep(simulation.random.uniform(0, 20))
            simulation.resume("stopped")
