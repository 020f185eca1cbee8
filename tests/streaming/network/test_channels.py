"""Channels: elements arrive in order, and waiting tasks are woken."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.rpc.wire import codec
from flinkray.rpc.wire.tls import tls_of
from flinkray.streaming.network import (
    ChannelSource,
    ConsumerLostError,
    NetworkEnvironment,
    NetworkInputGate,
    PartitionReleasedError,
    ProducerLostError,
)
from flinkray.streaming.network.buffers import QueuedBarrier
from flinkray.streaming.network.connection import Connection
from flinkray.streaming.network.frames import REQUEST
from flinkray.streaming.network.metrics import ChannelMetrics
from flinkray.streaming.network.settings import NetworkSettings
from flinkray.streaming.network.timers import Timers
from flinkray.streaming.records.elements import (
    ACTIVE,
    END_OF_DATA,
    END_OF_INPUT,
    IDLE,
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    Origin,
    Watermark,
)
from flinkray.streaming.records.in_flight import InFlight
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

STORY: list[Element] = [
    Block([("a", 1), ("b", 2)], [10, 20], ["a", "b"], Origin("Source 1/1", 7)),
    Watermark(20),
    Columns(
        pa.record_batch({"n": [1, 2], "s": ["x", None]}),
        np.array([30, 40]),
        Origin("Source 1/1", 9),
    ),
    Columns(pa.record_batch({"value": [1.5]}), scalar=True),
    IDLE,
    ACTIVE,
    Barrier(3, 1234, savepoint=True, stops=True, drains=True),
    Barrier(4, 1300, unaligned=True, alignment_timeout=50),
    CancelledBarrier(5),
    numbers(100_000),
    Block([3, 4]),
    Block([]),
]


def shown(element: Element) -> object:
    """What can be compared."""
    if isinstance(element, Block):
        return element.values, element.timestamps, element.keys, element.origin
    if isinstance(element, Columns):
        times = None if element.timestamps is None else element.timestamps.tolist()
        return element.batch.to_pydict(), times, element.origin, element.scalar
    return element


def write_story(producer: NetworkEnvironment) -> None:
    partition = producer.create_partition("p", "Source (1/1)", 1, buffer_timeout=0)
    writing = Writing(partition)
    for element in STORY:
        writing.put(element)
    writing.put(END_OF_INPUT)


@pytest.mark.parametrize("way", ["this process", "unix socket", "tcp", "tls"])
def test_every_kind_of_element_arrives_unchanged_and_in_order(way: str, tmp_path: Path) -> None:
    tls = None
    if way == "tls":
        tls = tls_of(ray_tls_environment(tmp_path, "127.0.0.1"))
    with network() as make:
        producer = make("producer", node_id="one", tls=tls)
        node = "one" if way == "unix socket" else "two"
        consumer = producer if way == "this process" else make("consumer", node_id=node, tls=tls)
        join = in_background(lambda: write_story(producer))
        reading = read(consumer, producer)
        assert [shown(element) for element in reading.rest()] == [shown(e) for e in STORY]
        join()


@pytest.mark.parametrize("is_remote", [False, True])
def test_producer_may_be_released_once_its_consumer_has_processed_all_its_data(
    is_remote: bool,
) -> None:
    """Until then, the producer may send barriers; it is not needed for the elements left after
    that."""
    with network() as make:
        producer = make("producer")
        consumer = make("consumer") if is_remote else producer
        partition = producer.create_partition("p", "Source (1/1)", 1, buffer_timeout=0)
        processed, consumed = threading.Event(), threading.Event()
        partition.listen(lambda: processed.set() if partition.is_processed else None)
        partition.on_consumed(consumed.set)
        partition.subpartitions[0].put(Block([1]))
        partition.end_of_data()
        reading = read(consumer, producer)
        assert shown(reading.next()[1]) == shown(Block([1]))
        assert reading.next() == (0, END_OF_DATA)
        assert not partition.is_processed
        reading.gate.end_data(0)
        assert processed.wait(PATIENCE)
        partition.subpartitions[0].put(Barrier(1, 0))
        partition.end_of_input()
        assert consumed.wait(PATIENCE)
        producer.release_partition(partition)
        assert reading.rest() == [Barrier(1, 0)]


def test_waiting_barrier_is_reported_to_overtake_nothing_when_its_producer_ends() -> None:
    with network() as make:
        process = make("process")
        partition = process.create_partition("p", "Source (1/1)", 1, buffer_timeout=0)
        processed = threading.Event()
        partition.listen(lambda: processed.set() if partition.is_processed else None)
        partition.end_of_data()
        reading = read(process, process)
        assert reading.next() == (0, END_OF_DATA)
        overtaken: list[Any] = []
        barrier = Barrier(1, int(time.time() * 1000), alignment_timeout=3_600_000)
        partition.barrier(barrier, overtaken.append)
        reading.gate.end_data(0)
        assert processed.wait(PATIENCE)
        partition.end_of_input()
        assert partition.is_consumed
        assert overtaken == [{}]
        assert reading.rest() == [barrier]
        process.release_partition(partition)


def values_of(reading: Reading) -> Iterator[Any]:
    """Of blocks, up to the end."""
    for block in reading.rest():
        assert isinstance(block, Block)
        yield from block.values


def test_thousands_of_batches_keep_their_order_and_number() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        writing = Writing(producer.create_partition("p", "Source (1/1)", 1, buffer_timeout=0.001))

        def write() -> None:
            for first in range(0, 3_000, 3):
                writing.put(Block(list(range(first, first + 3))))
            writing.put(END_OF_INPUT)

        join = in_background(write)
        values = list(values_of(read(consumer, producer)))
        join()
    assert values == list(range(3_000))


def test_many_channels_between_two_processes_share_one_connection() -> None:
    with network() as make:
        left, right = make("left"), make("right")
        sources: dict[str, list[ChannelSource]] = {"left": [], "right": []}
        for here, there in ((left, right), (right, left)):
            for number in range(10):
                name = f"{here.process_name} {number}"
                partition = here.create_partition(name, "Map", 20, buffer_timeout=None)
                for index, subpartition in enumerate(partition.subpartitions):
                    subpartition.put(Block([(name, index)]))
                    subpartition.put(END_OF_INPUT)
                    sources[there.process_name].append(ChannelSource(name, index, here.address))
        for here, there in ((right, left), (left, right)):
            gate = here.create_gate("Sink", sources[here.process_name])
            assert set(values_of(Reading(gate))) == {
                (f"{there.process_name} {number}", index)
                for number in range(10)
                for index in range(20)
            }
        assert left.number_of_connections == 1
        assert right.number_of_connections == 1


def test_input_gate_reads_channels_in_turn_and_skips_blocked_channels() -> None:
    """ST-01."""
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partitions = [
            producer.create_partition(name, "Source", 1, buffer_timeout=0) for name in "ab"
        ]
        for partition in partitions:
            for number in range(3):
                partition.subpartitions[0].put(Block([number]))
        sources = [ChannelSource(name, 0, producer.address) for name in "ab"]
        reading = Reading(consumer.create_gate("Sink", sources))
        first, _ = reading.next()
        reading.gate.block(first)
        assert [reading.next()[0] for _ in range(3)] == [1 - first] * 3
        assert reading.gate.poll() is None
        assert not reading.gate.has_elements()
        reading.gate.resume_all()
        assert [reading.next()[0] for _ in range(2)] == [first] * 2


def test_process_that_does_not_know_the_secret_is_refused() -> None:
    with network() as make:
        producer = make("producer")
        stranger = NetworkEnvironment("stranger", b"x" * 32, node_id="node")
        try:
            gate = stranger.create_gate("Sink", [ChannelSource("p", 0, producer.address)])
            with pytest.raises(HandshakeError, match="secret"):
                gate.request()
        finally:
            stranger.close()
        assert producer.number_of_connections == 0


def test_partition_request_to_a_closed_task_process_fails_at_once_with_its_name() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        producer.close()
        gate = consumer.create_gate("Sink", [ChannelSource("p", 0, producer.address)])
        with pytest.raises(RpcConnectionError, match="no task process producer"):
            gate.request()


def test_network_metrics_of_sender_and_receiver_agree() -> None:
    clock = ManualClock()
    with network() as make:
        producer, consumer = make("producer", clock=clock), make("consumer")
        partition = producer.create_partition("p", "Source", 2, buffer_timeout=0)
        sources = [ChannelSource("p", index, producer.address) for index in range(2)]
        reading = Reading(consumer.create_gate("Sink", sources))
        for subpartition in partition.subpartitions:
            subpartition.put(Block([1, 2, 3]))
            subpartition.put(numbers(1000))
            subpartition.put(END_OF_INPUT)
        reading.rest()
        sent, taken = partition.metrics(), reading.gate.metrics()
        assert (sent.records, sent.buffers, sent.bytes) == (
            taken.records,
            taken.buffers,
            taken.bytes,
        )
        assert (taken.records, taken.buffers) == (2006, 6)
        assert taken.bytes > 16_000
        assert [channel.metrics().records for channel in reading.gate.channels] == [1003, 1003]
        assert (sent.queued_bytes, taken.queued_bytes, sent.back_pressured_seconds) == (0, 0, 0)


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


def test_writer_about_to_wait_notices_buffers_that_its_consumer_frees_just_then() -> None:
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


def test_new_listener_of_an_input_gate_is_called_at_once_if_data_has_arrived_before() -> None:
    gate = NetworkInputGate("Sink (1/1)", Timers(ManualClock()))
    gate.add(ScriptedChannel(lambda: Watermark(1)))
    gate.has_data(0)
    woken: list[int] = []
    gate.listen(lambda: woken.append(1))
    assert woken == [1]


def test_writer_fails_if_its_consumer_requests_the_data_over_a_broken_connection() -> None:
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


def open_files(folder: Path) -> list[str]:
    """Those of this process in that folder, whether they have a name or not."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # that of the listing
    return [link for link in links if link.startswith(f"{folder}/")]


