"""A sink of Kafka: what comes of it when it is killed, fenced, refused or restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.datastream.common import SimpleStringSchema
from flinkray.datastream.connectors.kafka import (
    DeliveryGuarantee,
    KafkaProducerRecord,
    KafkaRecordSerializationSchema,
    KafkaRecordSerializationSchemaBuilder,
    KafkaSink,
    KafkaTopicSelector,
)
from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka import committer as committing
from flinkray.streaming.kafka.client import KafkaError, KafkaException
from flinkray.streaming.kafka.committer import CommitHistory, KafkaCommittable, KafkaCommitter
from flinkray.streaming.kafka.sink import TransactionalWriter, why_refused
from flinkray.streaming.records.elements import Barrier, Block
from flinkray.streaming.sinks.sink import CommitOutcome, CommitRequest, SinkError, WriterContext
from flinkray.streaming.sinks.sink_operators import SinkWriterOperator
from flinkray.streaming.time.time_service import ProcessingTimeService
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.operator_harness import OperatorHarness
from tests.streaming.kafka.brokers import Broker
from tests.streaming.sinks.sink_harness import SinkHarness

EXACTLY_ONCE = DeliveryGuarantee.EXACTLY_ONCE


class ToPartition(KafkaRecordSerializationSchema):
    """Values as they are."""

    def __init__(self, topic: str, partition: int = 0) -> None:
        self.topic = topic
        self.partition = partition

    def serialize_record(self, element: Any, timestamp: int | None) -> KafkaProducerRecord:
        return KafkaProducerRecord(self.topic, element.encode(), partition=self.partition)


def sink_to(
    broker: Broker, topic: str, guarantee: DeliveryGuarantee = EXACTLY_ONCE, **properties: str
) -> KafkaSink:
    found = KafkaSink.builder().set_bootstrap_servers(broker.servers)
    found.set_record_serializer(ToPartition(topic)).set_delivery_guarantee(guarantee)
    found.set_transactional_id_prefix(f"sink-{topic}")
    for key, value in properties.items():
        found.set_property(key.replace("_", "."), value)
    return found.build()


def seen(broker: Broker, topic: str) -> list[str]:
    return broker.read(topic)[0]


class Lane:
    """A writer's committables, and committers of them."""

    def __init__(self, broker: Broker, topic: str, name: str = "") -> None:
        self.broker = broker
        self.topic = topic
        self.name = name or f"lane-{topic}"
        self.writer = self.new_writer("run")

    def new_writer(self, run: str) -> TransactionalWriter:
        return TransactionalWriter(self.name, run, ToPartition(self.topic).serialize_record)

    def prepare(
        self, values: str | list[str], writer: TransactionalWriter | None = None
    ) -> KafkaCommittable:
        writer = writer or self.writer
        writer.write(Block(list(values)))
        (committable,) = writer.prepare_commit(False)
        return committable

    def committer(
        self, own: bool = True, properties: Mapping[str, str] | None = None
    ) -> KafkaCommitter:
        settings = {"bootstrap.servers": self.broker.servers, **(properties or {})}
        return KafkaCommitter(settings, self.name if own else None)


def outcomes(committer: KafkaCommitter, *committables: KafkaCommittable) -> list[CommitOutcome]:
    requests = [CommitRequest(committable) for committable in committables]
    committer.commit(requests)
    return [request.outcome for request in requests]


COMMITTED, ALREADY = CommitOutcome.COMMITTED, CommitOutcome.ALREADY_COMMITTED
RETRY, FAILED = CommitOutcome.RETRY, CommitOutcome.FAILED


# --- exactly once ---------------------------------------------------------------------------------


def test_records_are_visible_only_when_their_checkpoint_is_complete(broker: Broker) -> None:
    topic = broker.topic()
    h = SinkHarness(sink_to(broker, topic))
    h.process("a", "b")
    assert seen(broker, topic) == []
    h.checkpoint()
    h.process("c")
    assert seen(broker, topic) == []
    h.complete()
    assert seen(broker, topic) == ["a", "b"]
    h.finish()
    assert seen(broker, topic) == ["a", "b", "c"]
    h.close()


