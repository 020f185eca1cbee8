"""Writers divide batches among their consumers, and merge and flush small batches."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from flinkray.streaming.errors import UnpicklableRecordsError
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.network import (
    ChannelSource,
    NetworkEnvironment,
    NetworkInputGate,
    NetworkSettings,
    PartitionWriter,
    ProducerLostError,
    register_input,
    register_output,
)
from flinkray.streaming.records.elements import (
    END_OF_INPUT,
    MAX_TIMESTAMP,
    Barrier,
    Block,
    Columns,
    Element,
    Watermark,
)
from flinkray.streaming.records.partitioners import RebalancePartitioner
from flinkray.testing import ManualClock
from tests.streaming.network.networks import Reading, network, numbers


def test_writer_divides_batches_among_consumers_and_sends_watermarks_to_all() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partition = producer.create_partition("p", "Source", 2, buffer_timeout=None)
        partitioner = RebalancePartitioner()
        partitioner.setup(2, 128, 0)
        writer = PartitionWriter(partition, partitioner)
        for first in range(0, 100, 10):
            writer.process_block(Block(list(range(first, first + 10))))
            writer.flush_when_idle()  # the task has nothing to do: that is no reason to send
        writer.process_columns(numbers(10))
        writer.process_watermark(5)
        assert partition.metrics().queued_buffers == 0
        writer.end_of_input()
        values: list[int] = []
        for index in range(2):
            source = ChannelSource("p", index, producer.address)
            block, columns, watermark = Reading(consumer.create_gate("Sink", [source])).rest()
            assert isinstance(block, Block)
            assert isinstance(columns, Columns)
            assert watermark == Watermark(5)
            assert len(columns) == 5
            values += block.values
        assert sorted(values) == list(range(100))


def test_of_adjacent_waiting_watermarks_only_the_greatest_is_sent() -> None:
    with network() as make:
        producer, consumer = make("producer"), make("consumer")
        partition = producer.create_partition("p", "Source", 1, buffer_timeout=None)
        (subpartition,) = partition.subpartitions
        for timestamp in (3, MAX_TIMESTAMP, 5):
            subpartition.put(Watermark(timestamp))
        subpartition.put(END_OF_INPUT)
        gate = consumer.create_gate("Sink", [ChannelSource("p", 0, producer.address)])
        assert Reading(gate).rest() == [Watermark(MAX_TIMESTAMP)]


def test_writer_has_no_room_when_any_of_its_channels_is_full() -> None:
    settings = NetworkSettings(segment_size=4096, max_buffers_per_channel=2)
    with network() as make:
        partition = make("producer", settings=settings).create_partition(
            "p", "Source", 2, buffer_timeout=0
        )
        partitioner = RebalancePartitioner()
        partitioner.setup(2, 128, 0)
        writer = PartitionWriter(partition, partitioner)
        assert writer.has_room()
        partition.subpartitions[1].put(numbers(2000))
        assert not writer.has_room()


def test_network_metrics_have_the_names_of_flink() -> None:
    with network() as make:
        process = make("process")
        partition = process.create_partition("p", "Source", 1, buffer_timeout=0)
        gate = process.create_gate("Sink", [ChannelSource("p", 0, process.address)])
        metrics = MetricGroup(("task",))
        register_output(metrics, partition.metrics)
        register_input(metrics, gate.metrics)
        gate.request()
        partition.subpartitions[0].put(Block([1, 2]))
        partition.subpartitions[0].put(Block([3]))
        gate.poll()
        shown = {name: gauge.get_value() for name, gauge in metrics.all().items()}
        assert shown["task.numRecordsIn"] == 2
        assert shown["task.numRecordsOut"] == 2
        assert shown["task.numBytesIn"] == shown["task.numBytesOut"] > 0
        assert shown["task.numBuffersIn"] == 1
        assert shown["task.buffers.outputQueueLength"] == 1
        assert shown["task.buffers.outputQueueSize"] > 0
        assert shown["task.backPressuredTimeMs"] == 0


class _InOneProcess:
    """A partition that is read in its own process: nothing is under way."""

    def __init__(self, process: NetworkEnvironment, timeout: float | None) -> None:
        partition = process.create_partition("p", "Source", 1, buffer_timeout=timeout)
        self.put = partition.subpartitions[0].put
        self.flush = partition.flush
        self._gate: NetworkInputGate = process.create_gate(
            "Sink", [ChannelSource("p", 0, process.address)]
        )
        self._gate.request()

    def came(self) -> list[Element]:
        elements = []
        while (polled := self._gate.poll()) is not None:
            elements.append(polled[1])
        return elements


def test_small_batches_wait_for_the_buffer_timeout_and_arrive_as_one_batch() -> None:
    clock = ManualClock()
    with network() as make:
        process = make("process", clock=clock, manual_timers=True)
        channel = _InOneProcess(process, 0.1)
        channel.put(Block([1], [10], ["a"]))
        clock.advance(0.06)
        channel.put(Block([2, 3], [20, 30], ["b", "c"]))
        process.timers.run_due()
        assert channel.came() == []
        clock.advance(0.04)
        process.timers.run_due()
        (block,) = channel.came()
        assert isinstance(block, Block)
        assert (block.values, block.timestamps, block.keys) == (
            [1, 2, 3],
            [10, 20, 30],
            ["a", "b", "c"],
        )


def test_buffer_timeout_restarts_with_the_first_batch_after_a_flush() -> None:
    clock = ManualClock()
    with network() as make:
        process = make("process", clock=clock, manual_timers=True)
        channel = _InOneProcess(process, 0.1)
        channel.put(Block([1]))
        clock.advance(0.05)
        channel.flush()
        assert len(channel.came()) == 1
        channel.put(Block([2]))
        clock.advance(0.05)
        process.timers.run_due()
        assert channel.came() == []
        clock.advance(0.05)
        process.timers.run_due()
        assert len(channel.came()) == 1


def test_batch_that_cannot_be_sent_fails_only_its_own_writer() -> None:
    """Other partitions of the process continue."""
    clock = ManualClock()
    with network() as make:
        process = make("process", clock=clock, manual_timers=True)
        partition = process.create_partition("q", "Source", 1, buffer_timeout=0.1)
        told: list[None] = []
        partition.listen(lambda: told.append(None))
        partition.subpartitions[0].put(Block([threading.Lock()]))
        other = _InOneProcess(process, 0.1)
        other.put(Block([1]))
        clock.advance(0.1)
        process.timers.run_due()
        assert told == [None]
        with pytest.raises(UnpicklableRecordsError, match="lock"):
            partition.has_room()
        assert len(other.came()) == 1
        partition.fail("its task has failed")
        gate = process.create_gate("Sink", [ChannelSource("q", 0, process.address)])
        gate.request()
        with pytest.raises(ProducerLostError, match="its task has failed"):
            Reading(gate).next()


def test_buffer_timeout_of_zero_sends_every_batch_at_once() -> None:
    with network() as make:
        channel = _InOneProcess(make("process", manual_timers=True), 0)
        channel.put(Block([1]))
        assert len(channel.came()) == 1


def test_without_buffer_timeout_only_full_segments_are_sent() -> None:
    clock = ManualClock()
    with network() as make:
        process = make(
            "process",
            clock=clock,
            manual_timers=True,
            settings=NetworkSettings(segment_size=4096),
        )
        channel = _InOneProcess(process, None)
        channel.put(numbers(100))
        clock.advance(3600)
        process.timers.run_due()
        assert channel.came() == []
        for _ in range(5):
            channel.put(numbers(100))
        (columns,) = channel.came()
        assert isinstance(columns, Columns)
        assert len(columns) == 600


def test_only_the_last_of_adjacent_watermarks_is_sent_between_its_batches() -> None:
    with network() as make:
        channel = _InOneProcess(make("process", manual_timers=True), 0.1)
        for element in (Block([1]), Watermark(1), Watermark(2), Block([2]), Block([3])):
            channel.put(element)
        channel.flush()
        first, watermark, last = channel.came()
        assert isinstance(first, Block)
        assert first.values == [1]
        assert watermark == Watermark(2)
        assert isinstance(last, Block)
        assert last.values == [2, 3]


def test_barrier_flushes_the_batches_before_the_barrier() -> None:
    with network() as make:
        channel = _InOneProcess(make("process", manual_timers=True), None)
        channel.put(Block([1]))
        channel.put(Barrier(1, 0))
        assert [type(element) for element in channel.came()] == [Block, Barrier]


def test_large_batch_is_sent_at_once_and_not_copied() -> None:
    with network() as make:
        channel = _InOneProcess(make("process", manual_timers=True), None)
        channel.put(numbers(1))
        large = numbers(100_000)
        channel.put(large)
        small, came = channel.came()
        assert isinstance(small, Columns)
        assert came is large


def test_batches_with_different_columns_or_timestamps_are_not_merged() -> None:
    with network() as make:
        channel = _InOneProcess(make("process", manual_timers=True), None)
        channel.put(Columns(pa.record_batch({"n": [1]})))
        channel.put(Columns(pa.record_batch({"m": [1]})))
        channel.put(Columns(pa.record_batch({"m": [2]}), scalar=True))
        channel.put(Block([1]))
        channel.put(Block([1], [5]))
        channel.flush()
        assert len(channel.came()) == 5


def test_watermark_is_sent_in_one_buffer_with_the_next_large_batch() -> None:
    with network() as make:
        process = make("process")
        partition = process.create_partition("p", "Source", 1, buffer_timeout=None)
        (channel,) = partition.subpartitions
        for time in range(3):
            channel.put(numbers(50_000))
            channel.put(Watermark(time))
        channel.put(Barrier(1, 0))
        reading = Reading(process.create_gate("Sink", [ChannelSource("p", 0, process.address)]))
        came = [reading.next()[1] for _ in range(7)]
        kinds = [type(element) for element in came]
        assert kinds == [Columns, Watermark, Columns, Watermark, Columns, Watermark, Barrier]
        assert [e.timestamp for e in came if isinstance(e, Watermark)] == [0, 1, 2]
        # three batches, the last watermark, and the barrier
        assert partition.metrics().buffers == 5


def test_waiting_small_batch_and_watermark_arrive_before_the_next_large_batch() -> None:
    with network() as make:
        process = make("process")
        partition = process.create_partition("p", "Source", 1, buffer_timeout=None)
        (channel,) = partition.subpartitions
        channel.put(numbers(3))
        channel.put(Watermark(1))
        channel.put(numbers(50_000))
        reading = Reading(process.create_gate("Sink", [ChannelSource("p", 0, process.address)]))
        came = [reading.next()[1] for _ in range(3)]
        assert [type(element) for element in came] == [Columns, Watermark, Columns]
        assert [len(e) for e in came if isinstance(e, Columns)] == [3, 50_000]
        assert partition.metrics().buffers == 2
