"""A source of Kafka in jobs of a cluster: each record once and in order, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.datastream import WatermarkStrategy
from flinkray.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaTopicPartition,
)
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.datastream.tallies import expected, first_numbers, tallied
from tests.datastream.test_cluster_checkpoints import CONFIGURATION, on, wait_for_another
from tests.datastream.threads import none_left
from tests.streaming.kafka.brokers import Broker
from tests.streaming.sinks.test_kafka_sink import sink_to
from tests.streaming.sources.test_kafka_source import builder


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    """One of its own: nothing of what it has started may be left."""
    with (
        none_left(),
        threaded_cluster(str(tmp_path / "cluster"), configuration=CONFIGURATION) as cluster,
    ):
        yield cluster


COUNT = 6000
HALF = COUNT // 2


def source_of(broker: Broker, topic: str, ends: dict[int, int]) -> KafkaSource:
    """Up to these offsets of partitions, which need not be there yet."""
    offsets = {KafkaTopicPartition(topic, n): end for n, end in ends.items()}
    found = builder(broker, topic).set_group_id(topic)
    found.set_property("partition.discovery.interval.ms", "50")
    return found.set_unbounded(KafkaOffsetsInitializer.offsets(offsets)).build()


@pytest.mark.parametrize("kind", ["TaskProcess", "StreamCoordinator", "JobMaster"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_nothing_is_lost_doubled_or_out_of_order(
    kind: str, parallelism: int, broker: Broker, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: partitions are written while the job runs and is killed."""
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    topic = broker.topic(2)
    end = {KafkaTopicPartition(topic, 0): HALF, KafkaTopicPartition(topic, 1): HALF}
    source = builder(broker, topic).set_group_id(topic)
    source.set_bounded(KafkaOffsetsInitializer.offsets(end))
    env = on(cluster, checkpoints, parallelism)
    numbers = env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "kafka")
    ints = numbers.uid("kafka").map(int).uid("int")
    results = tallied(ints, COUNT, witness).execute_and_collect()
    parts = 3
    for part in range(parts):
        numbers_of_part = range(part * HALF // parts, (part + 1) * HALF // parts)
        broker.produce(topic, map(str, numbers_of_part), 0)
        broker.produce(topic, (str(HALF + n) for n in numbers_of_part), 1)
        if part < parts - 1:
            wait_for_another(checkpoints)
            wait_for_another(checkpoints)  # it has what was written, and its pointer is stored
            cluster.crash(kind)
    assert set(results) == expected(COUNT)
    begun = first_numbers(witness)
    assert any(len(of_subtask) > 1 for of_subtask in begun), "it did not notice"


@pytest.mark.parametrize("kind", ["TaskProcess", "JobMaster"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_from_kafka_to_kafka_each_record_is_there_once(
    kind: str, parallelism: int, broker: Broker, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: through the transactions of a sink that is killed between two of them."""
    checkpoints = tmp_path / "checkpoints"
    topic, target = broker.topic(2), broker.topic()
    count, parts = 900, 3
    end = {KafkaTopicPartition(topic, n): count for n in (0, 1)}
    source = builder(broker, topic).set_bounded(KafkaOffsetsInitializer.offsets(end)).build()
    env = on(cluster, checkpoints, parallelism)
    values = env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka").uid("kafka")
    values.sink_to(sink_to(broker, target)).uid("sink")
    job = cluster.client.job(env.execute_async("kafka to kafka").get_job_id())
    for part in range(parts):
        numbers = range(part * count // parts, (part + 1) * count // parts)
        for partition in (0, 1):
            broker.produce(topic, (f"{partition}:{n}" for n in numbers), partition)
        if part < parts - 1:
            wait_for_another(checkpoints)
            wait_for_another(checkpoints)
            cluster.crash(kind)
    job.wait()
    written = broker.read(target)[0]
    for partition in (0, 1):
        own = [value for value in written if value.startswith(f"{partition}:")]
        assert own == [f"{partition}:{n}" for n in range(count)]
    assert len(written) == 2 * count
