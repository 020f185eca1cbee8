"""The Kafka sink, its serializers, and their builders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, cast
from uuid import uuid4

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.committer import KafkaCommittable, KafkaCommitter
from flinkray.streaming.kafka.record_check import max_bytes_of
from flinkray.streaming.kafka.records import OF_JAVA, KafkaProducerRecord
from flinkray.streaming.kafka.writers import DirectWriter, Serialize, TransactionalWriter
from flinkray.streaming.records.serialization import SerializationSchema
from flinkray.streaming.sinks.delivery_guarantee import DeliveryGuarantee
from flinkray.streaming.sinks.sink import (
    Committer,
    CommitterContext,
    Sink,
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
        """Build the schema. Raises StreamError if the topic or the value schema is missing."""
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
        """Set the delivery guarantee; by default there is none."""
        self._guarantee = DeliveryGuarantee(delivery_guarantee)
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder[T]:
        """Set the prefix of transaction ids, needed for exactly once.

        No other sink in the whole Kafka cluster may have the prefix. It must stay the same when the
        job continues from a checkpoint.
        """
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
