"""Defines the faults that a scenario allows, and the process that causes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, fields, replace
from functools import partial
from math import inf
from random import Random

from flinkray.rpc.calls.connection import ClientConnection
from flinkray.rpc.calls.metrics import MethodRecorder
from flinkray.rpc.wire.envelope import Kind, unpack, unpack_request
from flinkray.testing.simulation.disk import SimulatedDisk
from flinkray.testing.simulation.interfaces import World
from flinkray.testing.simulation.link import End
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.step_threads import StepThread

_AIMS_ALONE = 0.4
"""The fraction of seeds in which all faults but aims are off."""
_CLOSED = 0.3
"""The fraction of seeds in which one method is closed, if a scenario names any."""
_SHARES = ("loss", "duplication", "breaks_before", "breaks_after", "delay")
_VARIED = (*_SHARES, "torn_writes", "clock_error", "reorders", "late_listing")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """The kinds of faults that a scenario allows, and how often each may happen; times in virtual
    seconds.

    With :attr:`vary` these values are upper limits: each seed leaves some kinds out and uses more
    or less of the others, so that a seed also finds errors that only show while other faults are
    absent. Some seeds have only :attr:`aimed` faults, or one :attr:`closed` method: the effect of a
    single lost message soon disappears where processes die all the time."""

    loss: float = 0.0
    """The fraction of frames that never arrive (:class:`Conditions`, as for the next four)."""
    duplication: float = 0.0
    """The fraction of frames that arrive twice."""
    breaks_before: float = 0.0
    """The fraction of frames that do not arrive because the connection breaks."""
    breaks_after: float = 0.0
    """The fraction of frames that are handled, but then the connection breaks.

    The caller sees an error.
    """
    delay: float = 0.0
    """The fraction of frames that take up to two seconds."""

    reset_every: float = 0.0
    """Mean seconds between two broken connections; 0: never."""
    crash_every: float = 0.0
    """Mean seconds between two kills, at once or in the middle of a process's work; 0: never.

    The process is restarted as its spec says.
    """
    together_every: float = 0.0
    """Mean seconds until two processes of different kinds are killed within a second; 0: never.

    In a third of the cases another process is killed within 18 s.
    """
    slow_restarts: float = 0.0
    """The longest time in seconds from the death of a process until it is restarted.

    0: as the network's conditions say.
    """
    hang_every: float = 0.0
    """Mean seconds until a process stops as by SIGSTOP, and continues after a while; 0: never."""
    slow_every: float = 0.0
    """Mean seconds until, for a while, each callback of a process takes up to 50 ms; 0: never."""
    partition_every: float = 0.0
    """Mean seconds between two partitions of processes or nodes; 0: never.

    A partition lasts for a while, and cuts one or both directions.
    """
    node_crash_every: float = 0.0
    """Mean seconds until a node crashes with all its processes; 0: never.

    The node is restarted after a while, with or without its disk.
    """
    storage_every: float = 0.0
    """Mean seconds until a disk or the shared storage fails or is slow for a while; 0: never."""
    power_every: float = 0.0
    """Mean seconds until a disk or the shared storage loses power and unsynced data; 0: never."""
    full_every: float = 0.0
    """Mean seconds until a disk or the shared storage is full for a while; 0: never."""
    freeze_every: float = 0.0
    """Mean seconds until a process stops forever, as by SIGSTOP; 0: never."""
    banish_every: float = 0.0
    """Mean seconds until a supervisor takes a stopped or healthy process for dead; 0: never.

    The supervisor starts a successor. The process continues, at the latest after a minute, and runs
    beside the successor for a while.
    """

    aimed: float = 0.0
    """The fraction of methods whose calls, and of methods whose answers, meet faults.

    Such messages are lost, duplicated or late; or their sender or receiver is killed, hangs or is
    replaced; or the shared storage fails or loses its power, if these faults are allowed.
    """
    aims_lose: bool = True
    """Whether :attr:`aimed` faults may lose or delay a message while both its processes live on.

    If False, they hit only processes and the storage.
    """

    closed: tuple[str, ...] = ()
    """Methods whose messages a seed may lose, such as ``TaskExecutor.free_slot``.

    A seed may close one of them: its first calls, its first answers or all are lost, or connections
    break, and there are no other faults but kills. Only the endpoints of the named kind are
    affected. A method named twice is closed twice as often.
    """

    repeated: float = 0.0
    """The fraction of requests of :attr:`repeatable` methods that are sent again.

    The sender repeats the request within ten seconds, as if the answer had been lost. A connection
    drops repeated frames, but not repeated requests.
    """
    repeatable: tuple[str, ...] = ()
    """Methods, named as in :attr:`closed`, whose senders call again until they get an answer."""

    torn_writes: float = 0.0
    """The fraction of changes on disks in the middle of which the process is killed."""
    paused_work: float = 0.0
    """The fraction of blocking work in which the process is paused between two disk operations.

    The process stops, as by SIGSTOP, and is taken for dead. It continues the work beside its
    successor.
    """
    reorders: float = 0.0
    """The fraction of power losses that keep any unsynced name changes, in no order."""
    late_listing: float = 0.0
    """Seconds for which checkpoint storage may list deleted files, or not list new files."""
    lost_disks: float = 0.0
    """The fraction of crashes that destroy the disk of the process or node."""

    clock_error: float = 0.0
    """The largest error in seconds of a process's wall clock, constant while the process lives."""

    longest: float = 30.0
    """The longest time of a hang, a slowness, a partition or a node's absence; most are shorter."""
    since: float = 0.0
    """Nothing goes wrong before this time."""
    until: float = inf
    """Nothing goes wrong after this time, and all faults are repaired."""
    spare: tuple[str, ...] = ()
    """Prefixes of the names of processes that are never killed, stopped or slowed down."""
    only_killed: tuple[str, ...] = ()
    """Prefixes of the names of processes that neither freeze nor are banished.

    Only the death of such a process lets a successor take its place.
    """
    vary: bool = True

    def of_disk(self, disk: SimulatedDisk) -> None:
        """Set the faults of a new disk that do not change during the run."""
        disk.torn, disk.spares = self.torn_writes, self.spare
        disk.reorders = self.reorders
        disk.late_listing = self.late_listing

    def of_seed(self, random: Random) -> Faults:
        """Return the faults of one seed, drawn from these limits."""
        if not self.vary:
            return self
        changes: dict[str, float] = {}
        closed: tuple[str, ...] = ()
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _VARIED:
                changes[field.name] = value * random.choice((0.0, 0.1, 0.5, 1.0))
            elif field.name == "aimed":
                changes[field.name] = value * random.choice((0.0, 0.5, 1.0, 1.0))
            elif field.name.endswith("_every"):
                factor = random.choice((0.0, 1.0, 1.0, 3.0, 10.0))
                changes[field.name] = value * factor
        if self.aimed > 0 and random.random() < _AIMS_ALONE:
            changes = dict.fromkeys(changes, 0.0)
            changes["aimed"] = self.aimed * random.choice((0.3, 1.0))
        if self.closed and random.random() < _CLOSED:
            changes = dict.fromkeys(changes, 0.0)
            changes["crash_every"] = self.crash_every * random.choice((0.0, 0.0, 1.0, 3.0))
            closed = (random.choice(self.closed),)
        return replace(self, closed=closed, **changes)  # type: ignore[arg-type]


