"""Connections: their turns, and how idle connections close."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from flinkray.rpc.wire import codec
from flinkray.rpc.wire.tls import tls_of
from flinkray.streaming.network import NetworkEnvironment, ResultPartition, WireFormatError
from flinkray.streaming.network.buffers import OVERHEAD
from flinkray.streaming.network.connection import Connection, FrameReader
from flinkray.streaming.network.frames import (
    ACCEPTED,
    CREDIT,
    DATA,
    LEAVE,
    LEFT,
    MAPPED,
    REQUEST,
    SHARED_DATA,
    Part,
    head,
)
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.wire import (
    MOST_READ_AT_ONCE,
    PlainWire,
    TlsWire,
    Wire,
)
from flinkray.streaming.records.elements import END_OF_INPUT, Barrier, Columns
from flinkray.testing import ManualClock
from tests.rpc.certificates import ray_tls_environment
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

SEGMENT = numbers(20_000)
"""More than is given to the system together with others."""


class _HeldWire(SilentWire):
    """A wire that takes nothing until it is let go, and that keeps what it took."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.sent = threading.Condition()
        self.let_go = threading.Event()

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        return list(parts)

    def send(self, parts: Sequence[Part]) -> None:
        assert self.let_go.wait(PATIENCE)
        with self.sent:
            self.parts += parts
            self.sent.notify()


class _Sent:
    """What was sent, to be read again."""

    is_empty = False

    def __init__(self, parts: list[Part]) -> None:
        self._data = b"".join(bytes(part) for part in parts)

    def try_recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._data))
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        return count


class _Consumer:
    """The other side of a connection of *environment*, seen from the wire."""

    def __init__(self, environment: NetworkEnvironment) -> None:
        self.wire = _HeldWire()
        self.lost = threading.Event()
        self.connection = Connection(self.wire, "peer", environment, lambda _: self.lost.set())
        self.connection.start()

    def request(self, partition: ResultPartition, channel: int) -> None:
        request = (channel, codec.encode(partition.id), 0, 10**9, "Sink")
        self.connection._handle(REQUEST, request, None)

    def frames(self, count: int) -> list[tuple[int, int]]:
        """Let the wire go; kind and channel of the frames, once so many were sent."""
        self.wire.let_go.set()
        frames: list[tuple[int, int]] = []

        def all_are_there() -> bool:
            frames.clear()
            reader = FrameReader(_Sent(self.wire.parts))
            while (frame := reader.next()) is not None:
                frames.append((frame[0], frame[1][0]))
            return len(frames) >= count

        with self.wire.sent:
            assert self.wire.sent.wait_for(all_are_there, PATIENCE)
        return frames


@pytest.mark.parametrize("batch", [SEGMENT, numbers(100)], ids=["large", "small"])
def test_channels_of_a_connection_send_one_buffer_each_in_turn(batch: Columns) -> None:
    with network() as make:
        environment = make("process")
        consumer = _Consumer(environment)
        for number in range(5):
            partition = environment.create_partition(number, "Source", 1, buffer_timeout=0)
            consumer.request(partition, number)
            for _ in range(4):
                partition.subpartitions[0].put(batch)
        frames = consumer.frames(25)
        channels = [channel for kind, channel in frames if kind == DATA]
        assert len(channels) == 20
        # The first may have been taken when the others had nothing yet.
        in_turn = channels[channels.index(1) :]
        for begin in range(0, len(in_turn) - 5, 5):
            assert len(set(in_turn[begin : begin + 5])) == 5, channels
        consumer.connection.close("the test ends")


def test_unaligned_barrier_waits_only_for_the_buffers_that_are_being_sent() -> None:
    with network() as make:
        environment = make("process")
        consumer = _Consumer(environment)
        for number in range(5):
            partition = environment.create_partition(number, "Source", 1, buffer_timeout=0)
            consumer.request(partition, number)
            for _ in range(10):
                partition.subpartitions[0].put(SEGMENT)
        quiet = environment.create_partition("quiet", "Source", 1, buffer_timeout=0)
        consumer.request(quiet, 99)
        quiet.subpartitions[0].put(Barrier(1, 0))
        quiet.subpartitions[0].put(END_OF_INPUT)
        frames = consumer.frames(58)
        data = [channel for kind, channel in frames if kind == DATA]
        assert data.count(99) == 2
        # One is under way, and one may have been taken by the thread that goes on with the rest.
        assert data.index(99) <= 2
        assert data[data.index(99) + 1] == 99
        assert frames.index((ACCEPTED, 99)) < frames.index((DATA, 99))
        consumer.connection.close("the test ends")


