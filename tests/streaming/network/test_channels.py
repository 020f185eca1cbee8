"""Elements go from one process to another, and within one, whole and in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flinkray.core.errors import HandshakeError, RpcConnectionError
from flinkray.rpc.wire.tls import tls_of
from flinkray.streaming.network import ChannelSource, NetworkEnvironment
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
from flinkray.testing import ManualClock
from tests.rpc.certificates import ray_tls_environment
from tests.streaming.network.networks import (
    PATIENCE,
    Reading,
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


def test_barrier_waiting_to_be_sent_is_reported_when_the_producer_of_its_data_ends() -> None:
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


def test_request_to_a_closed_process_fails_at_once_with_its_name() -> None:
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
