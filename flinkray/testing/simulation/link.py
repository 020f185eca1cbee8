"""Simulates connections between processes, with their faults."""

from __future__ import annotations

from collections import deque
from typing import Protocol
from zlib import crc32

from flinkray.rpc.wire.transport import WRITE_HIGH_WATER, FrameReceiver, Transport
from flinkray.testing.simulation.process import SimulatedProcess
from flinkray.testing.simulation.scheduler import Scheduler

_LARGE = 65_536
"""Bytes; a larger frame without a lane can be overtaken by others."""
_BANDWIDTH = 1e9
"""The bandwidth in bytes per second; only large frames notice it."""


class Repeating(Protocol):
    """Interface to a fault that sends some requests again."""

    def sent(self, end: End, frame: bytes) -> None: ...


class Weather(Protocol):
    """Interface to the network that carries frames, for connections. Implemented by
    :class:`~flinkray.testing.simulation.network.SimulatedNetwork`."""

    scheduler: Scheduler
    is_faulty: bool
    repeats: Repeating | None

    def latency(self) -> float: ...
    def befall(self, end: End, frame: bytes, lane: int | None) -> None: ...
    def detached(self, end: End) -> None: ...
    def tell(self, process: SimulatedProcess, line: str, *args: object) -> None: ...
    def tell_frame(self, end: End, frame: bytes, what: str) -> None: ...


class SimulatedConnection:
    """A connection with two ends. Each frame belongs to a lane, or to none. Frames of one lane
    arrive in the order of sending; duplicates may arrive at any later time."""

    def __init__(
        self, network: Weather, client: SimulatedProcess, server: SimulatedProcess
    ) -> None:
        self.is_broken = False
        self.near, self.far = End(network, self, client), End(network, self, server)
        self.near.peer, self.far.peer = self.far, self.near
        self.hasty: set[int] = set()
        """For the network: numbers of the requests, sent under faults, that may be lost.

        Their callers do not wait forever.
        """
        self.methods: dict[int, str] = {}
        """For aims: the methods of the unanswered asks, by sequence number."""

    def break_off(self, reason: str) -> None:
        """Break the connection. Each side notices this after some virtual time."""
        if not self.is_broken:
            self.is_broken = True
            self.near.learn_of_break(reason)
            self.far.learn_of_break(reason)


