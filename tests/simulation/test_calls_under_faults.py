"""Calls of several senders to two endpoints of one process, whatever befalls their connections.

Of each call it is known, from outside, over which connection it was sent and how often it was
handled.  What must hold at every step: no call is handled twice; the calls of one sender to one
endpoint that went over one connection are handled in their order; no more calls wait in a process
than it allows.  Of each ask: it ends in time, with its own answer or with an error.  And in the end
nothing is left: no connection but those in use, no pending call.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field, replace

from flinkray.core.errors import RecipientUnreachableError, RpcError, RpcTimeoutError
from flinkray.rpc import EndpointSpec, RpcEndpoint, RpcGateway, RpcService, ask_timeout, oneway
from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.proxy import binding_of
from flinkray.testing.simulation import Faults, SimulatedRpcService, Simulation, simulate

FAULTS = Faults(
    loss=0.03,
    duplication=0.05,
    breaks_before=0.03,
    breaks_after=0.03,
    delay=0.05,
    reset_every=1.0,
    crash_every=8.0,
    hang_every=8.0,
    slow_every=5.0,
    partition_every=6.0,
    longest=5.0,
    since=0.2,
    until=15.0,
    spare=("sender",),
)
SENDERS = 3
ASK_TIMEOUT = 3.0
MAX_PENDING = 8
LARGE = 100_000
"""Bytes; more than a fragment."""


@dataclass
class World:
    """What was sent and handled, as nobody inside can know it."""

    sent: int = 0
    handled: dict[int, str] = field(default_factory=dict)
    """Call -> where."""
    last: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """Incarnation of the endpoint, sender, connection -> its latest call."""
    violations: list[str] = field(default_factory=list)

    def new_call(self) -> int:
        self.sent += 1
        return self.sent

    def handle(self, endpoint: Ear, sender: str, connection: int, call: int) -> None:
        where = f"{endpoint.address}#{endpoint.incarnation}"
        if call in self.handled:
            self.violations.append(f"{call} handled at {where} and {self.handled[call]}")
        self.handled[call] = where
        before = self.last.get((where, sender, connection), 0)
        if call < before:
            self.violations.append(f"{call} of {sender} handled at {where} after {before}")
        self.last[where, sender, connection] = call

    def check(self) -> None:
        assert not self.violations, self.violations


class EarGateway(RpcGateway):
    """Is called."""

    @abstractmethod
    @ask_timeout(ASK_TIMEOUT)
    async def ask(
        self, sender: str, connection: int, call: int, wait: float, content: bytes
    ) -> tuple[int, bytes]: ...

    @abstractmethod
    @oneway
    async def tell(
        self, sender: str, connection: int, call: int, wait: float, content: bytes
    ) -> None: ...


class Ear(RpcEndpoint, EarGateway):
    """One of two in its process."""

    def __init__(self, rpc_service: RpcService, name: str) -> None:
        super().__init__(rpc_service, name)
        assert isinstance(rpc_service, SimulatedRpcService)
        self.service = rpc_service
        self.incarnation = rpc_service.incarnation
        self.world: World = Simulation.current().belongings[World]
        self.most_pending = 0

    async def ask(
        self, sender: str, connection: int, call: int, wait: float, content: bytes
    ) -> tuple[int, bytes]:
        await self.tell(sender, connection, call, wait, content)
        return call, content

    async def tell(
        self, sender: str, connection: int, call: int, wait: float, content: bytes
    ) -> None:
        self.world.handle(self, sender, connection, call)
        for peer in self.service._peers:
            if peer._pending_calls > MAX_PENDING + 1:
                self.world.violations.append(f"{peer._pending_calls} calls of {peer._peer} wait")
        if wait:
            await asyncio.sleep(wait)


def create_ears(rpc_service: RpcService, arguments: object) -> Ear:
    """Both; the left one is the main one."""
    rpc_service.max_pending_calls = MAX_PENDING
    Ear(rpc_service, "right").start()
    return Ear(rpc_service, "left")


class Sender:
    """Calls both ends by two proxies each."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.world: World = simulation.belongings[World]
        self.random = simulation.random
        self.service = simulation.service(name)
        self.proxies: list[EarGateway] = []
        self.connections: dict[ClientConnection, int] = {}

    async def run(self) -> None:
        while self.simulation.now < FAULTS.until:
            try:
                self.proxies = [
                    await self.service.connect(f"ears/{ear}", EarGateway)
                    for ear in ("left", "right", "left", "right")
                ]
            except RpcError:
                await asyncio.sleep(0.3)
                continue
            while self.simulation.now < FAULTS.until and not self._is_dead():
                count = self.random.choice((1, 1, 5, 30))
                await asyncio.gather(*(self._call() for _ in range(count)))
                await asyncio.sleep(self.random.choice((0.0, 0.01, 0.2)))
        await asyncio.sleep(60)  # connections to what hung or was cut off have been given up
        await self._finish()

    def _is_dead(self) -> bool:
        """The proxies' incarnation may be gone: connect anew, now and then without a need."""
        lost = [binding_of(proxy).connection.is_lost for proxy in self.proxies]
        return all(lost) and self.random.random() < 0.3

    async def _call(self) -> None:
        random, loop = self.random, asyncio.get_running_loop()
        proxy = random.choice(self.proxies)
        wait = random.choice((0.0, 0.0, 0.0, 0.01, 1.0, 2 * ASK_TIMEOUT))
        content = b"." * random.choice((0, 0, 0, 0, 10, LARGE))
        binding = binding_of(proxy)
        try:
            if binding.connection.is_lost:
                binding.connect_again("a call")
        except RecipientUnreachableError:
            return
        # between this and the sending nothing else runs
        number = self.connections.setdefault(binding.connection, len(self.connections))
        call = self.world.new_call()
        begun = loop.time()
        if random.random() < 0.5:
            # while the other side takes nothing it waits, without a limit
            with suppress(RecipientUnreachableError):
                await proxy.tell(self.name, number, call, wait, content)
            return
        try:
            answer = await proxy.ask(self.name, number, call, wait, content)
            assert answer == (call, content)
            assert call in self.world.handled
        except (RecipientUnreachableError, RpcTimeoutError) as error:
            self.simulation.tell("call %s: %s", call, error)
        assert loop.time() - begun < ASK_TIMEOUT + 0.1

    async def _finish(self) -> None:
        for ear in ("left", "right"):
            proxy = await self.service.connect(f"ears/{ear}", EarGateway)
            call = self.world.new_call()
            assert await proxy.ask(self.name, -1, call, 0.0, b"") == (call, b"")
        (connection,) = self.service.connections()
        assert not connection._pending
        assert all(not lost._pending for lost in self.connections if lost.is_lost)
        # what is over is swept out in time
        assert len(self.service.deadlines) <= 256


