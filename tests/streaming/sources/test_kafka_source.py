"""A source of Kafka, read by programs in one process."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.datastream import ProcessFunction, StreamExecutionEnvironment, WatermarkStrategy
from flinkray.datastream.common import SimpleStringSchema, Time
from flinkray.datastream.connectors.kafka import (
    KafkaConsumerRecord,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecordDeserializationSchema,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicPartition,
)
from flinkray.datastream.formats.json import JsonValueSchema
from flinkray.datastream.window import TumblingEventTimeWindows
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operator_errors import OperatorError
from flinkray.streaming.time.watermarks import PerElementWatermarks
from tests.streaming.kafka.brokers import Broker

EARLIEST, LATEST = KafkaOffsetsInitializer.earliest(), KafkaOffsetsInitializer.latest()


def builder(broker: Broker, *topics: str) -> KafkaSourceBuilder:
    found = (
        KafkaSource.builder()
        .set_bootstrap_servers(broker.servers)
        .set_value_only_deserializer(SimpleStringSchema())
    )
    return found.set_topics(*topics) if topics else found


def bounded(broker: Broker, *topics: str) -> KafkaSourceBuilder:
    return builder(broker, *topics).set_bounded(LATEST)


def read(source: KafkaSource, parallelism: int = 1) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "kafka")
    return list(stream.execute_and_collect())


@pytest.mark.parametrize("parallelism", [1, 2])
def test_bounded_kafka_source_reads_existing_records_in_order(
    each_broker: Broker, parallelism: int
) -> None:
    topic = each_broker.topic(3)
    for partition in range(3):
        each_broker.produce(topic, [f"{partition}:{n}" for n in range(500)], partition)
    found = read(bounded(each_broker, topic).build(), parallelism)
    for partition in range(3):
        own = [value for value in found if value.startswith(f"{partition}:")]
        assert own == [f"{partition}:{n}" for n in range(500)]
    assert len(found) == 1500


def test_empty_partitions_of_a_bounded_source_end_at_once(each_broker: Broker) -> None:
    assert read(bounded(each_broker, each_broker.topic(2)).build()) == []


def test_bounded_source_skips_records_of_aborted_transactions_and_ends(
    broker: Broker,
) -> None:
    topic = broker.topic()
    broker.produce(topic, ["a"])
    with broker.transaction("aborts") as transaction:
        transaction.produce(topic, b"never")
        transaction.flush()
        transaction.abort_transaction()
    assert read(bounded(broker, topic).build()) == ["a"]
    everything = bounded(broker, topic).set_property("isolation.level", "read_uncommitted")
    assert read(everything.build()) == ["a", "never"]


def test_bounded_source_ends_before_an_open_transaction(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, ["a"])
    with broker.transaction("open") as transaction:
        transaction.produce(topic, b"open")
        transaction.flush()
        broker.produce(topic, ["behind"])
        assert read(bounded(broker, topic).build()) == ["a"]
        transaction.commit_transaction()
    assert read(bounded(broker, topic).build()) == ["a", "open", "behind"]


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        (KafkaOffsetsInitializer.earliest(), "abcdef"),
        (KafkaOffsetsInitializer.timestamp(3000), "def"),
        (KafkaOffsetsInitializer.timestamp(99_000), ""),
        (KafkaOffsetsInitializer.latest(), ""),
        (KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST), "ef"),
    ],
)
def test_each_starting_offsets_initializer_begins_at_the_expected_record(
    broker: Broker, starting: KafkaOffsetsInitializer, expected: str
) -> None:
    topic = broker.topic()
    broker.produce(topic, "abcdef", times=[500, 1000, 2000, 3000, 4000, 5000])
    broker.commit("starting", topic, 4)
    source = bounded(broker, topic).set_group_id("starting").set_starting_offsets(starting)
    assert read(source.build()) == list(expected)


def test_partition_without_a_given_offset_uses_the_reset_strategy(broker: Broker) -> None:
    topic = broker.topic(2)
    broker.produce(topic, "abc", 0)
    broker.produce(topic, "xyz", 1)
    begin = KafkaOffsetsInitializer.offsets({KafkaTopicPartition(topic, 0): 1})
    end = KafkaOffsetsInitializer.offsets(
        {KafkaTopicPartition(topic, 0): 2, KafkaTopicPartition(topic, 1): 3}
    )
    source = builder(broker, topic).set_starting_offsets(begin).set_bounded(end)
    assert sorted(read(source.build())) == ["b", "x", "y", "z"]


def test_missing_committed_offset_of_a_group_is_an_error_by_default(
    broker: Broker,
) -> None:
    topic = broker.topic()
    broker.produce(topic, "abc")
    source = bounded(broker, topic).set_group_id("nobody")
    source.set_starting_offsets(KafkaOffsetsInitializer.committed_offsets())
    with pytest.raises(OperatorError, match=f"has committed no offset for {topic}-0"):
        read(source.build())


def test_source_reads_topics_of_a_pattern_or_single_partitions(broker: Broker) -> None:
    one, other = broker.topic(), broker.topic(2)
    broker.produce(one, "a")
    broker.produce(other, "b", 0)
    broker.produce(other, "c", 1)
    pattern = bounded(broker).set_topic_pattern(f"{one}|{other}")
    assert sorted(read(pattern.build())) == ["a", "b", "c"]
    half = bounded(broker).set_topic_pattern(one[:-1])
    assert read(half.build()) == []
    partition = bounded(broker).set_partitions({KafkaTopicPartition(other, 1)})
    assert read(partition.build()) == ["c"]


class AllOfIt(KafkaRecordDeserializationSchema):
    def deserialize(self, record: KafkaConsumerRecord) -> Any:
        return record


def test_deserializer_gets_key_headers_partition_and_offset(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, ["v"], times=[7], key=b"k", headers=[("h", b"1"), ("h", None)])
    source = bounded(broker, topic).set_deserializer(AllOfIt())
    assert read(source.build()) == [
        KafkaConsumerRecord(topic, 0, 0, 7, b"k", b"v", (("h", b"1"), ("h", None)))
    ]


def test_records_have_the_timestamps_of_kafka(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, "ab", times=[1000, 2000])
    env = StreamExecutionEnvironment.get_execution_environment()
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, time: time + 5
    )
    stream = env.from_source(bounded(broker, topic).build(), strategy, "kafka")

    class WithTime(ProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: Any) -> Any:
            yield value, ctx.timestamp()

    assert list(stream.process(WithTime()).execute_and_collect()) == [("a", 1005), ("b", 2005)]


def test_kafka_records_without_a_value_are_skipped(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, ["a"])
    broker.tombstone(topic, b"k")
    broker.produce(topic, ["b"])
    assert read(bounded(broker, topic).build()) == ["a", "b"]


def test_json_values_are_read_from_kafka_and_null_is_skipped(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, ['{"a": 1}', "null", " [2]"])
    source = bounded(broker, topic).set_value_only_deserializer(JsonValueSchema())
    assert read(source.build()) == [{"a": 1}, [2]]


def test_error_about_a_record_that_cannot_be_deserialized_names_its_offset(broker: Broker) -> None:
    class Odd(SimpleStringSchema):
        def deserialize(self, message: bytes) -> str:
            if message == b"c":
                raise ValueError("no such letter")
            return super().deserialize(message)

    topic = broker.topic()
    broker.produce(topic, "abcd")
    source = bounded(broker, topic).set_value_only_deserializer(Odd())
    with pytest.raises(OperatorError, match=f"offset 2 of {topic}-0 .*ValueError: no such letter"):
        read(source.build())


def test_missing_topic_raises_an_error_that_names_the_topic(broker: Broker) -> None:
    with pytest.raises(OperatorError, match="has no topic nowhere"):
        read(bounded(broker, "nowhere").build())
    missing = {KafkaTopicPartition(broker.topic(), 7)}
    with pytest.raises(OperatorError, match=r"has no partition topic-.*-7"):
        read(bounded(broker).set_partitions(missing).build())


def test_unreachable_brokers_raise_an_error_that_names_them() -> None:
    source = bounded(Broker("127.0.0.1:1"), "x").set_property("default.api.timeout.ms", "300")
    with pytest.raises(OperatorError, match=r"127\.0\.0\.1:1 does not tell"):
        read(source.build())


def test_error_about_a_property_unknown_to_librdkafka_names_the_property(broker: Broker) -> None:
    source = bounded(broker, "x").set_property("no.such.property", "5")
    with pytest.raises(OperatorError, match=r"no\.such\.property"):
        read(source.build())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda b: b.set_bootstrap_servers(""), "set_bootstrap_servers"),
        (lambda b: b.set_topics("a").set_topics("b"), "once"),
        (lambda b: b.set_topic_pattern("("), "no pattern"),
        (lambda b: b.set_topics(), "at least one"),
        (lambda b: b.set_partitions(set()), "at least one"),
        (lambda b: b, "set_topics, set_topic_pattern or set_partitions"),
        (
            lambda b: b.set_topics("a").set_starting_offsets(
                KafkaOffsetsInitializer.committed_offsets()
            ),
            "set_group_id",
        ),
        (
            lambda b: b.set_topics("a").set_property("partition.discovery.interval.ms", "soon"),
            "milliseconds, not 'soon'",
        ),
        (
            lambda b: b.set_topics("a").set_property("commit.offsets.on.checkpoint", "maybe"),
            "true or false",
        ),
        (lambda b: KafkaOffsetsInitializer.timestamp(-1), "negative"),
        (
            lambda b: KafkaOffsetsInitializer.offsets({KafkaTopicPartition("a", 0): -3}),
            "a-0 must not be negative",
        ),
    ],
)
def test_invalid_settings_are_refused_when_the_kafka_source_is_built(
    change: Any, complaint: str
) -> None:
    with pytest.raises((StreamError, ValueError), match=complaint):
        change(builder(Broker("127.0.0.1:1"))).build()


def test_kafka_source_without_a_deserializer_is_refused() -> None:
    source = KafkaSource.builder().set_bootstrap_servers("x:1").set_topics("a")
    with pytest.raises(StreamError, match="set_value_only_deserializer"):
        source.build()


def unbounded(source: KafkaSourceBuilder) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    found = source.set_property("partition.discovery.interval.ms", "30").build()
    stream = env.from_source(found, WatermarkStrategy.no_watermarks(), "kafka")
    return stream.execute_and_collect()


def test_partition_added_at_run_time_is_read_from_its_beginning(
    broker: Broker,
) -> None:
    topic = broker.topic()
    broker.produce(topic, "a")
    with unbounded(builder(broker, topic)) as found:
        assert next(found) == "a"
        broker.grow(topic, 2)
        broker.produce(topic, "bc", partition=1)
        assert [next(found), next(found)] == ["b", "c"]
        broker.produce(topic, "d", partition=0)
        assert next(found) == "d"


def test_starting_offsets_do_not_apply_to_topics_found_later(broker: Broker) -> None:
    topic = broker.topic()
    broker.produce(topic, "ax")
    starting = KafkaOffsetsInitializer.offsets(
        {KafkaTopicPartition(topic, 0): 1}, KafkaOffsetResetStrategy.LATEST
    )
    source = builder(broker).set_topic_pattern(f"{topic}.*").set_starting_offsets(starting)
    with unbounded(source) as found:
        assert next(found) == "x"
        broker.create(f"{topic}-later")
        broker.produce(f"{topic}-later", "bc")
        assert [next(found), next(found)] == ["b", "c"]
        broker.produce(topic, "d")
        assert next(found) == "d"


def test_partition_far_ahead_makes_no_record_of_another_partition_late(each_broker: Broker) -> None:
    """The partitions are 100 seconds apart, and a watermark follows each record."""
    topic = each_broker.topic(2)
    each_broker.produce(topic, [f"{n}" for n in range(50)], 0, times=range(1000, 1050))
    each_broker.produce(topic, [f"{n}" for n in range(50)], 1, times=range(101_000, 101_050))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    strategy = WatermarkStrategy.for_generator(PerElementWatermarks)
    stream = env.from_source(bounded(each_broker, topic).build(), strategy, "kafka")
    windows = stream.map(lambda _: 1).window_all(TumblingEventTimeWindows.of(Time.seconds(10)))
    assert sorted(windows.reduce(lambda a, b: a + b).execute_and_collect()) == [50, 50]
