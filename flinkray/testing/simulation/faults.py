"""What may go wrong in a scenario, and the process that makes it go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from math import inf
from random import Random

from flinkray.rpc.wire.envelope import Kind, unpack
from flinkray.testing.simulation.disk import SimulatedDisk
from flinkray.testing.simulation.link import End
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.seeds import stream
from flinkray.testing.simulation.world import World

_AIMS_ALONE = 0.4
"""Share of the seeds in which there is nothing but aims."""
_CLOSED = 0.3
"""Share of the seeds in which one method is closed, where a scenario names some."""
_SHARES = ("loss", "duplication", "breaks_before", "breaks_after", "delay")
_VARIED = (*_SHARES, "torn_writes", "clock_error", "reorders", "late_listing")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Which kinds of faults a scenario allows, and how much of each; times in virtual seconds.

    With :attr:`vary` these are what a seed may come to: each seed leaves some kinds out and takes
    more or less of the others, so that it also meets what only shows when something else is quiet.
    Some seeds have nothing but :attr:`aimed`, or one of :attr:`closed`: what a single lost message
    leaves behind is soon gone where processes die all the time.
    """

    loss: float = 0.0
    """Share of the frames that never arrive; for this and the next four see :class:`Conditions`."""
    duplication: float = 0.0
    """Share that arrives twice."""
    breaks_before: float = 0.0
    """Share in place of which the connection breaks."""
    breaks_after: float = 0.0
    """Share after whose arrival the connection breaks: handled, and the caller sees an error."""
    delay: float = 0.0
    """Share that takes up to two seconds."""

    reset_every: float = 0.0
    """Mean seconds between two broken connections; 0: never.  So are the following."""
    crash_every: float = 0.0
    """A process is killed, now or in the middle of what it does; restarted as its spec says."""
    hang_every: float = 0.0
    """A process stops as by SIGSTOP, and goes on after a while."""
    slow_every: float = 0.0
    """For a while each callback of a process takes up to 50 ms."""
    partition_every: float = 0.0
    """For a while some processes or nodes cannot reach others, in one direction or in both."""
    node_crash_every: float = 0.0
    """A node dies with all its processes; it comes back after a while, with or without its disk."""
    storage_every: float = 0.0
    """For a while a disk, or the shared storage, fails or takes its time."""
    power_every: float = 0.0
    """A disk, or the shared storage, loses its power: what was not synced is lost."""
    full_every: float = 0.0
    """For a while a disk, or the shared storage, is full."""
    freeze_every: float = 0.0
    """A process stops as by SIGSTOP and never goes on, not even when the faults are over."""
    banish_every: float = 0.0
    """A process that stops, or is well, is taken for dead by what supervises it: its successor is
    started, and it goes on, or wakes up after as much as a minute, beside it for a while."""

    aimed: float = 0.0
    """Share of the methods whose calls, and of those whose answers, something befalls: they are
    lost, doubled, late, or held back until their sender has a successor; who sends or gets them is
    killed or hangs just then; or the shared storage fails or loses its power, if that may be."""
    aims_lose: bool = True
    """Whether messages that are aimed at may be lost or late although who has sent them, and who
    was to get them, goes on.  Otherwise only processes and the storage are aimed at."""

    closed: tuple[str, ...] = ()
    """Methods, as ``TaskExecutor.free_slot`` for one that processes of this kind serve.  In some
    seeds one of them is closed: its first calls, or its first answers, are lost, all of them, or
    their connections break.  Nothing else goes wrong there, but that processes may be killed.  Who
    is named twice is closed twice as often."""

    torn_writes: float = 0.0
    """Share of the changes on disks in whose middle the process is killed."""
    reorders: float = 0.0
    """Share of the losses of power after which changes of names that were not synced are there in
    no order."""
    late_listing: float = 0.0
    """Seconds for which the storage of checkpoints may list what was deleted, or not list what is
    new."""
    lost_disks: float = 0.0
    """Share of the crashes that take the disk of the process or node with them."""

    clock_error: float = 0.0
    """Seconds by which the wall clock of a process is wrong at most, as long as it lives."""

    longest: float = 30.0
    """That a hang, a slowness, a partition or the absence of a node lasts; most are shorter."""
    since: float = 0.0
    """Nothing goes wrong before this time."""
    until: float = inf
    """Nothing goes wrong after this time, and what was broken is mended."""
    spare: tuple[str, ...] = ()
    """What the names of processes begin with that are never killed, stopped or slowed down."""
    only_killed: tuple[str, ...] = ()
    """What the names of processes begin with that neither freeze nor are banished: only their death
    has something take their place."""
    vary: bool = True

    def of_disk(self, disk: SimulatedDisk) -> None:
        """What is always so of a new disk."""
        disk.torn, disk.spares = self.torn_writes, self.spare
        disk.reorders = self.reorders
        disk.late_listing = self.late_listing

    def of_seed(self, random: Random) -> Faults:
        """What one seed makes of it."""
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


_LONGEST_SLEEP, _LONGEST_EXILE = 60.0, 10.0
"""Seconds that a banished process hangs, and that it acts after that."""


