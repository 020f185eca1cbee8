"""Connections that no channel uses end; what crosses their end is served all the same."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from flinkray.rpc.wire import codec
from flinkray.streaming.network import NetworkEnvironment
from flinkray.streaming.network.connection import Connection
from flinkray.streaming.network.frames import LEAVE, LEFT, REQUEST
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.records.elements import END_OF_INPUT, Columns
from flinkray.testing import ManualClock
from tests.streaming.network.networks import (
    PATIENCE,
    Reading,
    SilentWire,
    Writing,
    in_background,
    network,
    numbers,
    read,
)

IDLE = 100.0


class Pair:
    """A producer and a consumer whose time the test advances."""

    def __init__(self, make: Callable[..., NetworkEnvironment]) -> None:
        self.clock = ManualClock()
        settings = NetworkSettings(connection_idle_timeout=IDLE)
        options = {"settings": settings, "clock": self.clock, "manual_timers": True}
        self.producer = make("producer", **options)
        self.consumer = make("consumer", **options)
        self._partitions = 0

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds)):
            self.clock.advance(1.0)
            self.producer.timers.run_due()
            self.consumer.timers.run_due()

    def write(self, *, is_complete: bool = True) -> tuple[Writing, Reading]:
        self._partitions += 1
        name = f"partition {self._partitions}"
        writing = Writing(self.producer.create_partition(name, "Source", 1, buffer_timeout=0))
        reading = read(self.consumer, self.producer, name)
        writing.put(numbers(10))
        if is_complete:
            writing.put(END_OF_INPUT)
        return writing, reading

    def connections(self) -> tuple[int, int]:
        return self.producer.number_of_connections, self.consumer.number_of_connections

    def until_closed(self) -> None:
        for environment in (self.producer, self.consumer):
            for connection in [*environment._connections.values(), *environment._others]:
                for thread in connection._threads:
                    thread.join(PATIENCE)
        assert self.connections() == (0, 0)


def length(reading: Reading) -> int:
    return sum(len(batch) for batch in reading.rest_of_records())


def test_idle_connection_is_closed_and_the_next_channel_opens_a_new_connection() -> None:
    with network() as make:
        pair = Pair(make)
        for _ in range(3):
            assert length(pair.write()[1]) == 10
            assert pair.connections() == (1, 1)
            pair.pass_time(0.9 * IDLE)
            assert pair.connections() == (1, 1)
            pair.pass_time(0.4 * IDLE)
            pair.until_closed()


def test_connection_of_an_open_channel_without_data_stays_open() -> None:
    with network() as make:
        pair = Pair(make)
        writing, reading = pair.write(is_complete=False)
        assert reading.next()[0] == 0
        pair.pass_time(10 * IDLE)
        assert pair.connections() == (1, 1)
        writing.put(numbers(10))
        writing.put(END_OF_INPUT)
        assert length(reading) == 10
        pair.pass_time(2 * IDLE)
        pair.until_closed()


def test_connection_stays_open_while_a_channel_waits_for_its_partition() -> None:
    with network() as make:
        pair = Pair(make)
        reading = read(pair.consumer, pair.producer, "later")
        pair.pass_time(5)
        for connection in pair.producer._connections.values():
            connection.leave()  # nothing is served there
        writing = Writing(pair.producer.create_partition("later", "Source", 1, buffer_timeout=0))
        writing.put(numbers(10))
        writing.put(END_OF_INPUT)
        assert length(reading) == 10


def test_without_an_idle_timeout_connections_stay_open() -> None:
    with network() as make:
        clock = ManualClock()
        settings = NetworkSettings(connection_idle_timeout=None)
        options = {"settings": settings, "clock": clock, "manual_timers": True}
        producer, consumer = make("producer", **options), make("consumer", **options)
        writing = Writing(producer.create_partition("p", "Source", 1, buffer_timeout=0))
        writing.put(END_OF_INPUT)
        assert read(consumer, producer).rest() == []
        clock.advance(10 * IDLE)
        assert not producer.timers.run_due()
        assert producer.number_of_connections == consumer.number_of_connections == 1


class Channel:
    """Of no interest."""

    failed: str | None = None

    def accepted(self, producer: str) -> None: ...

    def received(self, *arguments: object) -> None: ...

    def not_found(self) -> None: ...

    def fail(self, reason: str) -> None:
        self.failed = reason


def request(connection: Connection) -> None:
    connection._handle(REQUEST, (0, codec.encode("p"), 0, 10**6, "Sink"), None)


def test_connection_asked_to_close_stays_open_if_a_channel_request_arrives() -> None:
    with network() as make:
        environment = make("here")
        environment.create_partition("p", "Source", 1)
        connection = Connection(SilentWire(), "there", environment, lambda _: None)
        connection.leave()
        assert connection.add_channel(Channel()) is None
        request(connection)
        connection._handle(LEFT, (False,), None)
        assert connection.lost_reason is None
        assert connection.add_channel(Channel()) is not None
        connection.fail("the test is over")


def test_connection_that_serves_a_channel_refuses_to_close_as_idle() -> None:
    with network() as make:
        environment = make("here")
        environment.create_partition("p", "Source", 1)
        connection = Connection(SilentWire(), "there", environment, lambda _: None)
        request(connection)
        connection.leave()
        assert not connection.is_leaving
        connection._handle(LEAVE, (1,), None)
        assert not connection.is_leaving
        connection.fail("the test is over")


def test_connection_agrees_to_close_only_if_unused_and_then_adds_no_channel() -> None:
    with network() as make:
        environment = make("here")
        connection = Connection(SilentWire(), "there", environment, lambda _: None)
        channel = Channel()
        number = connection.add_channel(channel)
        assert number is not None
        connection._handle(LEAVE, (1,), None)
        assert not connection.is_leaving
        connection.remove_channel(number)
        connection._handle(LEAVE, (1,), None)
        assert connection.add_channel(Channel()) is None
        connection.fail("the connection was closed by the other side")
        assert connection.is_leaving  # so that nobody takes its end for a loss
        assert channel.failed is None


def test_connection_closes_if_both_sides_ask_to_close_it_at_the_same_time() -> None:
    with network() as make:
        environment = make("here")
        connection = Connection(SilentWire(), "there", environment, lambda _: None)
        connection.leave()
        connection._handle(LEAVE, (1,), None)
        assert connection.is_leaving
        connection._handle(LEFT, (True,), None)
        assert connection.lost_reason == "nobody used the connection"


def test_all_records_arrive_although_idle_connections_close_all_the_time() -> None:
    """Both sides read from each other, with pauses about as long as the idle timeout."""
    settings = NetworkSettings(connection_idle_timeout=0.002)
    with network() as make:
        one, other = make("one", settings=settings), make("other", settings=settings)
        pause = threading.Event()
        seen: set[Connection] = set()

        def exchange(producer: NetworkEnvironment, consumer: NetworkEnvironment) -> None:
            chance = random.Random(consumer.process_name)
            for number in range(300):
                partition = producer.create_partition(number, "Source", 1, buffer_timeout=0)
                writing, reading = Writing(partition), read(consumer, producer, number)
                writing.put(numbers(number + 1))
                writing.put(END_OF_INPUT)
                seen.update(consumer._connections.values())
                (batch,) = reading.rest_of_records()
                assert isinstance(batch, Columns)
                assert len(batch) == number + 1
                producer.release_partition(partition)
                pause.wait(chance.choice((0.0, 0.001, 0.002, 0.003)))

        ends = [
            in_background(lambda: exchange(one, other)),
            in_background(lambda: exchange(other, one)),
        ]
        for end in ends:
            end()
    assert len(seen) > 10
    assert {connection.lost_reason for connection in seen} <= {
        "nobody used the connection",
        "the connection was closed by the other side",
        "this process ends",
    }
