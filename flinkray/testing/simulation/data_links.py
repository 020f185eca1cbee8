"""Simulates the data channels between task processes: real connections on simulated wires."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from flinkray.core.errors import RpcConnectionError
from flinkray.streaming.network import (
    Connection,
    DataAddress,
    Part,
    Poller,
    Timers,
    Welcome,
    Wire,
)
from flinkray.streaming.network.connection import ReceivingChannel
from flinkray.streaming.network.views import RemoteView
from flinkray.testing.simulation.link import End, SimulatedConnection, Weather
from flinkray.testing.simulation.network import SimulatedNetwork
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.service import SimulatedRpcService

_MILDER = 0.1
"""The factor for breaks of data connections, compared with connections for calls.

Data connections break more rarely, as each break costs a restart of tasks, and there are many more
frames.
"""


class DataWeather(Weather):
    """Applies faults to data frames. As in TCP, a frame is never lost alone: it arrives late, or
    its connection breaks."""

    repeats = None

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        self.scheduler = network.scheduler

    @property
    def is_faulty(self) -> bool:  # type: ignore[override]
        return self._network.is_faulty

    def latency(self) -> float:
        return self._network.latency()

    def befall(self, end: End, frame: bytes, lane: int | None) -> None:
        conditions, draw = self._network.conditions, self._network.random.random
        breaks = (conditions.breaks_before + conditions.breaks_after) * _MILDER
        share, delay = draw(), self.latency()
        if share < breaks:
            end.connection.break_off("the connection was reset")
            return
        if share < breaks + conditions.delay:
            delay += draw() * conditions.longest_delay
        end.deliver(frame, lane, delay)

    def detached(self, end: End) -> None:
        self._network.detached(end)

    def tell(self, process: SimulatedProcess, line: str, *args: object) -> None:
        self._network.tell(process, line, *args)

    def tell_frame(self, end: End, frame: bytes, what: str) -> None:
        self.tell(end.peer.process, "%d bytes of data from %s", len(frame), end.process.name)


class SteppedWire(Wire):
    """One end of a simulated data connection between task processes. Data that is sent leaves at
    once. Data that arrives is kept until it is read."""

    is_on_one_node = False

    def __init__(self, end: End) -> None:
        self.end = end
        self._received: deque[memoryview] = deque()

    def received(self, data: bytes) -> None:
        self._received.append(memoryview(data))

    def fileno(self) -> int:
        return -1  # no poller watches the wire

    def try_recv_into(self, view: memoryview) -> int:
        if not self._received:
            return -1
        data = self._received[0]
        size = min(len(view), len(data))
        view[:size] = data[:size]
        if size == len(data):
            self._received.popleft()
        else:
            self._received[0] = data[size:]
        return size

    def send(self, parts: Sequence[Part]) -> None:
        if parts:
            self.end.send(b"".join(parts), 0)

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        self.send(parts)
        return []

    def shut_down(self) -> None:
        self.end.close()

    def close(self) -> None:
        """Do nothing: nothing is left of a connection that was shut down."""


class SteppedConnection(Connection):
    """A data connection without threads: whole frames arrive as callbacks of the process."""

    most_sent_at_once = 1_000_000

    def start(self, poller: Poller | None = None) -> None:
        wire = self._wire
        assert isinstance(wire, SteppedWire)
        self._stepped = wire
        self._is_starting = True  # the lock of its environment is held
        wire.end.attach(self)
        self._is_starting = False

    def channels_from(
        self, producer: SteppedConnection
    ) -> Iterator[tuple[ReceivingChannel, RemoteView]]:
        """Yield the two ends of each open channel on which *producer*, the connection at the other
        end, sends to this connection."""
        for number, channel in self._channels.items():
            view = producer._views.get(number)
            if view is not None:
                yield channel, view

    def frame_received(self, frame: bytes | memoryview) -> None:
        self._stepped.received(bytes(frame))
        self.read_frames()

    def frame_refused(self, reason: str) -> None:
        """Do nothing: any bytes are a valid frame."""

    def connection_lost(self, reason: str) -> None:
        if self._is_starting:
            self._stepped.end.process.call_soon(self.fail, reason)
        else:
            self.fail(reason)


class SteppedTransport:
    """Listens for data connections in one process, and connects to other processes."""

    connection_type: type[Connection] = SteppedConnection
    strangers = 0

    def __init__(self, service: SimulatedRpcService, incarnation: str, welcome: Welcome) -> None:
        self._process = service.process
        self._network = service.network
        self._welcome = welcome
        self._weather = DataWeather(service.network)
        self.address = DataAddress(
            service.process_name, incarnation, "simulated", 0, None, self._process.node, False
        )
        service.network.data_listeners[incarnation] = self

    def dial(self, address: DataAddress, identity: str) -> Wire:
        """Connect to another process, and return this end of the connection. Takes no virtual time,
        because the caller holds locks."""
        network, process = self._network, self._process
        target = network.data_listeners.get(address.incarnation)
        if not isinstance(target, SteppedTransport) or target.is_gone:
            raise RpcConnectionError(f"no task process {address} is running")
        other = target._process
        if network.is_cut(process, other) or network.is_cut(other, process):
            raise RpcConnectionError(f"{address} does not answer")
        connection = SimulatedConnection(self._weather, process, other)
        network.add(connection)
        far = SteppedWire(connection.far)
        other.post(network.latency(), target._welcome, far, identity)
        return SteppedWire(connection.near)

    @property
    def is_gone(self) -> bool:
        """Whether the process is dead or taken for dead by the cluster, so that no process can
        connect to it."""
        return not self._process.is_alive or self._process.is_banished

    def close(self) -> None:
        self._network.data_listeners.pop(self.address.incarnation, None)


class SteppedTimers(Timers):
    """Timers of the data network, as callbacks of the simulated process."""

    def __init__(self, service: SimulatedRpcService) -> None:
        super().__init__(service.clock)
        self._process = service.process
        self._is_over = False

    def call_at(self, when: float, callback: object) -> None:
        def call() -> None:
            if not self._is_over:
                callback()  # type: ignore[operator]

        self._process.call_at(when, call)

    def close(self) -> None:
        self._is_over = True