@pytest.mark.parametrize("is_local", [True, False])
def test_blocking_result_is_readable_only_when_complete_and_several_times(
    is_local: bool, tmp_path: Path
) -> None:
    settings = NetworkSettings(segment_size=4096, directory=str(tmp_path))
    with network() as make:
        producer = make("producer", settings=settings)
        consumer = producer if is_local else make("consumer", settings=settings)
        partition = producer.create_partition("p", "Source", 2, is_blocking=True)
        early = read(consumer, producer)
        for first in range(0, 5_000, 1000):
            assert partition.has_room()
            for subpartition in partition.subpartitions:
                subpartition.put(Block([first]))
                subpartition.put(numbers(1000, first))
        assert early.gate.poll() is None
        assert partition.metrics().queued_bytes == 0
        for subpartition in partition.subpartitions:
            subpartition.put(END_OF_INPUT)
        written = partition.metrics()
        assert written.records == 2 * 5_005, "before anybody has read it"
        for reading in (early, read(consumer, producer), read(consumer, producer, "p", 1)):
            elements = reading.rest_of_records()
            columns = [element for element in elements if isinstance(element, Columns)]
            assert [batch.batch.column(0)[0].as_py() for batch in columns] == [
                0, 1000, 2000, 3000, 4000,
            ]  # fmt: skip
            assert sum(map(len, elements)) == 5_005
        assert partition.metrics() == written, "however often it was read"
        consumed = threading.Event()
        partition.on_consumed(consumed.set)
        assert consumed.wait(PATIENCE)


