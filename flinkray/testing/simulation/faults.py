"""What may go wrong in a scenario, and the process that makes it go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from math import inf
from random import Random
from typing import TYPE_CHECKING

from flinkray.testing.simulation.process import SimulatedProcess

if TYPE_CHECKING:
    from flinkray.testing.simulation.simulation import Simulation

_SHARES = ("loss", "duplication", "breaks_before", "breaks_after", "delay")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Which kinds of faults a scenario allows, and how much of each; times in virtual seconds.

    With :attr:`vary` these are what a seed may come to: each seed leaves some kinds out and takes
    more or less of the others, so that it also meets what only shows when something else is quiet.
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

    torn_writes: float = 0.0
    """Share of the changes on disks in whose middle the process is killed."""
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
    vary: bool = True

    def of_seed(self, random: Random) -> Faults:
        """What one seed makes of it."""
        if not self.vary:
            return self
        changes: dict[str, float] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in (*_SHARES, "torn_writes", "clock_error"):
                changes[field.name] = value * random.choice((0.0, 0.1, 0.5, 1.0))
            elif field.name.endswith("_every"):
                factor = random.choice((0.0, 1.0, 1.0, 3.0, 10.0))
                changes[field.name] = value * factor
        return replace(self, **changes)  # type: ignore[arg-type]


class Nemesis:
    """Carries out the :class:`Faults` of one seed, from a process of its own."""

    def __init__(self, simulation: Simulation, faults: Faults, random: Random) -> None:
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
        ):
            every = getattr(self.faults, kind)
            if every > 0:
                self._process.post(since, self._begin, every, act)
        if self.faults.until < inf:
            self._simulation.scheduler.at(self.faults.until, self.end)

    def _make_weather(self) -> None:
        network = self._simulation.network
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
            disk.torn = 0.0
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

    def _victim(self) -> SimulatedProcess | None:
        kinds: dict[str, list[SimulatedProcess]] = {}
        for process in self._simulation.victims():
            if not process.name.startswith(self.faults.spare or ("\0",)):
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
        self._simulation.crash(victim, after_steps=steps, keep_disk=keep)

    async def _hang(self) -> None:
        victim = self._victim()
        if victim is not None:
            self._simulation.hang(victim)
            await self._for_a_while(lambda: self._simulation.resume(victim))

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
            self._simulation.tell("disk %s: operations take %g s", disk.name, disk.slowness)

        def mend() -> None:
            disk.failing = disk.slowness = 0.0

        await self._for_a_while(mend)
