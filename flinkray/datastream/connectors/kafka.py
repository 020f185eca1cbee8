"""Kafka sources and sinks with the builders of PyFlink's ``connectors.kafka``.

Needs ``pip install 'flinkray[kafka]'``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from typing import Any, Generic, cast

from confluent_kafka import Message

from flinkray.datastream.common.serialization import DeserializationSchema, SerializationSchema
from flinkray.datastream.type_variables import T, U
from flinkray.streaming.errors import StreamError
from flinkray.streaming.functions.functions import IN
from flinkray.streaming.kafka import sink as sinks
from flinkray.streaming.kafka import source as sources
from flinkray.streaming.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from flinkray.streaming.kafka.records import (
    KafkaConsumerRecord,
    KafkaProducerRecord,
    KafkaTopicPartition,
)
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sinks.delivery_guarantee import DeliveryGuarantee

DISCOVERY_INTERVAL = 300_000
"""Milliseconds between two discoveries of partitions; Flink's default."""

API_TIMEOUT = 60_000
"""Milliseconds that a call to Kafka may take; Kafka's default."""

_OF_JAVA = frozenset(
    {"key.deserializer", "value.deserializer", "register.consumer.metrics"}
    | {"key.serializer", "value.serializer", "register.producer.metrics"}
)
"""Properties in Flink programs that have no meaning outside Java; they are ignored."""


class KafkaRecordDeserializationSchema(ABC, Generic[T]):
    """Converter of whole Kafka records to values, with key, headers, topic and offset."""

    @abstractmethod
    def deserialize(self, record: KafkaConsumerRecord) -> T | None:
        """Return the value of a record. None leaves the record out."""

    def get_produced_type(self) -> TypeInformation[T] | None:
        """Return the type of the values. None: it is not known."""
        return None


class KafkaSource(sources.KafkaSource[T]):
    """Reads topics of Kafka; see :class:`flinkray.streaming.kafka.source.KafkaSource`.

    >>> from flinkray.datastream.common import SimpleStringSchema
    >>> source = (
    ...     KafkaSource.builder()
    ...     .set_bootstrap_servers("localhost:9092")
    ...     .set_topics("clicks")
    ...     .set_group_id("shop")
    ...     .set_starting_offsets(KafkaOffsetsInitializer.earliest())
    ...     .set_value_only_deserializer(SimpleStringSchema())
    ...     .build()
    ... )
    >>> source.get_boundedness().name
    'CONTINUOUS_UNBOUNDED'
    """

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        """Return a builder; it needs brokers, a subscription and a deserializer."""
        return KafkaSourceBuilder()


