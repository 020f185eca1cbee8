"""The consuming end: a task's channels from all its producers, read as one input."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from flinkray.streaming.channels import InputGate
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.queued_barrier import QueuedBarrier
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.records.elements import Barrier, Element
from flinkray.streaming.records.in_flight import InFlight


class InputChannel(Protocol):
    """One channel of a gate, by whatever way its elements come."""

    def request(self) -> None:
        """Ask for the data; returns before it comes."""

    def take(self) -> Element | None:
        """The next element; None: there is none now, and the gate will be told of the next."""

    def in_flight(self, barrier: QueuedBarrier) -> list[InFlight]:
        """What came before a barrier that is still in the queue, and was not taken; it stays."""

    def restore(self, elements: Sequence[Element]) -> None:
        """To be taken before all that comes."""

    def close(self, reason: str | None) -> None:
        """No more is wanted; None: all was read."""

    def metrics(self) -> ChannelMetrics: ...


class NetworkInputGate(InputGate):
    """An :class:`~flinkray.streaming.channels.InputGate` over channels from other tasks.

    One thread, the task's, polls and closes it.  Channels with data wait in a queue for their turn,
    so that polling costs the same for two channels as for two hundred; one that a barrier blocks
    is passed over until :meth:`resume_all`.

    Args:
        consumer: task and process, for errors.
        timers: let barriers overtake what they have waited behind for too long.
    """

    def __init__(self, consumer: str, timers: Timers) -> None:
        super().__init__(())
        self.consumer = consumer
        self._timers = timers
        self.lock = threading.Lock()
        """Of what threads that receive and the task share, credit included."""
        self._inputs: list[InputChannel] = []
        self._ready: deque[int] = deque()
        self._is_listed: list[bool] = []
        self._urgent: deque[tuple[int, QueuedBarrier]] = deque()
        self._polled: dict[int, QueuedBarrier] = {}
        """By channel, the last one that has overtaken what waits in it."""
        self._failure: Exception | None = None
        self._on_available: Callable[[], None] | None = None
        self._is_closed = False

    def add(self, channel: InputChannel) -> int:
        """The channel's number here."""
        number = len(self._inputs)
        self._inputs.append(channel)
        self._is_listed.append(False)
        self._open.append(True)
        self._blocked.append(False)
        self.channels.append(channel)  # type: ignore[arg-type]
        return number

    def request(self) -> None:
        """Ask all producers for their data.  Connects to their processes where that was not done
        yet, and waits for it."""
        for channel in self._inputs:
            channel.request()

    def listen(self, callback: Callable[[], None]) -> None:
        """Be called, from any thread, when :meth:`poll` has something to give (or to raise) after
        it had nothing.  It must not block."""
        self._on_available = callback
        if self.has_elements():
            callback()

    # --- for the task -------------------------------------------------------------------------

    def poll(self) -> tuple[int, Element] | None:
        """The next element and its channel; None where there is none at the moment.

        Raises:
            ProducerLostError, PartitionUnavailableError: what was to come will not.
        """
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
            element = self._take(number)
            if element is not None:
                ready.append(number)
                return number, element
        return None

    def poll_overtaking(self) -> tuple[int, Barrier] | None:
        """A barrier that has overtaken what waits in its channel, blocked or not, and its channel;
        None where there is none at the moment."""
        while self._urgent:
            number, queued = self._urgent.popleft()
            barrier = queued.give()
            if barrier is not None:
                self._polled[number] = queued
                return number, barrier
        return None

    def _take(self, number: int) -> Element | None:
        channel = self._inputs[number]
        element = channel.take()
        if element is None:
            # what comes from now on lists the channel again; what came just before is looked for
            self._is_listed[number] = False
            element = channel.take()
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

    def end(self, channel: int) -> None:
        super().end(channel)
        self._inputs[channel].close(None)

    def close(self, reason: str = "the consumer ended") -> None:
        """Read no more; producers that have not come to their end are told."""
        self._is_closed = True
        for number, channel in enumerate(self._inputs):
            if self._open[number]:
                channel.close(reason)

    def in_flight(self, channel: int) -> list[InFlight]:
        """What the barrier that was polled last has overtaken in its channel (unaligned
        checkpoints, ST-06): what had come before it, and was not polled.  It stays."""
        queued = self._polled.get(channel)
        if queued is None or queued.is_reached:
            return []
        return self._inputs[channel].in_flight(queued)

    def restore(self, channel: int, elements: Sequence[Element]) -> None:
        """Give what was in flight in a channel when a checkpoint overtook it, before anything that
        comes; to be called before :meth:`request`."""
        self._inputs[channel].restore(elements)
        self.has_data(channel)

    # --- for channels, from any thread --------------------------------------------------------

    def has_data(self, number: int) -> None:
        """The channel has something."""
        if self._is_listed[number]:
            return
        with self.lock:
            if self._is_listed[number]:
                return
            self._is_listed[number] = True
            self._ready.append(number)
        self._notify()

    def barrier_came(self, number: int, queued: QueuedBarrier) -> None:
        """It is in the channel's queue, and overtakes what is before it there: at once, or if it is
        there still when it has waited for too long (ST-08)."""
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
        """Some of the input will not come."""
        if self._failure is None and not self._is_closed:
            self._failure = failure
            self._notify()

    def _notify(self) -> None:
        if self._on_available is not None:
            self._on_available()

    def metrics(self) -> ChannelMetrics:
        """The sum over all channels."""
        total = ChannelMetrics()
        for channel in self._inputs:
            total += channel.metrics()
        return total

    def channel_metrics(self) -> Sequence[ChannelMetrics]:
        """Of each channel."""
        return [channel.metrics() for channel in self._inputs]