_LONGEST_UNTIL_THIRD = 18.0
"""The longest time in seconds from the second death to the third."""
_LONGEST_SLEEP, _LONGEST_EXILE = 60.0, 10.0
"""The longest times in seconds that a banished process hangs, and then acts."""
_MOST_BEFORE_PAUSE = 12
"""The most disk operations before a pause in blocking work: about one change of an epoch."""


class Nemesis:
    """The process of the simulation that causes faults, as the :class:`Faults` of one seed say."""

    def __init__(self, simulation: World, faults: Faults, random: Random) -> None:
        self.faults = faults
        self._simulation = simulation
        self._random = random
        self._process = simulation.scheduler.new_process("faults")
        self._random_of_work = stream(simulation.seed, "paused work")
        self._mending: list[Callable[[], None]] = []
        self.has_ended = asyncio.Event()

    def begin(self) -> None:
        """Begin to cause faults; call this once."""
        since = self.faults.since
        if since > 0:
            self._process.post(since, self._make_weather)
        else:
            self._make_weather()
        for kind, act in (
            ("reset_every", self._reset),
            ("crash_every", self._crash),
            ("together_every", self._crash_together),
            ("hang_every", self._hang),
            ("slow_every", self._slow),
            ("partition_every", self._partition),
            ("node_crash_every", self._node_crash),
            ("storage_every", self._storage),
            ("power_every", self._power),
            ("full_every", self._full),
            ("freeze_every", self._freeze),
            ("banish_every", self._banish),
        ):
            every = getattr(self.faults, kind)
            if every > 0:
                self._process.post(since, self._begin, every, act)
        if self.faults.until < inf:
            self._simulation.scheduler.at(self.faults.until, self.end)

    def _make_weather(self) -> None:
        network = self._simulation.network
        if self.faults.aimed > 0 or self.faults.closed:
            network.aim(Aims(self._simulation, self.faults))
        if self.faults.repeated > 0:
            network.repeats = RepeatedRequests(self._simulation, self.faults)
        if self.faults.slow_restarts > 0:
            soonest, usual = network.conditions.restart
            restart = soonest, max(usual, self.faults.slow_restarts)
            network.set_conditions(replace(network.conditions, restart=restart))
        network.set_conditions(
            replace(
                network.conditions,
                loss=self.faults.loss,
                duplication=self.faults.duplication,
                breaks_before=self.faults.breaks_before,
                breaks_after=self.faults.breaks_after,
                delay=self.faults.delay,
            )
        )

    def end(self) -> None:
        """Stop all faults, and repair what is broken. Can be called again."""
        if not self._process.is_alive:
            return
        self._process.die("the faults are over")
        network = self._simulation.network
        if network.aims is not None:
            network.aims.end()
        network.aim(None)
        network.repeats = None
        network.set_conditions(
            replace(
                network.conditions,
                loss=0.0,
                duplication=0.0,
                breaks_before=0.0,
                breaks_after=0.0,
                delay=0.0,
            )
        )
        while self._mending:
            self._mending.pop(0)()
        for process in self._simulation.victims():
            process.spare()
        for disk in self._simulation.disks():
            disk.torn = disk.reorders = disk.late_listing = 0.0
        self._simulation.tell("no fault after this")

    def _begin(self, every: float, act: Callable[[], Awaitable[None]]) -> None:
        self._process.create_task(self._repeat(every, act))

    async def _repeat(self, every: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._random.expovariate(1 / every))
            await act()

    async def _for_a_while(self, mend: Callable[[], None]) -> None:
        """Call *mend*, which repairs a fault, after a random time, or earlier when all faults are
        ended. Returns after the call."""
        self._mending.append(mend)
        await asyncio.sleep(self.faults.longest * self._random.random() ** 3)
        self._mending.remove(mend)
        mend()

    def _victim(
        self, *, for_good: bool = False, besides: Collection[str] = ()
    ) -> SimulatedProcess | None:
        """Return a random process that a fault may hit. None: there is none. *for_good*: the fault
        is such that the process will not recover, so that other processes must be able to notice
        its loss. *besides*: kinds of processes that are left out."""
        kinds: dict[str, list[SimulatedProcess]] = {}
        spared = self.faults.spare
        if for_good:
            spared += self.faults.only_killed
        for process in self._simulation.victims():
            if for_good and not process.has_started:
                continue
            is_spared = process.name.startswith(spared or ("\0",)) or process.kind in besides
            if not is_spared:
                kinds.setdefault(process.kind, []).append(process)
        if not kinds:
            return None
        return self._random.choice(kinds[self._random.choice(list(kinds))])

    async def _crash_together(self) -> None:
        pauses = [0.0, self._random.random()]
        if self._random.random() < 1 / 3:
            pauses.append(_LONGEST_UNTIL_THIRD * self._random.random())
        kinds: list[str] = []
        for pause in pauses:
            await asyncio.sleep(pause)
            victim = self._victim(besides=kinds)
            if victim is not None:
                kinds.append(victim.kind)
                self._simulation.crash(victim)

    async def _reset(self) -> None:
        connections = [c for c in self._simulation.network.connections() if not c.is_broken]
        if connections:
            connection = self._random.choice(connections)
            ends = connection.near.process.name, connection.far.process.name
            self._simulation.tell("the connection from %s to %s is reset", *ends)
            connection.break_off("the connection was reset")

    async def _crash(self) -> None:
        victim = self._victim()
        if victim is None:
            return
        steps = self._random.choice((0, self._random.randint(1, 40)))
        keep = self._random.random() >= self.faults.lost_disks
        witness = self._witness(victim) if self._random.random() < 0.4 else None
        if witness is not None:
            self._simulation.hang(witness)
        self._simulation.crash(victim, after_steps=steps, keep_disk=keep)
        if witness is not None:  # when it resumes, it finds a successor in the place of the victim
            await self._for_a_while(lambda: self._simulation.resume(witness))

    def _witness(self, victim: SimulatedProcess) -> SimulatedProcess | None:
        """Return a random process that is connected to *victim* and may be hit by a fault. None:
        there is none."""
        spared = self.faults.spare or ("\0",)
        found = [
            connection.near.process
            for connection in self._simulation.network.connections()
            if connection.far.process is victim
            and connection.near.process.node
            and not connection.near.process.name.startswith(spared)
        ]
        return self._random.choice(found) if found else None

    async def _hang(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._simulation.hang(victim)
            await self._for_a_while(lambda: self._simulation.resume(victim))

    async def _freeze(self) -> None:
        victim = self._victim(for_good=True)
        if victim is not None:
            self._simulation.freeze(victim)

    async def _banish(self) -> None:
        """Make the cluster believe that a process is dead, in most cases after the process has
        hung. Later let the process run again, and end it."""
        victim = self._victim(for_good=True)
        if victim is None:
            return
        simulation, random = self._simulation, self._random
        if random.random() < 0.7:
            simulation.hang(victim)
            wake = partial(simulation.resume, victim)
            self._mending.append(wake)
            await asyncio.sleep(random.uniform(*simulation.network.conditions.node_death_noticed))
            self._mending.remove(wake)
        if not victim.is_alive:
            return
        simulation.banish(victim)

        def end() -> None:
            simulation.end_banished(victim)

        self._mending.append(end)
        await asyncio.sleep(_LONGEST_SLEEP * random.random() ** 2)
        simulation.resume(victim)
        await asyncio.sleep(_LONGEST_EXILE * random.random())
        self._mending.remove(end)
        end()

    def pause_in_work(self, process: SimulatedProcess) -> Callable[[], None] | None:
        """Decide whether *process* is to be paused in the middle of its next blocking work. Return
        a function that the work must call before each disk operation; in one of these calls it
        pauses the process. None: no pause."""
        faults, random = self.faults, self._random_of_work
        spared = (*faults.spare, *faults.only_killed)
        if (
            faults.paused_work == 0
            or not self._process.is_alive
            or self._simulation.now < faults.since
            or process not in self._simulation.victims()
            or not process.has_started
            or process.name.startswith(spared or ("\0",))
            or random.random() >= faults.paused_work
        ):
            return None
        operations = random.randint(0, _MOST_BEFORE_PAUSE)
        sleep = _LONGEST_SLEEP * random.random() ** 2
        exile = _LONGEST_EXILE * random.random()

        def before_disk() -> None:
            nonlocal operations
            operations -= 1
            if operations == -1 and self._process.is_alive and not process.is_banished:
                self._pause(process, sleep, exile)

        return before_disk

    def _pause(self, process: SimulatedProcess, sleep: float, exile: float) -> None:
        """Stop *process*, and make the cluster believe that it is dead; called in a thread of the
        process. It continues after *sleep* virtual seconds, and is ended for good *exile* seconds
        later."""
        simulation, thread = self._simulation, StepThread.current()
        assert thread is not None
        simulation.hang(process)
        simulation.banish(process)
        self._process.post(
            0.0, lambda: self._process.create_task(self._wake(process, sleep, exile))
        )
        thread.give_way()

    async def _wake(self, process: SimulatedProcess, sleep: float, exile: float) -> None:
        def end() -> None:
            self._simulation.end_banished(process)

        self._mending.append(end)
        await asyncio.sleep(sleep)
        self._simulation.resume(process)
        await asyncio.sleep(exile)
        self._mending.remove(end)
        end()

    async def _power(self) -> None:
        disks = self._simulation.disks()
        if disks:
            disk = self._random.choice(disks)
            self._simulation.tell("disk %s: the power is gone for a moment", disk.name)
            disk.lose_power()

    async def _full(self) -> None:
        disks = self._simulation.disks()
        if not disks:
            return
        disk = self._random.choice(disks)
        disk.is_full = True
        self._simulation.tell("disk %s is full", disk.name)

        def mend() -> None:
            disk.is_full = False

        await self._for_a_while(mend)

    async def _slow(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._simulation.slow_down(victim, 0.05 * self._random.random() ** 2)
            await self._for_a_while(lambda: self._simulation.slow_down(victim, 0.0))

    async def _partition(self) -> None:
        simulation = self._simulation
        names = [process.name for process in simulation.reachable()]
        nodes = [node.name for node in simulation.nodes]
        if len(nodes) > 1 and self._random.random() < 0.5:
            names = nodes
        if len(names) < 2:
            return
        self._random.shuffle(names)
        middle = self._random.randint(1, len(names) - 1)
        partition = simulation.network.partition(
            names[:middle], names[middle:], one_way=self._random.random() < 0.5
        )
        await self._for_a_while(lambda: simulation.network.heal(partition))

    async def _node_crash(self) -> None:
        nodes = [node for node in self._simulation.nodes if node.is_up]
        if nodes:
            node = self._random.choice(nodes)
            self._simulation.crash_node(node.name)
            keep = self._random.random() >= self.faults.lost_disks
            await self._for_a_while(
                lambda: self._simulation.restart_node(node.name, keep_disk=keep)
            )

    async def _storage(self) -> None:
        disks = self._simulation.disks()
        if not disks:
            return
        disk = self._random.choice(disks)
        if self._random.random() < 0.5:
            disk.failing = self._random.choice((0.1, 0.5, 1.0))
            self._simulation.tell("disk %s: %g of all operations fail", disk.name, disk.failing)
        else:
            disk.slowness = self._random.choice((0.01, 0.1, 1.0, 5.0))
            disk.slow_for = self.faults.longest
            self._simulation.tell("disk %s: operations take %g s", disk.name, disk.slowness)

        def mend() -> None:
            disk.failing = disk.slowness = 0.0

        await self._for_a_while(mend)


_REQUESTS = frozenset({Kind.ASK, Kind.TELL})
_ANSWERS = frozenset({Kind.RESULT, Kind.ERROR})
_FRAMES = (1, 1, 2, 3, 4)
"""How many frames one aimed fault affects at most; one number is chosen.

The numbers are small, because an aimed fault is a moment, not a closed connection. A process whose
start fails five times may be given up.
"""
_CLOSED_FOR = (1, 3, 10, 1_000_000)
"""How many frames a closed method loses; one is chosen."""
_MOST_STEPS = 12
"""The most callbacks that a victim still runs, so that its handler dies between two awaits."""
_LONGEST_REPEAT = 10.0
"""The longest time in seconds until a request is sent again."""
_LONGEST_HANG = 12.0
_LONGEST_DELAY = 8.0
_LONGEST_OUTAGE = 2.0
_LONGEST_UNTIL_BOTH = 3.0


class RepeatedRequests:
    """Fault: some requests are sent a second time, as a sender does that got no answer. The second
    request has a new frame number, so the receiver handles it as a new request."""

    def __init__(self, simulation: World, faults: Faults) -> None:
        self._simulation = simulation
        self._methods = frozenset(faults.repeatable)
        self._share = faults.repeated
        self._random = stream(simulation.seed, "repeats")
        self._is_repeating = False

    def sent(self, end: End, frame: bytes) -> None:
        """Called when *frame*, a request, was sent from *end*. At random, send the same request
        again some seconds later, if it is one of the methods that may be repeated."""
        if self._is_repeating:
            return
        _, kind, _, target, method, token, timeout, _, payload = unpack_request(frame)
        is_one = kind in _REQUESTS and f"{end.peer.process.kind}.{method}" in self._methods
        if is_one and self._random.random() < self._share:
            again = partial(self._again, end, kind, target, method, token, timeout, bytes(payload))
            end.process.post(_LONGEST_REPEAT * self._random.random() ** 2, again)

    def _again(
        self,
        end: End,
        kind: int,
        target: int,
        method: str,
        token: bytes | None,
        timeout: float | None,
        payload: bytes,
    ) -> None:
        connection = end.receiver
        if not isinstance(connection, ClientConnection) or connection.end_of(target) is not None:
            return
        self._simulation.tell("%s is sent to %s again", method, connection.process_name)
        self._is_repeating = True
        try:
            if kind == Kind.TELL:
                connection.tell(method, target, method, token, payload)
            else:
                recorder = MethodRecorder()
                connection.ask(method, target, method, token, payload, timeout, recorder).give_up()
        finally:
            self._is_repeating = False


Fate = Callable[["End", bytes, "int | None"], None]
"""A function that applies a fault to a frame, which is sent from an end, in a lane."""


@dataclass(slots=True)
class _Aim:
    """The fault that hits the calls, or the answers, of one method."""

    fate: Fate
    share: float
    left: int
    """How many more frames the fault may hit."""


class Aims:
    """Faults that hit the calls and answers of chosen methods. The seed decides which methods are
    chosen, and by which fault they are hit, when the method is first used."""

    def __init__(self, simulation: World, faults: Faults) -> None:
        """Choose the kinds of faults for the seed of *simulation*. *faults* says which fraction of
        methods and answers is hit, and which methods are closed."""
        self._simulation = simulation
        self._network = simulation.network
        self._faults = faults
        self._random = stream(simulation.seed, "aims")
        self._fates, factor = self._choose_fates()
        self._share = faults.aimed * factor
        self._aims: dict[tuple[str, bool], _Aim | None] = {}
        self._closed = dict(self._close(method) for method in faults.closed)
        self._mending: list[Callable[[], None]] = []
        self._is_over = False

    def _choose_fates(self) -> tuple[list[Fate], float]:
        """Return the kinds of faults that this seed applies, and a factor for the number of methods
        that are hit. Some seeds only lose or repeat messages, but hit more methods; others only hit
        processes."""
        network, faults = self._network, self._faults
        of_messages: list[Fate] = [network.duplicate]
        if faults.aims_lose:
            of_messages = [
                network.lose,
                network.lose,
                network.break_before,
                network.break_after,
                network.duplicate,
                self._delay,
            ]
        of_processes: list[Fate] = [
            self._crash_sender,
            self._crash_sender,
            self._lose_with_sender,
            self._crash_receiver,
            self._crash_receiver,
            self._hang_receiver,
            self._banish_sender,
            self._hold,
            self._hold,
            self._replace_both,
        ]
        of_storage: list[Fate] = []
        if faults.storage_every > 0:
            of_storage.append(self._fail_storage)
        if faults.power_every > 0:
            of_storage.append(self._lose_power)
        return self._random.choice(
            (
                (of_messages + of_processes + of_storage, 1.0),
                (of_messages + of_processes + of_storage, 1.0),
                (of_messages, 3.0),
                (of_processes, 1.0),
            )
        )

    def end(self) -> None:
        """End the faults: let stopped processes continue, end banished processes, repair the
        storage."""
        self._is_over = True
        while self._mending:
            self._mending.pop()()

    def _for_a_while(self, seconds: float, mend: Callable[[], None]) -> None:
        """Call *mend*, which repairs a fault, after *seconds*, and also when the faults end. So
        *mend* may be called twice."""
        self._mending.append(mend)
        self._simulation.scheduler.at(self._simulation.now + seconds, mend)

    def befall(self, end: End, frame: bytes, lane: int | None) -> bool:
        """Decide whether a fault hits *frame*, which *end* is sending. True: a fault was applied,
        which has dealt with the frame. False: no fault; the caller must send the frame."""
        envelope = unpack(frame)
        connection = end.connection
        if envelope.kind in _REQUESTS:
            method = envelope.method
            if envelope.kind is Kind.ASK:
                connection.methods[envelope.sequence] = method
        elif envelope.kind in _ANSWERS:
            method = connection.methods.pop(envelope.sequence, "")
        else:
            return False
        if not method:
            return False
        is_answer = envelope.kind in _ANSWERS
        served_by = (end if is_answer else end.peer).process.kind
        aim = self._closed.get((f"{served_by}.{method}", is_answer)) or self._aim(method, is_answer)
        if aim is None or aim.left == 0 or self._random.random() >= aim.share:
            return False
        aim.left -= 1
        aim.fate(end, frame, lane)
        return True

    def _aim(self, method: str, is_answer: bool) -> _Aim | None:
        key = method, is_answer
        if key not in self._aims:
            random = stream(self._simulation.seed, "aim", method, is_answer)
            self._aims[key] = self._draw(random) if random.random() < self._share else None
        return self._aims[key]

    def _close(self, method: str) -> tuple[tuple[str, bool], _Aim]:
        random, network = stream(self._simulation.seed, "closed", method), self._network
        fate = random.choice((network.lose, network.lose, network.break_before))
        is_answer = random.random() < 1 / 3
        return (method, is_answer), _Aim(fate, 1.0, random.choice(_CLOSED_FOR))

    def _draw(self, random: Random) -> _Aim:
        fate = random.choice(self._fates)
        return _Aim(fate, random.choice((0.3, 1.0)), random.choice(_FRAMES))

    # --- fates ------------------------------------------------------------------------------------

    def _delay(self, end: End, frame: bytes, lane: int | None) -> None:
        end.deliver(frame, lane, self._random.random() * _LONGEST_DELAY)

    def _crash_sender(self, end: End, frame: bytes, lane: int | None) -> None:
        end.deliver(frame, lane, self._network.latency())
        self._crash(end.process, "it had sent a message")

    def _lose_with_sender(self, end: End, frame: bytes, lane: int | None) -> None:
        if self._may_befall(end.process):
            end.lose(frame, "lost with its sender")
            self._crash(end.process, "it was about to send a message")
        elif self._faults.aims_lose:
            self._network.break_before(end, frame, lane)
        else:
            end.deliver(frame, lane, self._network.latency())

    def _crash_receiver(self, end: End, frame: bytes, lane: int | None) -> None:
        delay = self._network.latency()
        end.deliver(frame, lane, delay)
        victim = end.peer.process
        steps = self._random.randint(1, _MOST_STEPS)
        if self._may_befall(victim):
            self._simulation.scheduler.at(
                self._simulation.now + delay, lambda: self._crash_in(victim, steps)
            )

    def _crash_in(self, victim: SimulatedProcess, steps: int) -> None:
        if victim.is_alive and not self._is_over:
            self._simulation.crash(victim, after_steps=steps)

    def _hang_receiver(self, end: End, frame: bytes, lane: int | None) -> None:
        delay = self._network.latency()
        end.deliver(frame, lane, delay)
        victim = end.peer.process
        simulation = self._simulation
        if self._may_befall(victim):
            length = delay + self._random.random() ** 2 * _LONGEST_HANG
            simulation.hang(victim)
            self._for_a_while(length, lambda: simulation.resume(victim))

    def _banish_sender(self, end: End, frame: bytes, lane: int | None) -> None:
        """Lose the message and banish its sender, which will try again while its successor runs. If
        the sender must not be banished: lose only the message, or deliver it if messages must not
        be lost."""
        if self._may_befall(end.process, for_good=True):
            end.lose(frame, "lost")
            self._banish(end.process, 0.0)
        elif self._faults.aims_lose:  # the sender would live on, and its call might wait forever
            self._network.lose(end, frame, lane)
        else:
            end.deliver(frame, lane, self._network.latency())

    def _hold(self, end: End, frame: bytes, lane: int | None) -> None:
        """Deliver the message late, so that the cluster has often replaced its sender before it
        arrives."""
        victim = end.process
        if not self._may_befall(victim) or victim.name.startswith(self._faults.only_killed):
            self._crash_sender(end, frame, lane)
            return
        late = self._random.random() * _LONGEST_DELAY
        self._network.tell(victim, "what it sends is held back for %g s", late)
        end.deliver(frame, lane, late)
        self._banish(victim, late * self._random.random() ** 2)

    def _replace_both(self, end: End, frame: bytes, lane: int | None) -> None:
        """Deliver the message, then banish the sender and kill the receiver, if both are allowed.
        The sender and its successor then find a new receiver that knows neither of them."""
        end.deliver(frame, lane, self._network.latency())
        receiver = end.peer.process
        if self._may_befall(end.process, for_good=True) and self._may_befall(receiver):
            self._banish(end.process, self._random.random())
            later = self._random.random() * _LONGEST_UNTIL_BOTH
            at = self._simulation.now + later
            self._simulation.scheduler.at(at, lambda: self._crash_in(receiver, 0))

    def _banish(self, victim: SimulatedProcess, after: float) -> None:
        """Banish *victim* (let the cluster believe that it is dead) *after* this many seconds, if
        it has started by then. It is ended later."""
        simulation = self._simulation

        def banish() -> None:
            may_be = victim.is_alive and self._may_befall(victim, for_good=True)
            if may_be and not self._is_over:
                simulation.banish(victim)
                length = self._random.random() * _LONGEST_EXILE
                self._for_a_while(length, lambda: simulation.end_banished(victim))

        simulation.scheduler.at(simulation.now + after, banish)

    def _fail_storage(self, end: End, frame: bytes, lane: int | None) -> None:
        end.deliver(frame, lane, self._network.latency())
        disk = self._simulation.disk()
        disk.failing = self._random.choice((0.5, 1.0))
        self._simulation.tell("disk %s: %g of all operations fail", disk.name, disk.failing)

        def mend() -> None:
            disk.failing = 0.0

        self._for_a_while(self._random.random() * _LONGEST_OUTAGE, mend)

    def _lose_power(self, end: End, frame: bytes, lane: int | None) -> None:
        """Deliver the message, and make the shared storage lose its power when it arrives or a
        moment later."""
        delay = self._network.latency()
        end.deliver(frame, lane, delay)
        simulation, disk = self._simulation, self._simulation.disk()
        later = delay + self._random.choice((0.0, 0.002, 0.05)) * self._random.random()

        def lose_power() -> None:
            if not self._is_over:
                simulation.tell("disk %s: the power is gone for a moment", disk.name)
                disk.lose_power()

        simulation.scheduler.at(simulation.now + later, lose_power)

    def _crash(self, victim: SimulatedProcess, why: str) -> None:
        if self._may_befall(victim):
            self._simulation.tell("%s will be killed: %s", victim.name, why)
            victim.die_after(1, "it was killed")

    def _may_befall(self, process: SimulatedProcess, *, for_good: bool = False) -> bool:
        faults = self._faults
        spared = faults.spare
        if for_good:
            spared += faults.only_killed
            if not process.has_started or process.is_banished:
                return False
        return process.node != "" and not process.name.startswith(spared or ("\0",))
