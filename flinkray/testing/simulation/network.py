"""Simulates the network: running processes, connections, and the faults of frames."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from flinkray.core.errors import RpcConnectionError, RpcSerializationError
from flinkray.rpc.serving.base_service import BaseRpcService
from flinkray.rpc.wire.envelope import TELL, Envelope, Kind, unpack, unpack_request
from flinkray.testing.simulation.conditions import Conditions
from flinkray.testing.simulation.link import End, Repeating, SimulatedConnection
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.scheduler import Scheduler

_KEPT = 4096
"""The longest frame in bytes that the story keeps; a longer frame is described at once."""
_NEVER_LOST = frozenset({Kind.TERMINATED, Kind.STOP})


@dataclass(eq=False)
class Partition:
    """A cut in the network between two sets of processes, given by names of processes or nodes."""

    sources: frozenset[str]
    targets: frozenset[str]
    is_one_way: bool

    def cuts(self, source: SimulatedProcess, target: SimulatedProcess) -> bool:
        """Return whether this partition holds back frames from *source* to *target*."""
        if _among(source, self.sources) and _among(target, self.targets):
            return True
        return not self.is_one_way and _among(source, self.targets) and _among(target, self.sources)

    def __str__(self) -> str:
        arrow = "to" if self.is_one_way else "and"
        return f"from {_names(self.sources)} {arrow} {_names(self.targets)}"


def _among(process: SimulatedProcess, names: frozenset[str]) -> bool:
    return process.name in names or process.node in names


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


class NetworkedService(BaseRpcService):
    """Interface to the RPC service of a simulated process, for the network."""

    process: SimulatedProcess

    @property
    @abstractmethod
    def is_up(self) -> bool:
        """Whether the process is alive; also True while it starts or ends."""


class Aiming(Protocol):
    """Interface to faults that hit only the frames of certain methods. Implemented by
    :class:`~flinkray.testing.simulation.faults.Aims`."""

    def befall(self, end: End, frame: bytes, lane: int | None) -> bool: ...
    def end(self) -> None: ...


class SimulatedNetwork:
    """Carries frames between the processes of one simulation, and applies faults to them."""

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.services: dict[str, NetworkedService] = {}
        """Services of the running processes, by process name."""
        self.data_listeners: dict[str, object] = {}
        """For each incarnation: the object that accepts connections for the channels of tasks."""
        self.frames = 0
        """The number of frames received so far."""
        self._draw = random.random
        self._ends: dict[SimulatedProcess, dict[End, None]] = {}
        self._partitions: list[Partition] = []
        self.conditions = Conditions()
        self.is_faulty = False
        """For connections: whether faults may happen to a frame."""
        self.intercept: Callable[[End, Envelope], bool] | None = None
        """Called for every frame before other faults, while faults are on; True: it is lost."""
        self.aims: Aiming | None = None
        """Gets every frame before the random faults are drawn; None: no frames are aimed at."""
        self.repeats: Repeating | None = None
        """Gets every request and may send it again; None: no request is repeated."""
        self.set_conditions(self.conditions)

    def set_conditions(self, conditions: Conditions) -> None:
        """Use *conditions* for all later frames."""
        self.conditions = conditions
        self._shortest, longest = conditions.latency
        self._spread = longest - self._shortest
        self.is_faulty = conditions.faulty > 0 or self.aims is not None

    def aim(self, aims: Aiming | None) -> None:
        """Apply these aimed faults to later frames. None: no aimed faults."""
        self.aims = aims
        self.set_conditions(self.conditions)

    # --- frames -----------------------------------------------------------------------------------

    def latency(self) -> float:
        """Return the random virtual seconds that a frame takes."""
        return self._shortest + self._spread * self._draw()

    def befall(self, end: End, frame: bytes, lane: int | None) -> None:
        """Send a frame from *end*: deliver it, or apply a fault to it, as the present conditions
        and aimed faults decide."""
        if self.intercept is not None and self.intercept(end, unpack(frame)):
            end.lose(frame, "lost")
            return
        conditions = self.conditions
        if end.is_client:
            self._note_deadline(end, frame)
        if self.aims is not None and self.aims.befall(end, frame, lane):
            return
        share = self._draw()
        for chance, fate in (
            (conditions.loss, self.lose),
            (conditions.duplication, self.duplicate),
            (conditions.breaks_before, self.break_before),
            (conditions.breaks_after, self.break_after),
            (conditions.delay, self._delay),
        ):
            if share < chance:
                fate(end, frame, lane)
                return
            share -= chance
        end.deliver(frame, lane, self.latency())

    def _note_deadline(self, end: End, frame: bytes) -> None:
        _, kind, sequence, _, _, _, timeout, _, _ = unpack_request(frame)
        if timeout is not None or kind == TELL:
            end.connection.hasty.add(sequence)

    # faults of a frame

    def lose(self, end: End, frame: bytes, lane: int | None) -> None:
        envelope = unpack(frame)
        if envelope.kind in _NEVER_LOST:
            end.deliver(frame, lane, self.latency())
        elif envelope.sequence not in end.connection.hasty:
            self.break_before(end, frame, lane)
        else:
            end.lose(frame, "lost")

    def duplicate(self, end: End, frame: bytes, lane: int | None) -> None:
        end.deliver(frame, lane, self.latency())
        end.deliver_again(
            frame, lane, self.latency() + self._draw() * self.conditions.longest_delay
        )

    def break_before(self, end: End, frame: bytes, lane: int | None) -> None:
        end.lose(frame, "lost with its connection")
        end.connection.break_off("the connection was reset")

    def break_after(self, end: End, frame: bytes, lane: int | None) -> None:
        end.deliver(frame, lane, self.latency(), then_break=True)

    def _delay(self, end: End, frame: bytes, lane: int | None) -> None:
        end.deliver(frame, lane, self.latency() + self._draw() * self.conditions.longest_delay)

    # --- connections ------------------------------------------------------------------------------

    async def open(
        self, service: NetworkedService, process_name: str, incarnation: str | None
    ) -> tuple[End, NetworkedService]:
        """Open a connection from *service* to the process *process_name*. Return the end of the
        connection at *service*, and the service at the other end. *incarnation*: connect only to
        this incarnation of the process; None: to any. Raises RpcConnectionError: there is no such
        process, or it does not answer."""
        scheduler = self.scheduler
        process = service.process
        give_up = scheduler.now + self.conditions.connect_timeout
        answer: asyncio.Future[tuple[End, NetworkedService]] = process.create_future()
        timer = process.call_at(give_up, _fail, answer, f"{process_name} does not answer")

        def knock() -> None:
            """Runs when the request to connect arrives at the other process's machine: refuse it,
            pass it to the process, or try again later if a partition is between the two."""
            target = self.services.get(process_name)
            if answer.done() or not process.is_alive:
                return
            if target is None or incarnation not in (None, target.incarnation):
                reason = f"no process {process_name} is running"
                process.post(self.latency(), _fail, answer, reason)
            elif self.is_cut(process, target.process) or self.is_cut(target.process, process):
                scheduler.at(scheduler.now + 1.0, knock)  # retry, as TCP does
            else:
                target.process.post(0.0, accept, target)

        def accept(target: NetworkedService) -> None:
            """Create the connection; runs in the process to which *service* connects."""
            if self.services.get(process_name) is not target or not process.is_alive:
                process.post(self.latency(), _fail, answer, f"{process_name} has just ended")
                return
            connection = SimulatedConnection(self, process, target.process)
            connection.near.is_client = True
            self._keep(connection)
            connection.far.attach(target.new_peer(connection.far, service.identity))
            if self._partitions:
                self._cut_ends()
            process.post(self.latency(), accepted, connection, target)

        def accepted(connection: SimulatedConnection, target: NetworkedService) -> None:
            if answer.done():
                connection.near.break_off(f"{process.name} did not wait")
            elif connection.is_broken or not target.process.is_alive:
                answer.set_exception(RpcConnectionError(f"{process_name} has just ended"))
            else:
                answer.set_result((connection.near, target))

        scheduler.at(scheduler.now + self.latency(), knock)
        try:
            return await answer
        finally:
            timer.cancel()

    def _keep(self, connection: SimulatedConnection) -> None:
        for end in (connection.near, connection.far):
            self._ends.setdefault(end.process, {})[end] = None

    def add(self, connection: SimulatedConnection) -> None:
        """Add a connection that :meth:`open` has not opened, so that faults can hit it."""
        connection.near.is_client = True
        self._keep(connection)
        if self._partitions:
            self._cut_ends()

    def detached(self, end: End) -> None:
        """Forget an end whose connection is lost. Called by the end."""
        self._ends.get(end.process, {}).pop(end, None)

    def connections(self) -> list[SimulatedConnection]:
        """Return the connections between living processes, grouped by process, the oldest of each
        first."""
        return [end.connection for ends in self._ends.values() for end in ends if end.is_client]

    def process_died(
        self, process: SimulatedProcess, noticed_after: float | None = None
    ) -> tuple[str, ...]:
        """Break the connections of a dead process, and return the names by which it was known.
        The other sides notice after *noticed_after* seconds; None: after the time that a frame
        takes."""
        names = [name for name, service in self.services.items() if service.process is process]
        for name in names:
            self.scheduler.graveyard.keep(self.services.pop(name))
        for end in self._ends.pop(process, {}):
            if not end.connection.is_broken:
                end.connection.is_broken = True
                end.peer.learn_of_break(f"the process {process.name} died", noticed_after)
        return tuple(names)

    def process_banished(self, process: SimulatedProcess) -> tuple[str, ...]:
        """Prevent new connections to a process that the cluster takes for dead, and return the
        names by which it was known. Its open connections stay."""
        process.is_banished = True
        names = [name for name, service in self.services.items() if service.process is process]
        for name in names:
            self.scheduler.graveyard.keep(self.services.pop(name))
        return tuple(names)

    # --- partitions -------------------------------------------------------------------------------

    def partition(
        self, sources: Iterable[str], targets: Iterable[str], *, one_way: bool = False
    ) -> Partition:
        """Hold back all frames between *sources* and *targets* (names of processes or nodes) from
        now on, and return the partition for :meth:`heal`. The frames arrive when the partition
        ends; a connection that is cut for :attr:`Conditions.silence_timeout` breaks. *one_way*:
        frames from *targets* to *sources* still arrive."""
        partition = Partition(frozenset(sources), frozenset(targets), one_way)
        self._partitions.append(partition)
        self.tell(None, "partition %s", partition)
        self._cut_ends()
        timeout = self.conditions.silence_timeout
        self.scheduler.at(self.scheduler.now + timeout, lambda: self._break_cut(partition, timeout))
        return partition

    def heal(self, partition: Partition | None = None) -> None:
        """End a partition; None: all of them. Does nothing if it has ended already."""
        for ended in self._partitions if partition is None else [partition]:
            if ended in self._partitions:
                self.tell(None, "healed: partition %s", ended)
        self._partitions = [p for p in self._partitions if partition not in (None, p)]
        self._cut_ends()

    def is_cut(self, source: SimulatedProcess, target: SimulatedProcess) -> bool:
        """Return whether a partition holds back frames from *source* to *target*."""
        return any(partition.cuts(source, target) for partition in self._partitions)

    def _cut_ends(self) -> None:
        for process, ends in self._ends.items():
            for end in ends:
                is_cut = self.is_cut(end.peer.process, process)
                if is_cut is not end.is_cut:
                    end.cut(is_cut)

    def _break_cut(self, partition: Partition, silence: float) -> None:
        if partition not in self._partitions:
            return
        for process, ends in tuple(self._ends.items()):
            for end in tuple(ends):
                if partition.cuts(end.peer.process, process):
                    end.connection.break_off(f"nothing was heard for {silence:g} s")

    # --- the story --------------------------------------------------------------------------------

    def tell(self, process: SimulatedProcess | None, line: str, *args: object) -> None:
        """Add a line to the story (the log of the run). *process*: the process that the line is
        about; None: the network itself."""
        scheduler = self.scheduler
        scheduler.story.add(scheduler.now, process.name if process else "", line, *args)

    def tell_frame(self, end: End, frame: bytes, what: str) -> None:
        """Add a line to the story (the log of the run) about a frame that *end* has sent. *what*:
        what happens to the frame; empty: it arrives."""
        self.frames += not what
        scheduler = self.scheduler
        said: object = frame if len(frame) <= _KEPT else describe(frame)
        scheduler.story.add(
            scheduler.now,
            end.peer.process.name,
            "%s from %s %s",
            _Frame(said),
            end.process.name,
            what,
        )


class _Frame:
    """A frame in the story; it is converted to text only when the story is read."""

    __slots__ = ("_said",)

    def __init__(self, said: object) -> None:
        self._said = said

    def __str__(self) -> str:
        return describe(self._said) if isinstance(self._said, bytes) else str(self._said)


def describe(frame: bytes) -> str:
    """Return a text for a frame: its kind and its number in its connection."""
    try:
        envelope = unpack(frame)
    except RpcSerializationError as error:
        return f"{len(frame)} bytes that make no sense ({error})"
    kind = envelope.kind.name.lower()
    if envelope.kind is Kind.TERMINATED:
        return f"notice of the end of endpoint {envelope.target}"
    return f"{kind} {envelope.method} #{envelope.sequence}".replace("  ", " ")


def _fail(answer: asyncio.Future[object], reason: str) -> None:
    if not answer.done():
        answer.set_exception(RpcConnectionError(reason))