async def play(simulation: Simulation) -> None:
    """The scenario."""
    world = simulation.belongings[World] = World()
    simulation.always(world.check)
    owner = simulation.service("sender-owner")
    spec = EndpointSpec("Ears", "ears", f"{__name__}:create_ears", max_restarts=-1, detached=True)
    await simulation.eventually(lambda: owner.spawn(spec), within=30, retry_on=(RpcError,))

    async def send(name: str) -> None:
        await Sender(simulation, name).run()

    for number in range(SENDERS):
        simulation.start(f"sender-{number}", send, f"sender-{number}")
    await simulation.quiet()
    await simulation.eventually(
        lambda: not [p for p in simulation.processes("sender-") if p.name[-1].isdigit()],
        within=120,
        what="all senders are done",
    )
    await asyncio.sleep(30)
    ears = simulation.network.services["ears"]
    # its own senders' are gone with them
    assert len(ears._peers) <= 1, list(ears._peers)
    assert world.sent > 100
    assert len(world.handled) > world.sent / 10


@simulate(seeds=30, faults=FAULTS)
async def test_calls_are_handled_in_order_and_at_most_once_and_each_ask_ends(
    simulation: Simulation,
) -> None:
    await play(simulation)


@simulate(seeds=10, faults=replace(FAULTS, crash_every=0.0, hang_every=0.0, slow_every=0.0))
async def test_calls_are_handled_in_order_and_at_most_once_on_a_bad_network(
    simulation: Simulation,
) -> None:
    await play(simulation)
