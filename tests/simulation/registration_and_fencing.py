"""A leader whose sessions change, and workers that register, heart-beat and carry out commands.

The endpoints use all of the framework's safeguards and note in a :class:`World` what they do, so
that each invariant can be asked for at every step:

- no handler of a session runs for a call with another session's token;
- of the registrations of a worker at a leader the newest wins, and a worker is told of its newest
  registration only;
- no command takes effect twice;
- a leader does not count on a worker that has hung for longer than heartbeats take to tell;
- after the last fault every worker is registered, by its newest registration, at the last leader.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.core.ids import FencingToken, ResourceID
from flinkray.core.message import message
from flinkray.rpc import (
    EndpointSpec,
    FencedRpcEndpoint,
    FencedRpcGateway,
    HeartbeatManager,
    HeartbeatSender,
    HeartbeatSettings,
    RegisteredRpcConnection,
    RegistrationFailure,
    RegistrationSettings,
    RpcEndpoint,
    RpcGateway,
    RpcService,
    ask_timeout,
    oneway,
)
from flinkray.testing.simulation import (
    Conditions,
    Faults,
    SimulatedProcess,
    SimulatedRpcService,
    Simulation,
)
from flinkray.testing.simulation.process import ProcessState

WORKERS = 3
FAULTS_UNTIL = 20.0
BOUND = 45.0
"""Seconds after the last fault until all is well again: a registration's timeout may have grown to
:data:`LONGEST_ATTEMPT`, a connection across a healed partition is given up after 15."""
LONGEST_ATTEMPT = 5.0
PULSE = HeartbeatSettings(interval=0.5, timeout=2.0)
DEAF = PULSE.timeout + Conditions().longest_delay + 1.0
"""Seconds of a worker's hang after which its leader must know: what the worker sent before may
arrive late."""
ELECTION, LEADER = "election/election", "leader/leader"

FAULTS = Faults(
    loss=0.05,
    duplication=0.05,
    breaks_before=0.02,
    breaks_after=0.02,
    delay=0.05,
    reset_every=3.0,
    crash_every=5.0,
    hang_every=3.0,
    slow_every=1.5,
    partition_every=5.0,
    node_crash_every=20.0,
    longest=12.0,
    since=0.5,
    until=FAULTS_UNTIL,
    spare=("election",),
)


class SessionId(FencingToken):
    """One period of leadership."""


@message
class Welcome:
    """A registration was accepted."""

    generation: int


@dataclass
class World:
    """What has happened, as nobody inside can know it."""

    simulation: Simulation
    sessions: int = 0
    generations: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    """Worker -> the latest generation that it has begun to register."""
    accepted: dict[tuple[SessionId, str], int] = field(default_factory=dict)
    """Session and worker -> the generation that is registered there."""
    effects: Counter[int] = field(default_factory=Counter)
    """Command -> how often it took effect."""
    leader: Leader | None = None
    """The latest."""
    violations: list[str] = field(default_factory=list)
    hung_since: dict[SimulatedProcess, float] = field(default_factory=dict)
    leader_well_since: float = 0.0
    """The leader's process neither hangs nor is slow, and the leader is the same."""

    def new_session(self) -> SessionId:
        self.sessions += 1
        return SessionId(self.sessions.to_bytes(SessionId.SIZE, "big"))

    def new_generation(self, worker: str) -> int:
        self.generations += 1
        self.newest[worker] = self.generations
        return self.generations

    def handled(self, endpoint: FencedRpcEndpoint[SessionId], believed: SessionId) -> None:
        """A handler runs for a caller that believes in that session."""
        if endpoint.fencing_token != believed:
            own, other = (int(id_.hex(), 16) for id_ in (endpoint.fencing_token, believed))
            self.violate(f"{endpoint.address} of session {own} serves session {other}")

    def registered(self, session: SessionId, worker: str, generation: int) -> None:
        """A leader has accepted a registration."""
        earlier = self.accepted.get((session, worker), 0)
        if generation < earlier:
            self.violate(f"registration {generation} of {worker} evicts its newer one, {earlier}")
        self.accepted[session, worker] = generation

    def took_effect(self, command: int) -> None:
        self.effects[command] += 1
        if self.effects[command] > 1:
            self.violate(f"command {command} took effect {self.effects[command]} times")

    def violate(self, what: str) -> None:
        self.simulation.tell("VIOLATION: %s", what)
        self.violations.append(what)

    def check(self) -> None:
        """After each step."""
        assert not self.violations, self.violations[0]

    def check_for_the_deaf(self) -> None:
        """Now and then."""
        now, leader = self.simulation.now, self.leader
        hung = [p for p in self.simulation.processes() if p.state is ProcessState.STOPPED]
        self.hung_since = {process: self.hung_since.get(process, now) for process in hung}
        if leader is None or not leader.is_well():
            self.leader_well_since = now
            return
        for process, since in self.hung_since.items():
            begin = max(since, self.leader_well_since, leader.registered_at(process.name, now))
            if now - begin > DEAF:
                self.violate(f"{process.name} has hung for {now - begin:g} s and is registered")