def test_restored_sink_commits_only_the_records_of_its_checkpoint(
    broker: Broker,
) -> None:
    topic = broker.topic()
    h = SinkHarness(sink_to(broker, topic))
    h.process("a", "b")
    state = h.checkpoint()
    h.process("lost")
    h.checkpoint()
    h.close()
    again = SinkHarness(sink_to(broker, topic), state)
    assert seen(broker, topic) == ["a", "b"]
    again.process("c")
    again.finish()
    assert seen(broker, topic) == ["a", "b", "c"]
    again.close()
    SinkHarness(sink_to(broker, topic), state).close()  # a job that goes back: all is there already
    assert seen(broker, topic) == ["a", "b", "c"]


def test_kafka_committable_of_several_chunks_keeps_the_order_of_its_records(broker: Broker) -> None:
    topic = broker.topic()
    values = [f"{n:05}" + "x" * 200 for n in range(4000)]
    h = SinkHarness(sink_to(broker, topic))
    h.process(*values)
    state = h.checkpoint()
    operator: Any = h.committer.operator
    (stored,) = operator._committables._pending
    assert len(stored.request.committable.chunks) > 2
    assert "x" * 200 not in repr(state.committer) + repr(stored.request.committable)
    h.complete()
    assert seen(broker, topic) == values
    h.close()


def test_restarted_kafka_committer_skips_transactions_committed_before_a_kill(
    broker: Broker,
) -> None:
    topic = broker.topic()
    lane = Lane(broker, topic)
    first, second = lane.prepare("ab"), lane.prepare("cd")
    assert outcomes(lane.committer(), first) == [COMMITTED]  # and is never closed: it is killed
    assert outcomes(lane.committer(), first, second) == [ALREADY, COMMITTED]
    assert outcomes(lane.committer(own=False), second, first) == [ALREADY, ALREADY]
    assert seen(broker, topic) == list("abcd")


def test_kafka_commit_with_the_number_of_another_writers_commit_is_not_skipped(
    broker: Broker,
) -> None:
    """A job that restarts from an earlier checkpoint writes new records with a new writer."""
    topic = broker.topic()
    lane = Lane(broker, topic)
    assert outcomes(lane.committer(), lane.prepare("a"), lane.prepare("b")) == [COMMITTED] * 2
    another = lane.prepare("x", lane.new_writer("another"))
    assert outcomes(lane.committer(), another) == [COMMITTED]
    assert seen(broker, topic) == ["a", "b", "x"]


def test_transaction_of_a_dead_attempt_is_aborted(broker: Broker) -> None:
    topic = broker.topic()
    lane = Lane(broker, topic)
    with broker.transaction(lane.name) as dead:
        dead.produce(topic, b"half", partition=0)
        dead.flush()
        broker.produce(topic, ["behind"])
        assert seen(broker, topic) == []  # they wait for the open transaction
        lane.committer().close()
        assert seen(broker, topic) == ["behind"]


def test_fenced_kafka_committer_retries_and_skips_what_the_next_attempt_committed(
    broker: Broker,
) -> None:
    """Its process stood still while the next attempt committed the same transactions."""
    topic = broker.topic()
    lane = Lane(broker, topic)
    stalled = lane.committer()
    assert outcomes(stalled, lane.prepare("a")) == [COMMITTED]
    first, second = lane.prepare("b"), lane.prepare("c")
    assert outcomes(lane.committer(), first) == [COMMITTED]
    assert outcomes(stalled, first, second) == [RETRY, RETRY]  # it was fenced
    assert outcomes(stalled, first, second) == [ALREADY, COMMITTED]
    assert seen(broker, topic) == ["a", "b", "c"]