class End(Transport):
    """One end of a connection, at one process; sends and receives frames."""

    peer: End

    def __init__(
        self, network: Weather, connection: SimulatedConnection, process: SimulatedProcess
    ) -> None:
        super().__init__(process)
        self.process = process
        self.connection = connection
        self.is_client = False
        self._network = network
        self._scheduler = network.scheduler
        self._context = process.context.copy()
        self._receiver: FrameReceiver | None = None
        self._last_arrivals: dict[int | None, float] = {}
        """For each lane: when the last frame from here arrives at the other end."""
        self._inbox: deque[tuple[bytes, bool]] = deque()
        """Frames that arrived while they could not be received."""
        self._is_cut = False
        self._is_paused = False
        self._is_shut = True
        """Whether frames go to the inbox: cut, paused, or without a receiver."""
        self._end: str | None = None
        """Why the connection ends when the inbox is empty; None: it does not end."""
        self._lost_reason: str | None = None
        self._unread = 0
        """Bytes that were sent from here and not received at the other end yet."""

    def attach(self, receiver: FrameReceiver) -> None:
        if self._lost_reason is not None:
            receiver.connection_lost(self._lost_reason)
            return
        self._receiver = receiver
        self._is_shut = self._is_cut or self._is_paused
        if self._inbox or self._end is not None:
            self.process.call_soon(self._read, context=self._context)
            self._is_shut = True  # until then, so that the inbox is not overtaken

    @property
    def receiver(self) -> FrameReceiver | None:
        """The object that gets the frames that arrive at this end. None: it is not set yet, or the
        connection is lost."""
        return self._receiver

    # --- sending, in the process at this end ------------------------------------------------------

    def send(self, frame: bytes, lane: int | None = None) -> None:
        if self._lost_reason is not None or self.connection.is_broken:
            return
        self._unread += len(frame)
        if self._unread > WRITE_HIGH_WATER:
            self._hold_senders()
        network = self._network
        if network.repeats is not None and self.is_client:
            network.repeats.sent(self, frame)
        if network.is_faulty:
            network.befall(self, frame, lane)
        else:
            self.deliver(frame, lane, network.latency())

    @property
    def has_unsent(self) -> bool:
        return self._unread > 0

    def deliver(
        self, frame: bytes, lane: int | None, delay: float, then_break: bool = False
    ) -> None:
        """Let *frame* arrive at the other end in *delay* seconds, but not before earlier frames of
        its lane. Called by the network. *then_break*: the connection breaks on the arrival."""
        arrival = self._scheduler.now + delay
        if len(frame) > _LARGE:
            arrival += len(frame) / _BANDWIDTH
        if lane is not None or len(frame) <= _LARGE:
            last = self._last_arrivals.get(lane, 0.0)
            if arrival < last:
                arrival = last
            else:
                self._last_arrivals[lane] = arrival
        peer = self.peer
        peer.process.post_at(arrival, peer._context, peer._arrive, frame, then_break)

    def deliver_again(self, frame: bytes, lane: int | None, delay: float) -> None:
        """Let a duplicate of *frame* arrive at the other end in *delay* seconds, but not before
        the original. Called by the network. If the duplicate came first, frames of the lane that
        are still on their way would look like duplicates, and their requests would never be
        answered."""
        peer = self.peer
        arrival = max(self._scheduler.now + delay, self._last_arrivals.get(lane, 0.0))
        peer.process.post_at(arrival, peer._context, peer._arrive_again, frame)

    def lose(self, frame: bytes, what: str) -> None:
        """Drop *frame* instead of delivering it; called by the network. *what*: text for the story
        (the log of the run)."""
        self._read_by_peer(len(frame))
        self._network.tell_frame(self, frame, what)

    def close(self) -> None:
        if self._lost_reason is not None:
            return
        if not self.connection.is_broken:
            self.connection.is_broken = True
            arrival = self._scheduler.now + self._network.latency()
            arrival = max(arrival, *self._last_arrivals.values(), 0.0)
            peer = self.peer
            peer.process.post_at(arrival, peer._context, peer._closed)
        self.process.call_soon(self._lost, "the connection was closed", context=self._context)

    def break_off(self, reason: str) -> None:
        if self._lost_reason is not None:
            return
        self._forget(reason)
        if not self.connection.is_broken:
            self.connection.is_broken = True
            self.peer.learn_of_break(reason)

    # --- receiving, in the process at this end ----------------------------------------------------

    def _arrive(self, frame: bytes, then_break: bool) -> None:
        if self._lost_reason is not None:
            return
        receiver = self._receiver
        if self._is_shut or receiver is None:
            self._inbox.append((frame, then_break))
            return
        peer = self.peer
        peer._unread -= len(frame)
        if peer._congested is not None:
            peer._read_by_peer(0)
        self._scheduler.trace.append(crc32(frame))
        self._network.tell_frame(peer, frame, "then the connection breaks" if then_break else "")
        receiver.frame_received(frame)
        if then_break:
            self.connection.break_off("the connection was reset")

    def _arrive_again(self, frame: bytes) -> None:
        if self._receiver is not None and not self._is_shut:
            self._scheduler.trace.append(crc32(frame))
            self._network.tell_frame(self.peer, frame, "a second time")
            self._receiver.frame_received(frame)

    def pause_reading(self) -> None:
        self._is_paused = self._is_shut = True

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.process.call_soon(self._read, context=self._context)

    def _read(self) -> None:
        if self._receiver is None:
            return
        self._is_shut = self._is_cut or self._is_paused
        while self._inbox and not self._is_shut:
            self._arrive(*self._inbox.popleft())
        if self._end is not None and not self._is_shut:
            self._lost(self._end)

    def _closed(self) -> None:
        self._end = "the connection was closed by the other side"
        self._read()

    def _lost(self, reason: str) -> None:
        if self._lost_reason is not None:
            return
        receiver = self._receiver
        self._forget(reason)
        peer = self.peer.process.name
        self._network.tell(self.process, "connection with %s lost: %s", peer, reason)
        if receiver is not None:
            receiver.connection_lost(reason)

    def _forget(self, reason: str) -> None:
        self._lost_reason = reason
        self._receiver = None
        self._inbox.clear()
        self._network.detached(self)
        self._let_senders_go()

    def _read_by_peer(self, size: int) -> None:
        self._unread -= size
        if self._unread <= WRITE_HIGH_WATER // 2:
            self._let_senders_go()

    # --- fate, outside of any process -------------------------------------------------------------

    def learn_of_break(self, reason: str, delay: float | None = None) -> None:
        """Make this side notice, after *delay* seconds, that the connection is broken. None: after
        the time that a frame takes."""
        delay = self._network.latency() if delay is None else delay
        self.process.post(delay, self._lost, reason, context=self._context)

    @property
    def is_cut(self) -> bool:
        """Whether a partition of the network holds back the frames that should arrive at this
        end."""
        return self._is_cut

    def cut(self, is_cut: bool) -> None:
        """Begin (*is_cut*) or end to hold back the frames that should arrive at this end. At the
        end, the frames that were held back arrive."""
        if is_cut:
            self._is_cut = self._is_shut = True
        elif self._is_cut:
            self._is_cut = False
            self.process.post(0.0, self._read, context=self._context)