class Nemesis:
    """Carries out the :class:`Faults` of one seed, from a process of its own."""

    def __init__(self, simulation: World, faults: Faults, random: Random) -> None:
        self.faults = faults
        self._simulation = simulation
        self._random = random
        self._process = simulation.scheduler.new_process("faults")
        self._mending: list[Callable[[], None]] = []
        self.has_ended = asyncio.Event()

    def begin(self) -> None:
        """From now on; to be called once."""
        since = self.faults.since
        if since > 0:
            self._process.post(since, self._make_weather)
        else:
            self._make_weather()
        for kind, act in (
            ("reset_every", self._reset),
            ("crash_every", self._crash),
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
        """Nothing goes wrong from now on; what is broken is mended.  Idempotent."""
        if not self._process.is_alive:
            return
        self._process.die("the faults are over")
        network = self._simulation.network
        if network.aims is not None:
            network.aims.end()
        network.aim(None)
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
        """Go on after some time, or with the end of all faults; then *mend*."""
        self._mending.append(mend)
        await asyncio.sleep(self.faults.longest * self._random.random() ** 3)
        self._mending.remove(mend)
        mend()

    def _victim(self, *, for_good: bool = False) -> SimulatedProcess | None:
        """*for_good*: it will not come to itself, so others must be able to know of it."""
        kinds: dict[str, list[SimulatedProcess]] = {}
        spared = self.faults.spare
        if for_good:
            spared += self.faults.only_killed
        for process in self._simulation.victims():
            if for_good and not process.has_started:
                continue
            if not process.name.startswith(spared or ("\0",)):
                kinds.setdefault(process.kind, []).append(process)
        if not kinds:
            return None
        return self._random.choice(kinds[self._random.choice(list(kinds))])

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
        if witness is not None:  # which finds a successor where it left the victim
            await self._for_a_while(lambda: self._simulation.resume(witness))

    def _witness(self, victim: SimulatedProcess) -> SimulatedProcess | None:
        """Somebody who has a connection to the victim, if faults may befall him."""
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
        """Most wake late; all of them find that they are not wanted any more."""
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
"""That an aim befalls at most: a moment that goes wrong, and not a way that is closed.  Who starts
a process five times in vain may give up."""
_CLOSED_FOR = (1, 3, 10, 1_000_000)
"""Frames that a closed method loses."""
_MOST_STEPS = 12
"""Callbacks that a victim runs yet, at most: its handler is between two of its awaits."""
_LONGEST_HANG = 12.0
_LONGEST_DELAY = 8.0
_LONGEST_OUTAGE = 2.0
_LONGEST_UNTIL_BOTH = 3.0


Fate = Callable[["End", bytes, "int | None"], None]
"""Befalls a frame that is sent from an end, in a lane."""


@dataclass(slots=True)
class _Aim:
    """What befalls the frames of one method in one direction."""

    fate: Fate
    share: float
    left: int
    """Frames that it may befall yet."""


class Aims:
    """Faults that wait for a moment: a call of one method, or its answer, is on its way.

    Which methods a seed aims at, and with what; both are drawn when a method is first used."""

    def __init__(self, simulation: World, faults: Faults) -> None:
        """*faults* say which share of the methods, and of their answers, is aimed at, and which are
        closed."""
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
        """Those of this seed, and how many more methods than usual they may befall.

        Some seeds only lose messages, and more of them: nobody forgets with its life what went
        wrong.  In others nothing is lost but with somebody.
        """
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
        """What hangs goes on, what was taken for dead ends, and the storage works."""
        self._is_over = True
        while self._mending:
            self._mending.pop()()

    def _for_a_while(self, seconds: float, mend: Callable[[], None]) -> None:
        """*mend* after so many seconds, or when the faults end; again is fine."""
        self._mending.append(mend)
        self._simulation.scheduler.at(self._simulation.now + seconds, mend)

    def befall(self, end: End, frame: bytes, lane: int | None) -> bool:
        """*frame* is being sent; returns whether something has befallen it."""
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
        """It will try again, when others may have taken its place."""
        if self._may_befall(end.process, for_good=True):
            end.lose(frame, "lost")
            self._banish(end.process, 0.0)
        elif self._faults.aims_lose:  # it would live on, and its call might wait for ever
            self._network.lose(end, frame, lane)
        else:
            end.deliver(frame, lane, self._network.latency())

    def _hold(self, end: End, frame: bytes, lane: int | None) -> None:
        """It arrives when its sender has a successor."""
        victim = end.process
        if not self._may_befall(victim) or victim.name.startswith(self._faults.only_killed):
            self._crash_sender(end, frame, lane)
            return
        late = self._random.random() * _LONGEST_DELAY
        self._network.tell(victim, "what it sends is held back for %g s", late)
        end.deliver(frame, lane, late)
        self._banish(victim, late * self._random.random() ** 2)

    def _replace_both(self, end: End, frame: bytes, lane: int | None) -> None:
        """The sender is taken for dead, and the receiver dies: the sender and its successor find
        somebody who knows neither."""
        end.deliver(frame, lane, self._network.latency())
        receiver = end.peer.process
        if self._may_befall(end.process, for_good=True) and self._may_befall(receiver):
            self._banish(end.process, self._random.random())
            later = self._random.random() * _LONGEST_UNTIL_BOTH
            at = self._simulation.now + later
            self._simulation.scheduler.at(at, lambda: self._crash_in(receiver, 0))

    def _banish(self, victim: SimulatedProcess, after: float) -> None:
        """If it has started by then."""
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
        """When it arrives, or a moment later."""
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
        """When what it does now is done."""
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