@pytest.mark.parametrize("step", ["produce", "flush", "send_offsets_to_transaction"])
def test_kafka_commit_repeated_after_a_crash_in_a_transaction_has_no_duplicates(
    step: str, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    lane = Lane(broker, topic)
    committable = lane.prepare("abc")
    dying = lane.committer()

    class DiesAt:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            if name == step:
                self.inner.flush()
                raise KeyboardInterrupt
            return getattr(self.inner, name)

    producer = dying._sessions[lane.name]._producer
    monkeypatch.setattr(producer, "inner", DiesAt(producer.inner))
    with pytest.raises(KeyboardInterrupt):
        outcomes(dying, committable)
    assert outcomes(lane.committer(), committable) == [COMMITTED]
    assert seen(broker, topic) == ["a", "b", "c"]


def test_kafka_commit_whose_answer_was_lost_counts_as_committed_at_its_retry(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic()
    lane = Lane(broker, topic)
    committer = lane.committer()
    producer = committer._sessions[lane.name]._producer
    timed_out = KafkaException(KafkaError(KafkaError._TIMED_OUT))

    class LosesAnswer:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            if name != "commit_transaction":
                return getattr(self.inner, name)

            def commit(timeout: float) -> None:
                self.inner.commit_transaction(timeout)
                raise timed_out

            return commit

    monkeypatch.setattr(producer, "inner", LosesAnswer(producer.inner))
    first, second = lane.prepare("a"), lane.prepare("b")
    assert outcomes(committer, first, second) == [RETRY, RETRY]  # the order is kept
    assert outcomes(committer, second) == [RETRY]
    assert outcomes(committer, first, second) == [ALREADY, COMMITTED]
    assert seen(broker, topic) == ["a", "b"]


def test_committables_of_one_kafka_writer_are_committed_once_by_two_committers(
    broker: Broker,
) -> None:
    """This happens after a restart with another parallelism."""
    topic = broker.topic()
    lane = Lane(broker, topic)
    parts = [lane.prepare(value) for value in "abcd"]
    one, other = lane.committer(own=False), lane.committer(own=False)
    assert outcomes(one, parts[1], parts[3]) == [COMMITTED, COMMITTED]
    assert outcomes(other, parts[0], parts[2]) == [COMMITTED, COMMITTED]
    assert outcomes(lane.committer(), *parts) == [ALREADY] * 4
    assert sorted(seen(broker, topic)) == list("abcd")


def test_record_larger_than_kafka_accepts_fails_its_commit(broker: Broker) -> None:
    lane = Lane(broker, broker.topic())
    request = CommitRequest(lane.prepare(["x" * 2000]))
    lane.committer(properties={"message.max.bytes": "1000"}).commit([request])
    assert request.outcome is FAILED
    assert "a transaction of 1 records as 'lane-" in str(request.reason)
    assert "MSG_SIZE_TOO_LARGE" in str(request.reason)


def test_consumer_group_of_another_application_is_not_overwritten(broker: Broker) -> None:
    topic = broker.topic()
    lane = Lane(broker, topic)
    broker.commit(lane.name, topic, 3, metadata="of another application")
    with pytest.raises(StreamError, match="not written by a Kafka sink"):
        outcomes(lane.committer(), lane.prepare("a"))


def test_unreachable_broker_raises_an_error_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committing, "_TIMEOUT", 0.3)
    with pytest.raises(SinkError, match="cannot begin transactions as 'x-0'"):
        KafkaCommitter({"bootstrap.servers": "127.0.0.1:1"}, "x-0")


def test_program_without_checkpoints_commits_to_kafka_at_its_end(broker: Broker) -> None:
    topic = broker.topic()
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.from_collection(list("abcd")).sink_to(sink_to(broker, topic))
    env.execute()
    assert sorted(seen(broker, topic)) == list("abcd")


# --- what is known of commits ---------------------------------------------------------------------


def test_kafka_commit_history_contains_commits_made_in_any_order() -> None:
    history = CommitHistory()
    for run, number in [("a", 1), ("a", 4), ("a", 3), ("b", 1), ("a", 6)]:
        assert not history.has(run, number)
        history = history.plus(run, number)
    assert history.text() == "b:1 a:1+3+4+6"
    again = CommitHistory.parse(history.text())
    assert again == history
    assert [n for n in range(1, 9) if again.has("a", n)] == [1, 3, 4, 6]
    assert again.plus("a", 2).text() == "b:1 a:4+6"


def test_kafka_commit_history_forgets_the_writers_whose_commits_are_oldest() -> None:
    history = CommitHistory()
    for number in range(20):
        history = history.plus(f"{number:016x}", 1)
        history = history.plus("f" * 16, number + 1)
    assert len(history.runs) == 16
    assert history.has("f" * 16, 20)
    assert history.has(f"{19:016x}", 1)
    assert not history.has(f"{3:016x}", 1)
    assert len(history.text()) < 4096


# --- the others -----------------------------------------------------------------------------------


class DirectHarness(OperatorHarness):
    """A sink that has no committer."""

    def __init__(self, sink: KafkaSink) -> None:
        assert not sink.has_committer
        super().__init__(SinkWriterOperator(sink))

    def checkpoint(self) -> None:
        self.operator.prepare_snapshot_pre_barrier(Barrier(1, 0))
        self.snapshot(1)


def test_at_least_once_sink_flushes_all_records_before_a_checkpoint(each_broker: Broker) -> None:
    topic = each_broker.topic()
    sink = sink_to(each_broker, topic, DeliveryGuarantee.AT_LEAST_ONCE, linger_ms="60000")
    h = DirectHarness(sink)
    h.process("a", "b")
    assert seen(each_broker, topic) == []  # it lingers
    h.checkpoint()
    assert seen(each_broker, topic) == ["a", "b"]
    h.close()


def test_kafka_sink_without_guarantee_flushes_only_at_the_end(each_broker: Broker) -> None:
    topic = each_broker.topic()
    sink = sink_to(each_broker, topic, DeliveryGuarantee.NONE, linger_ms="60000")
    h = DirectHarness(sink)
    h.process("a", "b")
    h.checkpoint()
    assert seen(each_broker, topic) == []
    h.finish()
    assert seen(each_broker, topic) == ["a", "b"]
    h.close()


def test_record_that_kafka_refuses_fails_the_writer(broker: Broker) -> None:
    sink = sink_to(broker, "t", DeliveryGuarantee.AT_LEAST_ONCE, message_max_bytes="1000")
    h = DirectHarness(sink)
    with pytest.raises(SinkError, match=r"made of 'xxx.*: it has 2036 bytes, .* allows 1000"):
        h.process("x" * 2000)
    h.close()


def test_undelivered_record_fails_the_next_checkpoint() -> None:
    nowhere = Broker("127.0.0.1:1")
    sink = sink_to(nowhere, "t", DeliveryGuarantee.AT_LEAST_ONCE, message_timeout_ms="100")
    h = DirectHarness(sink)
    h.process("a")
    with pytest.raises(SinkError, match=r"does not take a record: .*_MSG_TIMED_OUT"):
        h.checkpoint()
    h.close()


# --- records that no producer takes ---------------------------------------------------------------


class AsTheyAre(KafkaRecordSerializationSchema):
    """The stream has records already."""

    def serialize_record(self, element: Any, timestamp: int | None) -> KafkaProducerRecord:
        return element  # type: ignore[no-any-return]


def sink_of_records(broker: Broker, guarantee: DeliveryGuarantee, **properties: str) -> KafkaSink:
    found = KafkaSink.builder().set_bootstrap_servers(broker.servers)
    found.set_record_serializer(AsTheyAre()).set_delivery_guarantee(guarantee)
    found.set_transactional_id_prefix("records")
    for key, value in properties.items():
        found.set_property(key.replace("_", "."), value)
    return found.build()


Record = KafkaProducerRecord
REFUSED: list[tuple[Any, str]] = [
    (None, "has to be a KafkaProducerRecord, and is None"),
    (("t", b"", None, None, None, ()), r"has to be a KafkaProducerRecord, and is \('t'"),
    (Record(5, b""), "its topic is 5"),  # type: ignore[arg-type]
    *((Record(topic, b""), "its topic is '") for topic in ("", ".", "..", "a b", "ä", "t" * 250)),
    (Record("t", 5), "its value has to be bytes or None, and is 5"),  # type: ignore[arg-type]
    (Record("t", b"", bytearray(b"k")), "its key has to be bytes or None"),  # type: ignore[arg-type]
    (Record("t", b"", partition="0"), "its partition has .* is '0'"),  # type: ignore[arg-type]
    (Record("t", b"", partition=-2), "its partition has .* is -2"),
    (Record("t", b"", partition=1 << 31), "its partition has .* is 2147483648"),
    (Record("t", b"", timestamp=-1), "its timestamp has .* is -1"),
    (Record("t", b"", timestamp=1 << 63), "its timestamp has .* is 9223372036854775808"),
    (Record("t", b"", timestamp=1.5), "its timestamp has .* is 1.5"),  # type: ignore[arg-type]
    (Record("t", b"", headers={"a": b""}), "its headers have to be a tuple"),  # type: ignore[arg-type]
    *(
        (Record("t", b"", headers=(header,)), "its headers have to be pairs")  # type: ignore[arg-type]
        for header in ("ab", ("a", 5), (b"a", b""), ("a",), ["a", b""])
    ),
    (Record("t", b"x" * 1_000_000), "it has 1000036 bytes, .*message.max.bytes allows 1000000"),
]


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE])
def test_kafka_record_that_every_producer_refuses_fails_the_writer(
    guarantee: DeliveryGuarantee,
) -> None:
    """No checkpoint then ever contains the record."""
    writer = sink_of_records(Broker("127.0.0.1:1"), guarantee).create_writer(CONTEXT)
    for record, reason in REFUSED:
        with pytest.raises(SinkError, match=f"(?s)does not take the record .*: .*{reason}"):
            writer.write(Block([record]))
    writer.close()