def test_without_credit_only_an_unaligned_barrier_is_sent() -> None:
    with network() as make:
        environment = make("process")
        consumer = _Consumer(environment)
        partition = environment.create_partition("p", "Source", 1, buffer_timeout=0)
        consumer.connection._handle(REQUEST, (0, codec.encode("p"), 0, 0, "Sink"), None)
        partition.subpartitions[0].put(Barrier(1, 0))
        partition.subpartitions[0].put(SEGMENT)
        partition.subpartitions[0].put_first(Barrier(2, 0, unaligned=True))
        partition.subpartitions[0].put(END_OF_INPUT)
        assert consumer.frames(2) == [(ACCEPTED, 0), (DATA, 0)]
        assert partition.metrics().queued_buffers == 3
        partition.subpartitions[0].put_first(Barrier(3, 0, unaligned=True))
        assert consumer.frames(2) == [(ACCEPTED, 0), (DATA, 0)]
        assert partition.metrics().queued_buffers == 4  # the task has not read the first barrier
        consumer.connection.close("the test ends")


@pytest.mark.parametrize(
    "header",
    [("x",), (0, b"\xc1", 0, 0, "Sink"), (0, codec.encode("p"), "first", "much", "Sink")],
)
def test_malformed_partition_request_is_refused(header: tuple[object, ...]) -> None:
    with network() as make:
        environment = make("process")
        environment.create_partition("p", "Source", 1, buffer_timeout=0)
        consumer = _Consumer(environment)
        with pytest.raises((WireFormatError, TypeError)):
            consumer.connection._handle(REQUEST, header, None)
        consumer.connection.close("the test ends")


def test_connection_that_receives_garbage_is_closed_with_a_reason() -> None:
    with network() as make:
        environment = make("process")
        ours, theirs = socket.socketpair()
        theirs.sendall(head(REQUEST, ("x",)))
        lost = threading.Event()
        connection = Connection(PlainWire(ours), "peer", environment, lambda _: lost.set())
        connection.start(environment._poller)
        assert lost.wait(PATIENCE)
        assert connection.lost_reason is not None
        assert "given up" in connection.lost_reason
        theirs.close()


class _FastPeer:
    """Sends another request as soon as one of its requests is handled."""

    request: bytes = head(REQUEST, (0, codec.encode("p"), 0, 0, "x" * 30_000))

    def __init__(self, wire: Wire) -> None:
        self.handled = 0
        self._wire = wire

    def send(self) -> None:
        self._wire.send([self.request])

    def requested(self, *request: object) -> None:
        self.handled += 1
        assert self.handled < 500, "one look goes on for ever"
        self.send()

    def withdrawn(self, *channel: object) -> None: ...


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_one_look_at_a_fast_peer_reads_a_limited_number_of_bytes(
    has_tls: bool, tmp_path: Path
) -> None:
    ours, theirs = socket.socketpair()
    wires: list[PlainWire | TlsWire] = [PlainWire(ours), PlainWire(theirs)]
    if has_tls:
        tls = tls_of(ray_tls_environment(tmp_path))
        assert tls is not None
        one, other = TlsWire(ours, tls.client, False), TlsWire(theirs, tls.server, True)
        handshake = threading.Thread(target=other.go_on_with_handshake)
        handshake.start()
        one.go_on_with_handshake()
        handshake.join(PATIENCE)
        wires = [one, other]
    peer = _FastPeer(wires[1])
    connection = Connection(wires[0], "peer", peer, lambda _: None)
    for _ in range(5):
        peer.send()
    for look in (1, 2):
        assert connection.read_available()
        seen = peer.handled * len(peer.request)
        assert look * MOST_READ_AT_ONCE / 2 < seen < look * MOST_READ_AT_ONCE * 2
    connection.fail("the test ends")
    wires[1].close()