def world() -> World:
    """That of the simulated process which runs now."""
    facts: World = Simulation.current().belongings[World]
    return facts


# --- who leads --------------------------------------------------------------------------------


class ElectionGateway(RpcGateway):
    """Knows the present session."""

    @abstractmethod
    @ask_timeout(1.0)
    async def session(self) -> SessionId: ...

    @abstractmethod
    @ask_timeout(1.0)
    async def new_session(self) -> SessionId: ...


class Election(RpcEndpoint, ElectionGateway):
    """Survives everything; lets leadership flap while there are faults."""

    async def on_start(self) -> None:
        self.present = world().new_session()
        self.create_task(self._flap())

    async def _flap(self) -> None:
        simulation = Simulation.current()
        every = simulation.random.choice((0.3, 0.3, 2.0, 30.0))
        while True:
            await asyncio.sleep(simulation.random.expovariate(1 / every))
            if simulation.now > FAULTS_UNTIL:
                return
            self.present = world().new_session()

    async def session(self) -> SessionId:
        return self.present

    async def new_session(self) -> SessionId:
        self.present = world().new_session()
        return self.present


class Host(RpcEndpoint):
    """Main endpoint of a process: keeps an endpoint of the present session at one address."""

    def __init__(
        self, rpc_service: RpcService, make: Callable[[RpcService, SessionId], RpcEndpoint]
    ) -> None:
        super().__init__(rpc_service, "host")
        self._make = make
        self._election: ElectionGateway | None = None
        self._session: SessionId | None = None
        self._endpoint: RpcEndpoint | None = None

    async def on_start(self) -> None:
        self.create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
            except RpcError:  # the election cannot be reached at present
                self._election = None
            await asyncio.sleep(0.2)

    async def _look(self) -> None:
        if self._election is None:
            self._election = await self.connect(ELECTION, ElectionGateway)
        if self._session is None:
            session = await self._first_session(self._election)
        else:
            session = await self._election.session()
        if session != self._session:
            self._session = session
            if self._endpoint is not None:
                await self._endpoint.close()
            self._endpoint = self._make(self.rpc_service, session)
            self._endpoint.start()

    async def _first_session(self, election: ElectionGateway) -> SessionId:
        return await election.session()


class LeaderHost(Host):
    """A leader that is there again leads in a session of its own."""

    async def _first_session(self, election: ElectionGateway) -> SessionId:
        return await election.new_session()


# --- the leader -------------------------------------------------------------------------------


class LeaderGateway(FencedRpcGateway):
    """Each call says too which session its sender believes in, for the invariants."""

    @abstractmethod
    async def register(
        self, believed: SessionId, worker: ResourceID, address: str, generation: int
    ) -> Welcome | RegistrationFailure: ...

    @abstractmethod
    @oneway
    async def heartbeat_from_worker(self, believed: SessionId, worker: ResourceID) -> None: ...

    @abstractmethod
    @ask_timeout(2.0)
    async def command(self, believed: SessionId, command: int) -> None: ...

    @abstractmethod
    @ask_timeout(2.0)
    async def registrations(self, believed: SessionId) -> dict[str, int]: ...


class NoWorkersError(FlinkRayError):
    """Nobody is registered."""


@dataclass(frozen=True)
class Registration:
    """Of one worker at one leader."""

    generation: int
    worker: WorkerGateway
    time: float
    """Of the simulation."""


