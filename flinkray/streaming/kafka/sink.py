"""The Kafka sink that a builder creates: its writers, and the check of records before a commit."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from operator import index
from typing import Any, Generic, SupportsIndex, cast
from uuid import uuid4

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.client import KafkaException, RecordProducer, sink_error, text_of
from flinkray.streaming.kafka.committer import CHUNK_BYTES, KafkaCommittable, KafkaCommitter, pack
from flinkray.streaming.kafka.records import OF_JAVA, KafkaProducerRecord
from flinkray.streaming.records.elements import Block
from flinkray.streaming.records.serialization import SerializationSchema
from flinkray.streaming.sinks.sink import (
    Committer,
    CommitterContext,
    DeliveryGuarantee,
    Sink,
    SinkError,
    SinkWriter,
    T,
    U,
    WriterContext,
)

TRANSACTION_TIMEOUT = 600_000
"""Time-out of transactions in milliseconds, below the 15 minutes that brokers allow by default."""


class KafkaTopicSelector(ABC):
    """Chooses the topic of each value. A user's class implements it."""

    @abstractmethod
    def apply(self, data: Any) -> str:
        """Return the name of the value's topic."""


class KafkaRecordSerializationSchema(ABC, Generic[T]):
    """Converter of values to Kafka's records, made by a builder or a user-defined class."""

    @abstractmethod
    def serialize_record(self, element: T, timestamp: int | None) -> KafkaProducerRecord:
        """Return the record. *timestamp*: event time; None: the stream has none."""

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """Return a builder; it needs a topic and a schema for values."""
        return KafkaRecordSerializationSchemaBuilder()


class _SerializesByParts(KafkaRecordSerializationSchema[T]):
    def __init__(
        self,
        topic: str,
        selector: Callable[[Any], str] | None,
        key: SerializationSchema | None,
        value: SerializationSchema,
    ) -> None:
        self._topic = topic
        self._selector = selector
        self._key = key
        self._value = value

    def serialize_record(self, element: T, timestamp: int | None) -> KafkaProducerRecord:
        topic = self._topic if self._selector is None else self._selector(element)
        key = None if self._key is None else self._key.serialize(element)
        time = timestamp if timestamp is not None and timestamp >= 0 else None  # as in Flink
        return KafkaProducerRecord(topic, self._value.serialize(element), key, None, time)


class KafkaRecordSerializationSchemaBuilder(Generic[T]):
    """Builder of a :class:`KafkaRecordSerializationSchema`."""

    def __init__(self) -> None:
        self._topic = ""
        self._selector: Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder[T]:
        """Send all records to this topic."""
        self._topic, self._selector = topic, None
        return self

    def set_topic_selector(
        self, topic_selector: Callable[[Any], str] | KafkaTopicSelector
    ) -> KafkaRecordSerializationSchemaBuilder[T]:
        """Send each record to the topic that the selector returns."""
        selector = getattr(topic_selector, "apply", topic_selector)
        if not callable(selector):
            raise TypeError("topic_selector must be KafkaTopicSelector or a callable")
        self._topic, self._selector = "", selector
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder[T]:
        """Set the schema of keys. Records with equal keys go to one partition."""
        self._key = key_serialization_schema
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema[U]
    ) -> KafkaRecordSerializationSchemaBuilder[U]:
        """Set the schema of the records' values."""
        self._value = value_serialization_schema
        return cast(KafkaRecordSerializationSchemaBuilder[U], self)

    def build(self) -> KafkaRecordSerializationSchema[T]:
        """Return the schema. Raises StreamError if the topic or the value schema is missing."""
        if not self._topic and self._selector is None:
            raise StreamError("records of Kafka need set_topic or set_topic_selector")
        if self._value is None:
            raise StreamError("records of Kafka need set_value_serialization_schema")
        return _SerializesByParts(self._topic, self._selector, self._key, self._value)