CONTEXT = WriterContext(0, 1, 0, ProcessingTimeService(ManualClock()))

HEADERS: list[tuple[Any, ...]] = [
    (),
    (("n", None),),
    (("n", b""), ("m" * 63, b"v" * 64)),
    (("n" * 64, "text ä"), ("m" * 8191, b"v" * 8192)),
]


@pytest.mark.parametrize("headers", HEADERS)
@pytest.mark.parametrize("key", [None, b"", b"key", "kä"])
def test_record_size_computed_by_the_sink_equals_that_of_the_kafka_client(
    key: Any, headers: Any
) -> None:
    limit = 20_000
    client = Producer({"bootstrap.servers": "127.0.0.1:1", "message.max.bytes": limit})

    def offer(size: int) -> None:
        client.produce("t", b"x" * size, key, headers=list(headers))

    empty = Record("t", b"", key, headers=headers)
    over = why_refused(empty, 0)
    size = limit - int(over.split()[2])
    offer(size)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        offer(size + 1)
    assert not why_refused(empty._replace(value=b"x" * size), limit)
    assert why_refused(empty._replace(value=b"x" * (size + 1)), limit)
    client.purge()


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE])
def test_message_max_bytes_sets_the_limit_for_the_size_of_records(
    guarantee: DeliveryGuarantee,
) -> None:
    nowhere = Broker("127.0.0.1:1")
    large = Block([Record("t", b"x" * 1_500_000)])
    sink = sink_of_records(nowhere, guarantee, message_max_bytes="2000000")
    writer = sink.create_writer(CONTEXT)
    writer.write(large)
    writer.close()
    with pytest.raises(StreamError, match=r"message\.max\.bytes"):
        sink_of_records(nowhere, guarantee, message_max_bytes="x").create_writer(CONTEXT)


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE])
def test_all_fields_of_a_kafka_record_are_written(
    guarantee: DeliveryGuarantee, broker: Broker
) -> None:
    topic = broker.topic()
    records = [
        Record(topic, b"a", b"k", np.int64(0), 0, (("h", b"1"), ("h", None), ("i", ""))),  # type: ignore[arg-type]
        Record(topic, "b", "k", 0, 1),  # type: ignore[arg-type]
        Record(topic, None, b"", 0, np.int64(7)),
    ]
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection(records).sink_to(sink_of_records(broker, guarantee))
    env.execute()
    found = messages(broker, topic, 3)
    assert [(m.value(), m.key()) for m in found] == [(b"a", b"k"), (b"b", b"k"), (None, b"")]
    assert found[0].headers() == [("h", b"1"), ("h", None), ("i", b"")]
    assert [m.timestamp()[1] for m in found] == [1, 1, 7], "librdkafka cannot write 0"