class Leader(FencedRpcEndpoint[SessionId], LeaderGateway):
    """Of one session."""

    def __init__(self, rpc_service: RpcService, session: SessionId) -> None:
        super().__init__(rpc_service, "leader", session)
        self._latest: dict[str, int] = {}
        self._registered: dict[ResourceID, Registration] = {}

    async def on_start(self) -> None:
        self._heartbeats = HeartbeatSender[None, None](
            self, PULSE, payload=lambda _: None, on_timeout=self._lost, on_unreachable=self._lost
        )
        world().leader = self
        world().leader_well_since = world().simulation.now

    async def register(
        self, believed: SessionId, worker: ResourceID, address: str, generation: int
    ) -> Welcome | RegistrationFailure:
        world().handled(self, believed)
        if self.is_overtaken(worker, generation):
            return RegistrationFailure("overtaken by a later one")
        self._latest[worker] = generation
        gateway = await self.connect(address, WorkerGateway, self.fencing_token)
        await gateway.confirm(self.fencing_token, generation)
        if self.is_overtaken(worker, generation):
            return RegistrationFailure("overtaken by a later one")
        registration = Registration(generation, gateway, world().simulation.now)
        self._registered[worker] = registration
        world().registered(self.fencing_token, worker, generation)
        self.watch(gateway, lambda _: self._lost(worker, registration))
        self._heartbeats.monitor_target(
            worker, lambda _: gateway.heartbeat_from_leader(self.fencing_token)
        )
        return Welcome(generation)

    def is_overtaken(self, worker: ResourceID, generation: int) -> bool:
        """Whether a newer registration of the worker is known."""
        return generation < self._latest.get(worker, 0)

    def is_well(self) -> bool:
        """For the invariants: whether it works at full speed."""
        service = self.rpc_service
        assert isinstance(service, SimulatedRpcService)
        process = service.process
        return self.is_running and process.state is ProcessState.RUNNING and process.step_cost == 0

    def registered_at(self, worker: str, default: float) -> float:
        """For the invariants: since when a worker is registered."""
        registration = self._registered.get(ResourceID(worker))
        return default if registration is None else registration.time

    def _lost(self, worker: ResourceID, registration: Registration | None = None) -> None:
        if registration is None or self._registered.get(worker) is registration:
            self._registered.pop(worker, None)
            self._heartbeats.unmonitor_target(worker)

    async def heartbeat_from_worker(self, believed: SessionId, worker: ResourceID) -> None:
        world().handled(self, believed)
        self._heartbeats.receive_heartbeat(worker, None)

    async def command(self, believed: SessionId, command: int) -> None:
        world().handled(self, believed)
        if not self._registered:
            raise NoWorkersError("no worker is registered")
        registrations = list(self._registered.values())
        registration = registrations[command % len(registrations)]
        await registration.worker.execute(self.fencing_token, registration.generation, command)

    async def registrations(self, believed: SessionId) -> dict[str, int]:
        world().handled(self, believed)
        return {str(name): entry.generation for name, entry in self._registered.items()}


# --- the workers ------------------------------------------------------------------------------


class StaleRegistrationError(FlinkRayError):
    """A command by a registration that the worker has given up."""


class WorkerGateway(FencedRpcGateway):
    """For the leader in whose session the worker is."""

    @abstractmethod
    @oneway
    async def heartbeat_from_leader(self, believed: SessionId) -> None: ...

    @abstractmethod
    @ask_timeout(1.0)
    async def confirm(self, believed: SessionId, generation: int) -> None: ...

    @abstractmethod
    @ask_timeout(1.0)
    async def execute(self, believed: SessionId, generation: int, command: int) -> None: ...