def test_blocking_result_can_be_read_again_after_its_consumer_is_lost(tmp_path: Path) -> None:
    """EX-14."""
    settings = NetworkSettings(segment_size=4096, directory=str(tmp_path))
    with network() as make:
        producer, consumer = make("producer", settings=settings), make("consumer")
        partition = producer.create_partition("p", "Source", 1, is_blocking=True)
        for first in range(0, 100_000, 1000):
            partition.subpartitions[0].put(numbers(1000, first))
        partition.subpartitions[0].put(END_OF_INPUT)
        lost = read(consumer, producer)
        lost.next()
        consumer.close()
        elements = read(make("another"), producer).rest_of_records()
        assert sum(map(len, elements)) == 100_000
        assert partition.failure is None


def test_released_blocking_result_frees_its_file_and_fails_its_readers(tmp_path: Path) -> None:
    settings = NetworkSettings(segment_size=4096, directory=str(tmp_path))
    with network() as make:
        producer, consumer = make("producer", settings=settings), make("consumer")
        partition = producer.create_partition("p", "Source", 1, is_blocking=True)
        assert len(open_files(tmp_path)) == 1
        assert list(tmp_path.iterdir()) == []
        for first in range(0, 3_000_000, 100_000):
            partition.subpartitions[0].put(numbers(100_000, first))
        partition.subpartitions[0].put(END_OF_INPUT)
        reading = read(consumer, producer)
        reading.next()
        producer.release_partition(partition)
        with pytest.raises(ProducerLostError, match="released"):
            reading.rest()
        assert open_files(tmp_path) == []  # what was under way has been sent
        with pytest.raises(PartitionReleasedError):
            partition.has_room()