class KafkaSourceBuilder(Generic[T]):
    """Builder of a :class:`KafkaSource`."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._subscription: sources.Subscription | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._is_bounded = False
        self._deserialize: Callable[[Message], Any] | None = None
        self._produced_type: TypeInformation | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder[T]:
        """Set some of the brokers: ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder[T]:
        """Set the consumer group for which offsets are committed when a checkpoint is complete."""
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder[T]:
        """Read all partitions of these topics, which must exist."""
        if not topics:
            raise ValueError("set_topics needs at least one topic")
        return self._subscribe(sources.Subscription(topics=topics))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder[T]:
        """Read all topics whose whole name matches (Python's ``re``), also later ones."""
        try:
            return self._subscribe(sources.Subscription(pattern=re.compile(topic_pattern)))
        except re.error as error:
            raise ValueError(f"no pattern of topics: {topic_pattern!r}: {error}") from None

    def set_partitions(self, partitions: Set[KafkaTopicPartition]) -> KafkaSourceBuilder[T]:
        """Read these partitions, which must exist."""
        if not partitions:
            raise ValueError("set_partitions needs at least one partition")
        return self._subscribe(sources.Subscription(partitions=frozenset(partitions)))

    def _subscribe(self, subscription: sources.Subscription) -> KafkaSourceBuilder[T]:
        if self._subscription is not None:
            raise StreamError(
                "a Kafka source has one of set_topics, set_topic_pattern and set_partitions, once"
            )
        self._subscription = subscription
        return self

    def set_starting_offsets(
        self, starting_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder[T]:
        """Set the offsets at which a job without a checkpoint begins.

        Default: the first record there is.
        """
        self._starting = starting_offsets_initializer
        return self

    def set_unbounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder[T]:
        """Set the end offsets, which are determined at the start.

        The source still counts as unbounded.
        """
        self._stopping, self._is_bounded = stopping_offsets_initializer, False
        return self

    def set_bounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder[T]:
        """Set the end offsets, which are determined at the start. The source is bounded."""
        self._stopping, self._is_bounded = stopping_offsets_initializer, True
        return self

    def set_value_only_deserializer(
        self, deserialization_schema: DeserializationSchema[U]
    ) -> KafkaSourceBuilder[U]:
        """Set the deserializer of values.

        A record is left out if the result is None or it has no value.
        """
        self._deserialize = sources.ValueOfRecord(deserialization_schema.deserialize)
        produced_type = getattr(deserialization_schema, "get_produced_type", None)
        self._produced_type = None if produced_type is None else produced_type()
        return cast(KafkaSourceBuilder[U], self)

    def set_deserializer(
        self, kafka_record_deserialization_schema: KafkaRecordDeserializationSchema[U]
    ) -> KafkaSourceBuilder[U]:
        """Set the deserializer of whole records, a Python class (PyFlink takes a Java class)."""
        schema = kafka_record_deserialization_schema
        self._deserialize = sources.WholeRecord(schema.deserialize)
        self._produced_type = schema.get_produced_type()
        return cast(KafkaSourceBuilder[U], self)

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder[T]:
        """Set the beginning of the client names that brokers see."""
        return self.set_property("client.id.prefix", prefix)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder[T]:
        """Set a property of librdkafka or of the source.

        Properties of the source: ``partition.discovery.interval.ms``,
        ``commit.offsets.on.checkpoint``, ``client.id.prefix``, ``default.api.timeout.ms``.
        """
        self._properties[key] = value
        return self

    def set_properties(self, props: Mapping[str, str]) -> KafkaSourceBuilder[T]:
        """Set several properties, as :meth:`set_property` does for one."""
        self._properties.update(props)
        return self

    def build(self) -> KafkaSource[T]:
        """Build the source.

        Raises:
            StreamError: a setting is missing, or settings contradict each other.
        """
        properties = {k: v for k, v in self._properties.items() if k not in _OF_JAVA}
        interval = _milliseconds(properties, "partition.discovery.interval.ms", None)
        timeout = _milliseconds(properties, "default.api.timeout.ms", API_TIMEOUT)
        commits = _boolean(properties, "commit.offsets.on.checkpoint", True)
        group = properties.get("group.id")
        prefix = properties.pop("client.id.prefix", None) or group or "flinkray"
        if not properties.get("bootstrap.servers"):
            raise StreamError("a Kafka source needs set_bootstrap_servers")
        if self._subscription is None:
            raise StreamError(
                "a Kafka source needs set_topics, set_topic_pattern or set_partitions"
            )
        if self._deserialize is None:
            raise StreamError("a Kafka source needs set_value_only_deserializer")
        for offsets in (self._starting, self._stopping):
            if offsets is not None and offsets.needs_group and not group:
                raise StreamError("offsets that a group has committed need set_group_id")
        if self._is_bounded:
            interval = None
        elif interval is None and self._stopping is None:
            interval = DISCOVERY_INTERVAL
        assert timeout is not None
        return KafkaSource(
            properties,
            self._subscription,
            self._deserialize,
            prefix,
            self._starting,
            self._stopping,
            self._is_bounded,
            interval / 1000 if interval is not None and interval > 0 else None,
            commits and bool(group),
            timeout / 1000,
            self._produced_type,
        )


class KafkaTopicSelector(ABC):
    """Chooses the topic of each value. A user's class implements it."""

    @abstractmethod
    def apply(self, data: Any) -> str:
        """Return the name of the value's topic."""


class KafkaRecordSerializationSchema(ABC, Generic[IN]):
    """Converter of values to Kafka's records, made by a builder or a user-defined class."""

    @abstractmethod
    def serialize_record(self, element: IN, timestamp: int | None) -> KafkaProducerRecord:
        """Return the record. *timestamp*: event time; None: the stream has none."""

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        """Return a builder; it needs a topic and a schema for values."""
        return KafkaRecordSerializationSchemaBuilder()


class _SerializesByParts(KafkaRecordSerializationSchema[IN]):
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

    def serialize_record(self, element: IN, timestamp: int | None) -> KafkaProducerRecord:
        topic = self._topic if self._selector is None else self._selector(element)
        key = None if self._key is None else self._key.serialize(element)
        time = timestamp if timestamp is not None and timestamp >= 0 else None  # as in Flink
        return KafkaProducerRecord(topic, self._value.serialize(element), key, None, time)


class KafkaRecordSerializationSchemaBuilder(Generic[IN]):
    """Builder of a :class:`KafkaRecordSerializationSchema`."""

    def __init__(self) -> None:
        self._topic = ""
        self._selector: Callable[[Any], str] | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder[IN]:
        """Send all records to this topic."""
        self._topic, self._selector = topic, None
        return self

    def set_topic_selector(
        self, topic_selector: Callable[[Any], str] | KafkaTopicSelector
    ) -> KafkaRecordSerializationSchemaBuilder[IN]:
        """Send each record to the topic that the selector returns."""
        selector = getattr(topic_selector, "apply", topic_selector)
        if not callable(selector):
            raise TypeError("topic_selector must be KafkaTopicSelector or a callable")
        self._topic, self._selector = "", selector
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder[IN]:
        """Set the schema of keys. Records with equal keys go to one partition."""
        self._key = key_serialization_schema
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema[U]
    ) -> KafkaRecordSerializationSchemaBuilder[U]:
        """Set the schema of the records' values."""
        self._value = value_serialization_schema
        return cast(KafkaRecordSerializationSchemaBuilder[U], self)

    def build(self) -> KafkaRecordSerializationSchema[IN]:
        """Build the schema. Raises StreamError if the topic or the value schema is missing."""
        if not self._topic and self._selector is None:
            raise StreamError("records of Kafka need set_topic or set_topic_selector")
        if self._value is None:
            raise StreamError("records of Kafka need set_value_serialization_schema")
        return _SerializesByParts(self._topic, self._selector, self._key, self._value)