class KafkaSink(Sink[T, KafkaCommittable]):
    """Writes to topics of Kafka.

    Args:
        properties: librdkafka's properties, with the brokers.
        serialize: converts a value and its timestamp to a record.
        transactional_id_prefix: unique to this sink in the whole Kafka cluster. For exactly once.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        serialize: Serialize,
        guarantee: DeliveryGuarantee,
        transactional_id_prefix: str,
    ) -> None:
        self._properties = dict(properties)
        self._serialize = serialize
        self._guarantee = guarantee
        self._prefix = transactional_id_prefix

    @property
    def has_committer(self) -> bool:
        return self._guarantee is DeliveryGuarantee.EXACTLY_ONCE

    def create_writer(self, context: WriterContext) -> SinkWriter[KafkaCommittable]:
        if self.has_committer:
            run = uuid4().hex[:16]
            most = max_bytes_of(self._properties)
            own = self._id_of(context.subtask_index)
            return TransactionalWriter(own, run, self._serialize, most)
        waits = self._guarantee is DeliveryGuarantee.AT_LEAST_ONCE
        return DirectWriter(self._properties, self._serialize, waits)

    def create_committer(self, context: CommitterContext) -> Committer[KafkaCommittable]:
        properties = {"transaction.timeout.ms": TRANSACTION_TIMEOUT, **self._properties}
        return KafkaCommitter(properties, self._id_of(context.subtask_index))

    def _id_of(self, subtask: int) -> str:
        return f"{self._prefix}-{subtask}"

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """Return a builder; it needs brokers and a serializer of records."""
        return KafkaSinkBuilder()


class KafkaSinkBuilder(Generic[T]):
    """Builder of a :class:`KafkaSink`."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._guarantee = DeliveryGuarantee.NONE
        self._prefix = ""
        self._serializer: KafkaRecordSerializationSchema | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder[T]:
        """Set some of the brokers: ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder[T]:
        """Set the delivery guarantee. Default: NONE, so records may be lost or repeated."""
        self._guarantee = DeliveryGuarantee(delivery_guarantee)
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder[T]:
        """Set the prefix of transaction ids, needed for exactly once.
        No other sink in the whole Kafka cluster may have the prefix. It must stay the same when the
        job continues from a checkpoint."""
        self._prefix = transactional_id_prefix
        return self

    def set_record_serializer(
        self, record_serializer: KafkaRecordSerializationSchema[U]
    ) -> KafkaSinkBuilder[U]:
        """Set the schema that makes records of values."""
        self._serializer = record_serializer
        return cast(KafkaSinkBuilder[U], self)

    def set_property(self, key: str, value: str) -> KafkaSinkBuilder[T]:
        """Set a property of librdkafka's producer."""
        self._properties[key] = value
        return self

    def build(self) -> KafkaSink[T]:
        """Build the sink.

        Raises:
            StreamError: a setting is missing, or settings contradict each other.
        """
        properties = {k: v for k, v in self._properties.items() if k not in OF_JAVA}
        if not properties.get("bootstrap.servers"):
            raise StreamError("a Kafka sink needs set_bootstrap_servers")
        if self._serializer is None:
            raise StreamError("a Kafka sink needs set_record_serializer")
        exactly_once = self._guarantee is DeliveryGuarantee.EXACTLY_ONCE
        if exactly_once and not self._prefix:
            raise StreamError("a Kafka sink needs set_transactional_id_prefix for exactly once")
        if "transactional.id" in properties:
            raise StreamError("set_transactional_id_prefix is in place of transactional.id")
        serialize = self._serializer.serialize_record
        return KafkaSink(properties, serialize, self._guarantee, self._prefix)


MAX_BYTES = 1_000_000
"""librdkafka's default of ``message.max.bytes``."""

_OVERHEAD = 36
"""Bytes that librdkafka counts in addition to key, value and headers.
Its name there is ``RD_KAFKAP_MESSAGE_V2_MAX_OVERHEAD``."""

_TOPIC = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")
"""Valid topic names, by the rules of ``org.apache.kafka.common.internals.Topic``."""

_BYTES = (bytes, str, type(None))
"""Types of key, value and header values. The client accepts text, too."""

_LONGEST_TEXT = 100
"""Most characters of a wrong part in an error text."""


def max_bytes_of(properties: Mapping[str, Any]) -> int:
    """Return the most bytes of a record. Raises StreamError if the property is no number."""
    value = properties.get("message.max.bytes", MAX_BYTES)
    try:
        return int(value)
    except ValueError:
        raise StreamError(f"message.max.bytes is a number of bytes, not {value!r}") from None


def why_refused(record: Any, max_bytes: int) -> str:
    """Return the reason for which no producer accepts the record.
    Empty: the record is acceptable."""
    if not isinstance(record, KafkaProducerRecord):
        return f"it has to be a KafkaProducerRecord, and is {_shown(record)}"
    return next(_faults(record, max_bytes), "")


def _faults(record: KafkaProducerRecord, max_bytes: int) -> Iterator[str]:
    topic, value, key, partition, timestamp, headers = record
    if not isinstance(topic, str) or not _is_topic(topic):
        yield (
            "a topic's name has up to 249 letters of ASCII, digits, '.', '_' and '-', and its "
            f"topic is {_shown(topic)}"
        )
    for name, part in (("value", value), ("key", key)):
        if not isinstance(part, _BYTES):
            yield f"its {name} has to be bytes or None, and is {_shown(part)}"
    if partition is not None and not _is_integer(partition, -1, 31):  # -1: any
        yield f"its partition has to be a number from 0 on or None, and is {_shown(partition)}"
    if timestamp is not None and not _is_integer(timestamp, 0, 63):
        yield (
            "its timestamp has to be milliseconds since 1970, or None for the time of writing, and "
            f"is {_shown(timestamp)}"
        )
    if headers:
        if not isinstance(headers, (tuple, list)):
            yield f"its headers have to be a tuple of pairs, and are {_shown(headers)}"
        for header in headers:
            if not _is_header(header):
                yield (
                    "its headers have to be pairs of a name and bytes or None, and one is "
                    f"{_shown(header)}"
                )
    size = _OVERHEAD + _length(value) + _length(key)
    if headers:
        size += sum(map(_size_of_header, headers))
    if size > max_bytes:
        yield f"it has {size} bytes, and the property message.max.bytes allows {max_bytes}"


