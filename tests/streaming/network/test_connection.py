"""Many channels share a connection: each has its turn, and what is urgent does not wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from flinkray.rpc.wire import codec
from flinkray.streaming.network import NetworkEnvironment, ResultPartition, WireFormatError
from flinkray.streaming.network.buffers import OVERHEAD
from flinkray.streaming.network.connection import Connection, FrameReader
from flinkray.streaming.network.frames import (
    ACCEPTED,
    CREDIT,
    DATA,
    MAPPED,
    REQUEST,
    SHARED_DATA,
    Part,
    head,
)
from flinkray.streaming.records.elements import END_OF_INPUT, Barrier, Columns
from tests.streaming.network.networks import PATIENCE, network, numbers

SEGMENT = numbers(20_000)
"""More than is given to the system together with others."""


class _HeldWire:
    """A wire that takes nothing until it is let go, and that keeps what it took."""

    is_on_one_node = False

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.sent = threading.Condition()
        self.let_go = threading.Event()
        self._closed = threading.Event()

    def try_send(self, parts: Sequence[Part]) -> list[Part]:
        return list(parts)

    def send(self, parts: Sequence[Part]) -> None:
        assert self.let_go.wait(PATIENCE)
        with self.sent:
            self.parts += parts
            self.sent.notify()

    def recv_into(self, view: memoryview) -> int:
        assert self._closed.wait(PATIENCE)
        return 0

    def recv_exactly(self, view: memoryview) -> bool:
        return False

    def close(self) -> None:
        self._closed.set()


class _Sent:
    """What was sent, to be read again."""

    def __init__(self, parts: list[Part]) -> None:
        self._data = b"".join(bytes(part) for part in parts)

    def recv_into(self, view: memoryview) -> int:
        count = min(len(view), len(self._data))
        view[:count] = self._data[:count]
        self._data = self._data[count:]
        return count

    def recv_exactly(self, view: memoryview) -> bool:
        return self.recv_into(view) == len(view)


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
        wire = _HeldWire()
        garbage = _Sent([head(REQUEST, ("x",))])
        wire.recv_into = garbage.recv_into  # type: ignore[method-assign]
        lost = threading.Event()
        connection = Connection(wire, "peer", environment, lambda _: lost.set())
        connection.start()
        assert lost.wait(PATIENCE)
        assert connection.lost_reason is not None
        assert "given up" in connection.lost_reason


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
