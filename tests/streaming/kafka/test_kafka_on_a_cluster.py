"""A source of Kafka in jobs of a cluster: each record once and in order, whatever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.datastream import Configuration, WatermarkStrategy
from flinkray.datastream.connectors import FileSink
from flinkray.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaTopicPartition,
)
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.tallies import expected, first_numbers, tallied
from tests.datastream.test_cluster_checkpoints import on, wait_for_another
from tests.datastream.threads import none_left
from tests.streaming.kafka.brokers import Broker
from tests.streaming.sinks.test_kafka_sink import sink_to
from tests.streaming.sources.test_kafka_source import builder


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    """One of its own: nothing of what it has started may be left."""
    with (
        none_left(),
        threaded_cluster(str(tmp_path / "cluster"), configuration=QUICK_RESTARTS) as cluster,
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
def test_records_from_kafka_are_counted_once_and_in_order_despite_kills(
    kind: str, parallelism: int, broker: Broker, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: records are produced while the job runs and its processes are killed."""
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
    begins_anew = kind == "TaskProcess"  # others go on where they were
    assert any(len(of_subtask) > 1 for of_subtask in begun) == begins_anew


@pytest.mark.parametrize("kind", ["TaskProcess", "JobMaster"])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_each_record_is_written_once_from_kafka_to_kafka_despite_kills(
    kind: str, parallelism: int, broker: Broker, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: the sink is killed between two of its transactions."""
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


@pytest.mark.smoke
def test_rescaling_through_savepoints_neither_loses_nor_doubles_records(
    broker: Broker, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-01: with a source of Kafka, files and transactions, of one subtask, then two, then one.
    Each job is stopped when it has records that were written after its latest checkpoint."""
    topic, target, files = broker.topic(3), broker.topic(), tmp_path / "files"
    of_a_part, partitions = 200, (0, 1, 2)
    runs = (1, 2, 1)
    count = len(runs) * of_a_part
    end = {KafkaTopicPartition(topic, n): count for n in partitions}
    savepoint = ""
    for run, parallelism in enumerate(runs):
        checkpoints = tmp_path / f"checkpoints-{run}"
        env = on(cluster, checkpoints, parallelism)
        env.configure(Configuration.from_dict({"execution.state-recovery.path": savepoint}))
        source = builder(broker, topic).set_bounded(KafkaOffsetsInitializer.offsets(end)).build()
        values = env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka").uid("kafka")
        values.sink_to(FileSink(files)).uid("files")
        values.rebalance().sink_to(sink_to(broker, target)).uid("sink")
        job = cluster.client.job(env.execute_async("rescaled").get_job_id())
        first, middle, last = (run * of_a_part + n for n in (0, of_a_part // 2, of_a_part))
        for begin, stop in ((first, middle), (middle, last)):
            for partition in partitions:
                part = (f"{partition}:{n}" for n in range(begin, stop))
                broker.produce(topic, part, partition)
            if last < count:
                wait_for_another(checkpoints)
        if last < count:
            savepoint = job.stop_with_savepoint(str(tmp_path / "savepoints"))
        job.result(300)
    expected_values = sorted(f"{partition}:{n}" for partition in partitions for n in range(count))
    assert sorted(broker.read(target)[0]) == expected_values
    seen = [path for path in files.iterdir() if path.name[0] != "."]
    assert sorted(line for path in seen for line in path.read_text().split()) == expected_values


def test_added_partitions_are_read_despite_kills_and_rescaling(
    broker: Broker, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04: partitions added while the job runs, and while it does not run."""
    topic, files, savepoint = broker.topic(1), tmp_path / "files", ""
    written: list[str] = []

    def write(partitions: int, part: int) -> None:
        """Into all that there are by then; returns when all is seen."""
        broker.grow(topic, partitions)
        for partition in range(partitions):
            values = [f"{partition}:{part}:{n}" for n in range(50)]
            broker.produce(topic, values, partition)
            written.extend(values)

    def seen() -> list[str]:
        visible = [path for path in files.iterdir() if path.name[0] != "."]
        return [line for path in visible for line in path.read_text().split()]

    for run, parallelism in enumerate((1, 3)):
        checkpoints = tmp_path / f"checkpoints-{run}"
        env = on(cluster, checkpoints, parallelism)
        env.configure(Configuration.from_dict({"execution.state-recovery.path": savepoint}))
        values = env.from_source(
            source_of(broker, topic, dict.fromkeys(range(6), 10**9)),
            WatermarkStrategy.no_watermarks(),
            "kafka",
        )
        values.uid("kafka").sink_to(FileSink(files)).uid("files")
        job = cluster.client.job(env.execute_async("grows").get_job_id())
        wait_for_another(checkpoints)
        write(2 + 3 * run, 2 * run)
        cluster.crash("TaskProcess")
        write(3 + 3 * run, 2 * run + 1)
        wait_until(lambda: len(seen()) >= len(written), 300, "all that was written")
        savepoint = job.stop_with_savepoint(str(tmp_path / "savepoints"))
    assert sorted(seen()) == sorted(written)