def messages(broker: Broker, topic: str, count: int) -> list[Message]:
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "messages"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(count, 20.0)
    consumer.close()
    return found


# --- records --------------------------------------------------------------------------------------


def text_records() -> KafkaRecordSerializationSchemaBuilder:
    found = KafkaRecordSerializationSchema.builder()
    return found.set_value_serialization_schema(SimpleStringSchema())


def test_serialized_records_have_topic_key_and_timestamp() -> None:
    class First(KafkaTopicSelector):
        def apply(self, data: Any) -> str:
            return f"t-{data[0]}"

    keyed = text_records().set_topic("t").set_key_serialization_schema(SimpleStringSchema()).build()
    assert keyed.serialize_record("ab", 7) == KafkaProducerRecord("t", b"ab", b"ab", None, 7)
    assert keyed.serialize_record("ab", 0).timestamp == 0
    for none in (None, -1):
        assert keyed.serialize_record("ab", none).timestamp is None
    for selector in (First(), lambda data: f"t-{data[0]}"):
        chosen = text_records().set_topic_selector(selector).build()
        assert chosen.serialize_record("ab", None) == KafkaProducerRecord("t-a", b"ab")


def test_keys_go_to_the_same_partitions_as_with_the_java_client(broker: Broker) -> None:
    """By murmur2. The hashes are those of Kafka's own tests (``UtilsTest.testMurmur2``)."""
    hashes = {"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536}
    topic = broker.topic(4)
    serializer = text_records().set_topic(topic).set_key_serialization_schema(SimpleStringSchema())
    sink = KafkaSink.builder().set_bootstrap_servers(broker.servers)
    h = DirectHarness(sink.set_record_serializer(serializer.build()).build())
    h.process(*hashes)
    h.finish()
    found = broker.read(topic, range(4))
    assert {key: n for n, keys in found.items() for key in keys} == {
        key: (value & 0x7FFFFFFF) % 4 for key, value in hashes.items()
    }
    h.close()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda b: b.set_bootstrap_servers(""), "set_bootstrap_servers"),
        (lambda b: b.set_delivery_guarantee(EXACTLY_ONCE), "set_transactional_id_prefix"),
        (lambda b: b.set_property("transactional.id", "x"), "in place of transactional.id"),
        (lambda b: b.set_record_serializer(None), "set_record_serializer"),
        (lambda b: text_records(), "set_topic or"),
        (lambda b: KafkaRecordSerializationSchema.builder().set_topic("t"), "value_serialization"),
    ],
)
def test_invalid_settings_are_refused_when_the_kafka_sink_is_built(
    change: Any, complaint: str
) -> None:
    builder = (
        KafkaSink.builder().set_bootstrap_servers("x:1").set_record_serializer(ToPartition("t"))
    )
    with pytest.raises(StreamError, match=complaint):
        change(builder).build()
