"""A task's writer in front of a partition, and the figures that the task shows."""

from __future__ import annotations

from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.network import (
    ChannelSource,
    NetworkSettings,
    PartitionWriter,
    register_input,
    register_output,
)
from flinkray.streaming.records.elements import (
    END_OF_INPUT,
    MAX_TIMESTAMP,
    Block,
    Columns,
    Watermark,
)
from flinkray.streaming.records.partitioners import RebalancePartitioner
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