class _RecordingWire(_HeldWire):
    """A wire that takes all at once, and knows which frames came with which call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[int]] = []
        """Kinds of frames."""

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        self.send(parts)
        return []

    def send(self, parts: Sequence[Part]) -> None:
        reader = FrameReader(_Sent(list(parts)))
        kinds = []
        while (frame := reader.next()) is not None:
            kinds.append(frame[0])
        with self.sent:
            if kinds:
                self.calls.append(kinds)
            self.sent.notify()

    def count(self, kind: int) -> int:
        return sum(kinds.count(kind) for kinds in self.calls)


def _with_credit_to_come(
    environment: NetworkEnvironment, batches: Sequence[Columns], shared_memory: int
) -> tuple[_RecordingWire, Connection]:
    """A connection that does not run yet, and batches that wait for the consumer's credit."""
    wire = _RecordingWire()
    connection = Connection(wire, "peer", environment, lambda _: None, shared_memory)
    partition = environment.create_partition("p", "Source", 1, buffer_timeout=0)
    connection._handle(REQUEST, (0, codec.encode("p"), 0, 0, "Sink"), None)
    for batch in batches:
        partition.subpartitions[0].put(batch)
    return wire, connection


class _InterruptedWire(_RecordingWire):
    """A wire that another thread queues a frame for, while the first batch is being sent."""

    connection: Connection | None = None

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.send(head(LEFT, (False,)))
        return super().try_send(parts)


def test_small_batches_on_an_idle_connection_are_sent_one_by_one_at_once() -> None:
    with network() as make:
        environment = make("process")
        wire = _InterruptedWire()
        connection = Connection(wire, "peer", environment, lambda _: None)
        partition = environment.create_partition("p", "Source", 1, buffer_timeout=0)
        connection._handle(REQUEST, (0, codec.encode("p"), 0, OVERHEAD + 1, "Sink"), None)
        wire.connection = connection
        for count in (1, 2, 3):
            partition.subpartitions[0].put(numbers(count))
        assert wire.calls == [[ACCEPTED], [DATA], [LEFT]]
        assert partition.metrics().queued_buffers == 2  # credit is missing
        connection._handle(CREDIT, ((0, 10**9, 0),), None)
        assert wire.calls[3:] == [[DATA, DATA]]
        partition.subpartitions[0].put(numbers(4))
        partition.subpartitions[0].put(numbers(5))
        assert wire.calls[4:] == [[DATA], [DATA]]
        assert partition.metrics().records == 1 + 2 + 3 + 4 + 5
        connection.close("the test ends")


def test_thread_that_receives_credit_sends_a_limited_number_of_buffers_itself() -> None:
    """Waking the writing thread costs more than sending a few buffers."""
    with network() as make:
        environment = make("process")
        wire, connection = _with_credit_to_come(environment, [SEGMENT] * 20, 0)
        connection._handle(CREDIT, ((0, 10**9, 0),), None)
        assert wire.count(DATA) == 8
        connection.start()
        with wire.sent:
            assert wire.sent.wait_for(lambda: wire.count(DATA) == 20, PATIENCE)
        connection.close("the test ends")


def test_buffers_put_into_shared_memory_are_announced_before_all_are_copied() -> None:
    with network() as make:
        environment = make("process")
        batches = [numbers(8_192)] * 13  # 64 kB each
        wire, connection = _with_credit_to_come(environment, batches, 2**24)
        connection._handle(
            CREDIT, ((0, OVERHEAD + 1, 0),), None
        )  # memory is offered with the first
        connection._handle(MAPPED, (0, True), None)
        wire.calls.clear()
        connection._handle(CREDIT, ((0, 10**9, 0),), None)
        assert wire.calls == [[SHARED_DATA] * 4] * 3
        connection.close("the test ends")


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
        deadline = time.monotonic() + PATIENCE
        while self.connections() != (0, 0):
            assert time.monotonic() < deadline
            for environment in (self.producer, self.consumer):
                environment.signal().wait(0.001)


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