class Worker(FencedRpcEndpoint[SessionId], WorkerGateway):
    """A worker in one session."""

    def __init__(self, rpc_service: RpcService, session: SessionId) -> None:
        super().__init__(rpc_service, "worker", session)
        self.name = ResourceID(rpc_service.process_name)
        self.generation = world().new_generation(self.name)
        self._connection = RegisteredRpcConnection[LeaderGateway, Welcome](
            self,
            target_name="the leader",
            address=LEADER,
            gateway=LeaderGateway,
            fencing_token=session,
            register=self._register,
            on_success=self._registered,
            on_rejection=lambda rejection: self.on_fatal_error(AssertionError(rejection.reason)),
            settings=RegistrationSettings(0.1, LONGEST_ATTEMPT, 0.5, 1.0),
        )

    async def on_start(self) -> None:
        self._heartbeats = HeartbeatManager[None, None](
            self, PULSE, payload=lambda _: None, on_timeout=self._deaf, on_unreachable=self._deaf
        )
        self._connection.start()

    async def on_stop(self) -> None:
        self._connection.close()

    async def _register(self, leader: LeaderGateway) -> Welcome | RegistrationFailure:
        generation = self.generation
        self.watch(leader, lambda _: self._lost(generation))
        return await leader.register(self.fencing_token, self.name, self.address, generation)

    def _registered(self, leader: LeaderGateway, welcome: Welcome) -> None:
        if self._connection.is_closed or welcome.generation != self.generation:
            world().violate(
                f"{self.name} is told of registration {welcome.generation}, which it has given up"
            )
        name = ResourceID(LEADER)
        self._heartbeats.monitor_target(
            name, lambda _: leader.heartbeat_from_worker(self.fencing_token, self.name)
        )

    def _deaf(self, leader: ResourceID) -> None:
        self._lost(self.generation)

    def _lost(self, generation: int) -> None:
        if generation == self.generation and not self._connection.is_closed:
            self.generation = world().new_generation(self.name)
            self._heartbeats.unmonitor_target(ResourceID(LEADER))
            self._connection.try_reconnect()

    async def heartbeat_from_leader(self, believed: SessionId) -> None:
        world().handled(self, believed)
        self._heartbeats.request_heartbeat(ResourceID(LEADER), None)

    async def confirm(self, believed: SessionId, generation: int) -> None:
        world().handled(self, believed)
        if generation != self.generation:
            raise StaleRegistrationError(f"{self.name}: registration {generation} was given up")

    async def execute(self, believed: SessionId, generation: int, command: int) -> None:
        await self.confirm(believed, generation)
        world().took_effect(command)


# --- the course of events ---------------------------------------------------------------------


def create_election(rpc_service: RpcService, _: None) -> RpcEndpoint:
    return Election(rpc_service, "election")


def create_leader(rpc_service: RpcService, _: None) -> RpcEndpoint:
    return LeaderHost(rpc_service, Leader)


def create_worker(rpc_service: RpcService, _: None) -> RpcEndpoint:
    return Host(rpc_service, Worker)


async def registration_and_fencing(simulation: Simulation) -> None:
    """The scenario."""
    facts = simulation.belongings[World] = World(simulation)
    simulation.always(facts.check)
    simulation.always(facts.check_for_the_deaf, every=50)
    service = simulation.service("client")
    names = [f"worker-{number}" for number in range(WORKERS)]
    for name in ("election", "leader", *names):
        factory = f"{__name__}:create_{name.split('-')[0]}"
        await service.spawn(
            EndpointSpec(name.split("-")[0].title(), name, factory, max_restarts=-1)
        )
    commanding = asyncio.ensure_future(_command(simulation, service))
    await simulation.quiet()
    commanding.cancel()

    async def all_is_well() -> bool:
        election = await service.connect(ELECTION, ElectionGateway)
        session = await election.session()
        leader = await service.connect(LEADER, LeaderGateway, session)
        return await leader.registrations(session) == {name: facts.newest[name] for name in names}

    await simulation.eventually(
        all_is_well,
        within=BOUND,
        what="every worker is registered at the last leader by its newest registration",
        retry_on=(FlinkRayError,),
    )


async def _command(simulation: Simulation, service: RpcService) -> None:
    """Send commands, each once, to the leader that was known a while ago."""
    command = 0
    session: SessionId | None = None
    while True:
        await asyncio.sleep(simulation.random.expovariate(1 / 0.2))
        try:
            if session is None or simulation.random.random() < 0.2:
                election = await service.connect(ELECTION, ElectionGateway)
                session = await election.session()
            leader = await service.connect(LEADER, LeaderGateway, session)
            command += 1
            await leader.command(session, command)
        except FlinkRayError as error:
            simulation.tell("command %d: %r", command, error)