class KafkaSink(sinks.KafkaSink[IN]):
    """Writes to topics of Kafka; see :class:`flinkray.streaming.kafka.sink.KafkaSink`.

    >>> from flinkray.datastream.common import SimpleStringSchema
    >>> serializer = (
    ...     KafkaRecordSerializationSchema.builder()
    ...     .set_topic("totals")
    ...     .set_value_serialization_schema(SimpleStringSchema())
    ...     .build()
    ... )
    >>> sink = (
    ...     KafkaSink.builder()
    ...     .set_bootstrap_servers("localhost:9092")
    ...     .set_record_serializer(serializer)
    ...     .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
    ...     .set_transactional_id_prefix("shop-totals")
    ...     .build()
    ... )
    >>> sink.has_committer
    True
    """

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        """Return a builder; it needs brokers and a serializer of records."""
        return KafkaSinkBuilder()


class KafkaSinkBuilder(Generic[IN]):
    """Builder of a :class:`KafkaSink`."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._guarantee = DeliveryGuarantee.NONE
        self._prefix = ""
        self._serializer: KafkaRecordSerializationSchema | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder[IN]:
        """Set some of the brokers: ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder[IN]:
        """Set the delivery guarantee; by default there is none."""
        self._guarantee = DeliveryGuarantee(delivery_guarantee)
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder[IN]:
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

    def set_property(self, key: str, value: str) -> KafkaSinkBuilder[IN]:
        """Set a property of librdkafka's producer."""
        self._properties[key] = value
        return self

    def build(self) -> KafkaSink[IN]:
        """Build the sink.

        Raises:
            StreamError: a setting is missing, or settings contradict each other.
        """
        properties = {k: v for k, v in self._properties.items() if k not in _OF_JAVA}
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


def _milliseconds(properties: dict[str, Any], key: str, default: int | None) -> int | None:
    value = properties.pop(key, default)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise StreamError(f"{key} is a number of milliseconds, not {value!r}") from None


def _boolean(properties: dict[str, Any], key: str, default: bool) -> bool:
    value = str(properties.pop(key, default)).lower()
    if value not in ("true", "false"):
        raise StreamError(f"{key} is true or false, not {value!r}")
    return value == "true"


__all__ = [
    "DeliveryGuarantee",
    "KafkaConsumerRecord",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaProducerRecord",
    "KafkaRecordDeserializationSchema",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
]
