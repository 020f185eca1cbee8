"""What comes between a look and the going to sleep: nobody sleeps through it.

Each case happens in the very moment that is meant: what another thread would do there is done by
the test, from what that moment calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from flinkray.rpc.wire import codec
from flinkray.streaming.network import ConsumerLostError, NetworkInputGate
from flinkray.streaming.network.buffers import QueuedBarrier
from flinkray.streaming.network.connection import Connection
from flinkray.streaming.network.frames import REQUEST
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.records.elements import Element, Watermark
from flinkray.streaming.records.in_flight import InFlight
from flinkray.testing import ManualClock
from tests.streaming.network.networks import SilentWire, network, numbers, read


class ScriptedChannel:
    """Gives what its script says, one line of it with each look."""

    def __init__(self, *script: Callable[[], Element | None]) -> None:
        self.script = list(script)

    def request(self) -> None:
        """Nothing is needed."""

    def take(self) -> Element | None:
        return self.script.pop(0)() if self.script else None

    def close(self, reason: str | None) -> None:
        """Nothing is open."""

    def in_flight(self, barrier: QueuedBarrier) -> list[InFlight]:
        return []

    def processed(self) -> None:
        """Nobody is told."""

    def was_given(self, barrier: QueuedBarrier, before: QueuedBarrier | None) -> None:
        """It has no queue."""

    def restore(self, elements: Sequence[Element]) -> None:
        """Nothing is kept."""

    def metrics(self) -> ChannelMetrics:
        return ChannelMetrics()


def gate_of(*channels: ScriptedChannel) -> tuple[NetworkInputGate, list[int]]:
    """A gate with these channels, and a list that grows with each wake-up."""
    gate = NetworkInputGate("Sink (1/1)", Timers(ManualClock()))
    for channel in channels:
        gate.add(channel)
    woken: list[int] = []
    gate.listen(lambda: woken.append(len(woken)))
    return gate, woken


def test_data_that_arrives_while_its_channel_is_removed_from_the_ready_list_is_read() -> None:
    """Nobody is notified, as the channel is still listed; therefore the gate looks a second
    time."""

    def empty_and_then_something_comes() -> None:
        before = len(woken)
        gate.has_data(0)
        assert len(woken) == before  # listed: nobody is told

    channel = ScriptedChannel(empty_and_then_something_comes, lambda: Watermark(7))
    gate, woken = gate_of(channel)
    gate.has_data(0)
    assert gate.poll() == (0, Watermark(7))
    assert gate.poll() is None
    gate.has_data(0)
    assert len(woken) == 2  # it was unlisted when nothing was left


def test_channel_whose_data_arrives_between_two_polls_is_in_the_ready_list_once() -> None:
    """A channel that was listed twice would be read twice as often as others."""

    def something_comes_again() -> Element:
        gate.has_data(0)
        return Watermark(0)

    greedy = ScriptedChannel(lambda: None, something_comes_again, *[lambda: Watermark(0)] * 10)
    modest = ScriptedChannel(*[lambda: Watermark(1)] * 10)
    gate, _ = gate_of(greedy, modest)
    gate.has_data(0)
    turns = [gate.poll()]
    gate.has_data(1)
    turns += [gate.poll() for _ in range(6)]
    assert [turn and turn[0] for turn in turns] == [0, 0, 1, 0, 1, 0, 1]


class LockWithStep:
    """A lock; before it is taken for the first time, something happens."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._steps = [step]

    def __enter__(self) -> None:
        while self._steps:
            self._steps.pop()()
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def test_writer_that_is_about_to_wait_sees_room_that_just_appeared() -> None:
    """No thread was waiting yet, so none could be notified."""
    settings = NetworkSettings(buffers_per_channel=1, floating_buffers_per_gate=1)
    with network() as make:
        environment = make("p", settings=settings)
        partition = environment.create_partition("p", "Source (1/1)", 1, buffer_timeout=0)
        woken = threading.Event()
        partition.listen(woken.set)
        while partition.full <= 0 and partition.queued < partition._most_queued:
            partition.subpartitions[0].put(numbers(1000))
        reading = read(environment, environment)

        def everything_is_read() -> None:
            while reading.gate.poll() is not None:
                pass

        # the looks of the writer alone: subpartitions keep the lock that they were made with
        partition.lock = LockWithStep(everything_is_read)  # type: ignore[assignment]
        assert partition.has_room() or woken.is_set()


def test_waiting_writer_is_woken_by_the_next_sent_buffer() -> None:
    settings = NetworkSettings(buffers_per_channel=1, floating_buffers_per_gate=1)
    with network() as make:
        environment = make("p", settings=settings)
        partition = environment.create_partition("p", "Source (1/1)", 1, buffer_timeout=0)
        woken = threading.Event()
        partition.listen(woken.set)
        while partition.has_room():
            partition.subpartitions[0].put(numbers(1000))
        assert not woken.is_set()
        reading = read(environment, environment)
        while reading.gate.poll() is not None:
            pass
        assert woken.is_set()
        assert partition.has_room()


def test_new_listener_of_an_input_gate_is_told_of_data_that_arrived_before() -> None:
    gate = NetworkInputGate("Sink (1/1)", Timers(ManualClock()))
    gate.add(ScriptedChannel(lambda: Watermark(1)))
    gate.has_data(0)
    woken: list[int] = []
    gate.listen(lambda: woken.append(1))
    assert woken == [1]


def test_writer_fails_if_its_new_consumer_connects_by_a_broken_connection() -> None:
    """The loss was reported only to channels that were served before."""
    with network() as make:
        environment = make("p")
        partition = environment.create_partition("p", "Source (1/1)", 1, buffer_timeout=0)
        woken = threading.Event()
        partition.listen(woken.set)
        connection = Connection(SilentWire(), "there", environment, lambda _: None)
        connection.fail("the connection broke")
        connection._handle(REQUEST, (0, codec.encode("p"), 0, 10**6, "Sink"), None)
        assert woken.is_set()
        with pytest.raises(ConsumerLostError, match="the connection broke"):
            partition.has_room()
