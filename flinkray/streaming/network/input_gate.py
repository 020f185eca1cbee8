"""The consuming end: the channels from all producers of a task, read as one input."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from flinkray.streaming.channels import InputGate
from flinkray.streaming.network.buffers import QueuedBarrier
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.records.elements import Barrier, Element
from flinkray.streaming.records.in_flight import InFlight


class InputChannel(Protocol):
    """A channel of a :class:`NetworkInputGate`, from this process or from another one."""

    def request(self) -> None:
        """Request the subpartition from its producer, and return before data arrives."""

    def take(self) -> Element | None:
        """Return the next element. None: no element now; the channel calls the gate's
        :meth:`NetworkInputGate.has_data` when the next one arrives."""

    def in_flight(self, barrier: QueuedBarrier) -> list[InFlight]:
        """Return the elements before *barrier* in the queue that the task has not taken yet.
        They stay in the queue."""

    def was_given(self, barrier: QueuedBarrier, before: QueuedBarrier | None) -> None:
        """Note that the task has got *barrier* before the elements that it has overtaken. The
        barrier stays in the queue, where it divides these elements from later ones. *before*: the
        barrier of the previous such call, which is removed from the queue; None: there was none."""

    def restore(self, elements: Sequence[Element]) -> None:
        """Insert restored elements before everything that arrives from the producer."""

    def processed(self) -> None:
        """Tell the producer that the task has processed all data."""

    def close(self, reason: str | None) -> None:
        """Close the channel. *reason*: why the task reads no more; None: it has read everything."""

    def metrics(self) -> ChannelMetrics: ...


class NetworkInputGate(InputGate):
    """An :class:`~flinkray.streaming.channels.InputGate` over channels from other tasks. Only the
    task's thread polls and closes the gate. Channels with data wait in a queue for their turn, so
    polling costs the same with any number of channels. *timers*: call back when an alignment
    time-out has passed, so that a barrier overtakes buffers."""

    def __init__(self, consumer: str, timers: Timers) -> None:
        super().__init__(0)
        self.consumer = consumer
        self._timers = timers
        self.lock = threading.Lock()
        """Lock on the state that receiving threads and the task share, credit included."""
        self.channels: list[InputChannel] = []
        self._ready: deque[int] = deque()
        self._is_listed: list[bool] = []
        self._urgent: deque[tuple[int, QueuedBarrier]] = deque()
        self._polled: dict[int, QueuedBarrier] = {}
        """By channel: the last barrier that has overtaken the elements waiting in the channel."""
        self._failure: Exception | None = None
        self._on_available: Callable[[], None] | None = None
        self._is_closed = False

    def add(self, channel: InputChannel) -> int:
        number = len(self.channels)
        self.channels.append(channel)
        self._is_listed.append(False)
        self._open.append(True)
        self._has_data.append(True)
        self._blocked.append(False)
        return number

    def request(self) -> None:
        """Request data from all producers.
        Connects to the producers' processes first, if needed, and blocks during this."""
        for channel in self.channels:
            channel.request()

    def listen(self, callback: Callable[[], None]) -> None:
        """Register a callback, called when :meth:`poll`, after it has returned None, would return
        an element or raise. It may run in any thread and must not block."""
        self._on_available = callback
        if self.has_elements():
            callback()

    # --- for the task -------------------------------------------------------------------------

    def poll(self) -> tuple[int, Element] | None:
        """Return (channel, next element). None if there is no element at the moment.
        Raises ProducerLostError, PartitionUnavailableError: some of the input will not arrive."""
        if self._failure is not None:
            raise self._failure
        if self._urgent:
            overtaking = self.poll_overtaking()
            if overtaking is not None:
                return overtaking
        ready, blocked = self._ready, self._blocked
        for _ in range(len(ready)):
            number = ready.popleft()
            if blocked[number]:
                ready.append(number)
                continue
            element = self.channels[number].take()
            if element is None:
                element = self._take_late(number)
            if element is not None:
                ready.append(number)
                return number, element
        return None

    def poll_overtaking(self) -> tuple[int, Barrier] | None:
        while self._urgent:
            number, queued = self._urgent.popleft()
            barrier = queued.give()
            if barrier is not None:
                before = self._polled.get(number)
                self._polled[number] = queued
                self.channels[number].was_given(queued, before)
                return number, barrier
        return None

    def _take_late(self, number: int) -> Element | None:
        """Note that a channel had no element, and return the element that has come meanwhile."""
        self._is_listed[number] = False  # data that arrives from now on lists the channel again
        element = self.channels[number].take()
        if element is not None:
            with self.lock:
                if self._is_listed[number]:
                    self._ready.remove(number)
                self._is_listed[number] = True
        return element

    def has_elements(self) -> bool:
        if self._failure is not None or self._urgent:
            return True
        return any(not self._blocked[number] for number in tuple(self._ready))

    def end_data(self, channel: int) -> None:
        self._has_data[channel] = False
        self.channels[channel].processed()

    def end(self, channel: int) -> None:
        super().end(channel)
        self.channels[channel].close(None)

    def close(self, reason: str = "the consumer ended") -> None:
        """Read no more, and send *reason* to the producers of all channels that have not ended."""
        self._is_closed = True
        for number, channel in enumerate(self.channels):
            if self._open[number]:
                channel.close(reason)

    def in_flight(self, channel: int) -> list[InFlight]:
        queued = self._polled.get(channel)
        if queued is None or queued.is_reached:
            return []
        return self.channels[channel].in_flight(queued)

    def restore(self, channel: int, elements: Sequence[Element]) -> None:
        """Give the task the elements that were in flight in a channel when a checkpoint barrier
        overtook them, before all other elements of the channel. Call this before :meth:`request`.
        """
        self.channels[channel].restore(elements)
        self.has_data(channel)

    # --- for channels, from any thread --------------------------------------------------------

    def has_data(self, number: int) -> None:
        """Queue the channel for polling, because it has data, and wake the task."""
        if self._is_listed[number]:
            return
        with self.lock:
            if self._is_listed[number]:
                return
            self._is_listed[number] = True
            self._ready.append(number)
        if self._on_available is not None:
            self._on_available()

    def barrier_came(self, number: int, queued: QueuedBarrier) -> None:
        """Handle a barrier that was queued in the channel and may overtake: the task gets it before
        the buffers in front of it, at once or, if the barrier has an alignment time-out, when this
        time-out has passed (ST-08)."""
        self.has_data(number)
        overtakes_at = queued.barrier.overtakes_at
        clock = self._timers.clock
        pause = 0.0 if overtakes_at is None else overtakes_at / 1000 - clock.time()
        if pause > 0:
            overtake = partial(self._overtake, number, queued)
            self._timers.call_at(clock.monotonic() + pause, overtake)
        else:
            self._overtake(number, queued)

    def _overtake(self, number: int, queued: QueuedBarrier) -> None:
        if not (queued.is_reached or self._is_closed):
            queued.barrier = replace(queued.barrier, unaligned=True)
            self._urgent.append((number, queued))
            self._notify()

    def fail(self, failure: Exception) -> None:
        if self._failure is None and not self._is_closed:
            self._failure = failure
            self._notify()

    def _notify(self) -> None:
        if self._on_available is not None:
            self._on_available()

    def metrics(self) -> ChannelMetrics:
        total = ChannelMetrics()
        for channel in self.channels:
            total += channel.metrics()
        return total