@lru_cache
def _is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def _is_integer(value: Any, least: int, bits: int) -> bool:
    is_one = type(value) is int or isinstance(value, SupportsIndex)  # the latter is slow
    return is_one and least <= index(value) < 1 << bits


def _is_header(header: Any) -> bool:
    if not isinstance(header, tuple) or len(header) != 2:
        return False
    name, value = header
    return isinstance(name, str) and isinstance(value, _BYTES)


def _length(part: bytes | str | None) -> int:
    if part is None:
        return 0
    return len(part.encode() if isinstance(part, str) else part)


def _size_of_header(header: tuple[str, bytes | None]) -> int:
    name, value = map(_length, header)
    return _varint(name) + name + _varint(value) + value


def _varint(number: int) -> int:
    return number.bit_length() // 7 + 1


def _shown(part: Any) -> str:
    text = repr(part)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


Serialize = Callable[[Any, int | None], KafkaProducerRecord]
"""Function that converts a value and its timestamp to a record."""


def _records_of(
    block: Block, serialize: Serialize, max_bytes: int
) -> Iterator[KafkaProducerRecord]:
    timestamps = repeat(None) if block.timestamps is None else block.timestamps
    for value, timestamp in zip(block.values, timestamps, strict=False):
        record = serialize(value, timestamp)
        if why := why_refused(record, max_bytes):
            raise SinkError(
                f"Kafka does not take the record that was made of {value!r:.200}: {why}"
            )
        yield record


class TransactionalWriter(SinkWriter[KafkaCommittable]):
    """Keeps the records since the last checkpoint. At the next checkpoint they become one
    committable, whose commit writes them in a transaction."""

    def __init__(
        self, transactional_id: str, run: str, serialize: Serialize, max_bytes: int = MAX_BYTES
    ) -> None:
        self._transactional_id = transactional_id
        self._run = run
        self._serialize = serialize
        self._max_bytes = max_bytes
        self._sequence = 0
        self._marker_topic = ""
        self._records: list[tuple[Any, ...]] = []
        self._size = 0
        self._count = 0
        self._chunks: list[tuple[int, bytes]] = []

    def write(self, block: Block) -> None:
        for record in _records_of(block, self._serialize, self._max_bytes):
            self._records.append(tuple(record))
            self._size += len(record.value or b"") + len(record.key or b"")
            if self._size >= CHUNK_BYTES:
                self._pack()

    def _pack(self) -> None:
        if self._records:
            self._marker_topic = self._marker_topic or self._records[0][0]
            self._chunks.append(pack(self._records))
            self._count += len(self._records)
            self._records, self._size = [], 0

    def prepare_commit(self, end_of_input: bool) -> Sequence[KafkaCommittable]:
        self._pack()
        if not self._chunks:
            return ()
        self._sequence += 1
        committable = KafkaCommittable(
            self._transactional_id,
            self._run,
            self._sequence,
            self._marker_topic,
            self._count,
            self._chunks,
        )
        self._chunks, self._count = [], 0
        return (committable,)


class DirectWriter(SinkWriter[KafkaCommittable]):
    """Writes records to Kafka at once. *waits*: whether each checkpoint waits until the records
    before it are delivered. The end of the input waits for delivery in any case."""

    def __init__(self, properties: Mapping[str, Any], serialize: Serialize, waits: bool) -> None:
        self._producer = RecordProducer(properties)
        self._max_bytes = max_bytes_of(properties)
        self._serialize = serialize
        self._waits = waits

    def write(self, block: Block) -> None:
        producer = self._producer
        try:
            for record in _records_of(block, self._serialize, self._max_bytes):
                producer.send(record)
            producer.inner.poll(0)
            producer.check()
        except KafkaException as error:
            raise _not_written(error) from None

    def prepare_commit(self, end_of_input: bool) -> Sequence[KafkaCommittable]:
        if self._waits or end_of_input:
            try:
                self._producer.flush()
            except KafkaException as error:
                raise _not_written(error) from None
        return ()

    def close(self) -> None:
        self._producer.give_up()


def _not_written(error: KafkaException) -> SinkError:
    return sink_error(error)(f"Kafka does not take a record: {text_of(error)}")
