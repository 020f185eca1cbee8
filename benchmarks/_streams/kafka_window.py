"""JSON from Kafka, a tumbling window of each user, and JSON to Kafka; also cut off behind each
step."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

from flinkray.datastream import (
    ProcessWindowFunction,
    WatermarkStrategy,
)
from flinkray.datastream.common import ByteArraySchema, DeserializationSchema
from flinkray.datastream.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from flinkray.datastream.formats.json import JsonValueSchema
from flinkray.datastream.window import TumblingEventTimeWindows
from tests.streaming.kafka.brokers import Broker

from .programs import CountAndSum
from .runners import Runner, Taken
from .sources import MarkingSink, Marks

PARTITIONS = 2
USERS = 1000
WINDOW = 1000
"""Milliseconds."""
BLOCK = 100_000
"""Records of one window: 100 in each millisecond."""
EPOCH = 1_700_000_000_000
LARGEST_ANSWER = "2000000000"
"""Bytes. The tests' broker sends all that a topic has in one answer, whatever a client asks for."""
CHECKPOINTS = 5000
"""Milliseconds between two checkpoints, or commits of other projects."""


class Messages:
    """A topic with so many blocks of messages, which are written when the object is made."""

    def __init__(self, broker: Broker, marks: Marks, blocks: int) -> None:
        self.broker = broker
        self.marks = marks
        self.records = blocks * BLOCK
        self.topic = broker.topic(PARTITIONS)
        producer = Producer({"bootstrap.servers": broker.servers, "partitioner": "murmur2_random"})
        for number in range(self.records):
            while True:
                try:
                    producer.produce(self.topic, **message(number))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()


def message(number: int) -> dict[str, Any]:
    """Return value (about 150 bytes), key and timestamp of a message."""
    user, time = f"user-{number * 7919 % USERS}", EPOCH + number * WINDOW // BLOCK
    visit = {
        "id": number,
        "user": user,
        "page": f"/articles/{number * 31 % 9973}/comments",
        "referrer": None,
        "mobile": number % 3 == 0,
        "seconds": number % 500 / 4,
        "amount": number % 100,
        "time": time,
    }
    return {"value": json.dumps(visit), "key": user, "timestamp": time}


class NotesFirst(ByteArraySchema):
    """Notes when the first messages of a subtask come, and leaves the rest to another schema."""

    def __init__(self, marks: Marks, schema: DeserializationSchema) -> None:
        self._marks = marks
        self._schema = schema
        self._has_come = False

    def deserialize_all(self, messages: Sequence[bytes]) -> list[Any]:
        if not self._has_come:
            self._marks.note("first")
            self._has_come = True
        return self._schema.deserialize_all(messages)


class CountAndAmount(CountAndSum):
    """Two numbers of each window."""

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + 1, accumulator[1] + value["amount"]


class WithWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Adds the user and the window to the numbers."""

    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        for count, amount in elements:
            yield {"user": key, "begin": context.window().start, "count": count, "amount": amount}


def user_of(visit: Any) -> Any:
    return visit["user"]


READ = "reading"
PARSED = "parsing JSON"
KEYED = "keys and exchange"
WINDOWED = "window"
WRITTEN = "results to JSON, transactions"
STEPS = (READ, PARSED, KEYED, WINDOWED, WRITTEN)
"""Each program does the steps up to its own."""


def run(runner: Runner, last: str, messages: Messages) -> Taken:
    """Run the program up to the step *last*. Processor time of all tasks, and the time from the
    first message to the end of the last sink's input."""
    broker, marks, target = messages.broker, messages.marks, ""
    marks.clear()
    env = runner.environment()
    env.enable_checkpointing(CHECKPOINTS)
    schema = NotesFirst(marks, ByteArraySchema() if last == READ else JsonValueSchema())
    source = (
        KafkaSource.builder()
        .set_bootstrap_servers(broker.servers)
        .set_topics(messages.topic)
        .set_property("receive.message.max.bytes", LARGEST_ANSWER)
        .set_group_id(f"group-{uuid4().hex[:8]}")
        .set_bounded(KafkaOffsetsInitializer.latest())
        .set_value_only_deserializer(schema)
        .build()
    )
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream: Any = env.from_source(source, strategy, "messages")
    if STEPS.index(last) >= STEPS.index(KEYED):
        stream = stream.key_by(user_of)
    if STEPS.index(last) >= STEPS.index(WINDOWED):
        windows = stream.window(TumblingEventTimeWindows.of(WINDOW))
        stream = windows.aggregate(CountAndAmount(), WithWindow())
    if last == WRITTEN:
        target = broker.topic(PARTITIONS)
        stream.sink_to(sink_to(broker, target))
    stream.sink_to(MarkingSink(marks))
    taken = Taken(runner.execute(env).processor, marks.seconds())
    if target:
        check(broker, target, messages.records)
    return taken


def sink_to(broker: Broker, topic: str) -> KafkaSink:
    serializer = (
        KafkaRecordSerializationSchema.builder()
        .set_topic(topic)
        .set_value_serialization_schema(JsonValueSchema())
        .build()
    )
    return (
        KafkaSink.builder()
        .set_bootstrap_servers(broker.servers)
        .set_record_serializer(serializer)
        .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
        .set_transactional_id_prefix(f"to-{topic}")
        .build()
    )


def check(broker: Broker, topic: str, records: int) -> None:
    """Raise AssertionError unless committed results count each message once."""
    partitions = broker.read(topic, range(PARTITIONS), "read_committed")
    results = [json.loads(text) for texts in partitions.values() for text in texts]
    windows = {(result["user"], result["begin"]) for result in results}
    counted = sum(result["count"] for result in results)
    assert counted == records, f"the results count {counted} messages, and there were {records}"
    wanted = records // BLOCK * USERS
    assert len(results) == len(windows) == wanted, (len(results), len(windows), wanted)
