"""Kafka as PyFlink programs read and write it, with builders (PyFlink's ``connectors.kafka``).

Needs ``pip install 'flinkray[kafka]'``.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from typing import Any

from confluent_kafka import Message

from flinkray.datastream.common.serialization import DeserializationSchema
from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka import source as sources
from flinkray.streaming.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from flinkray.streaming.kafka.records import KafkaConsumerRecord, KafkaTopicPartition
from flinkray.streaming.records.typeinfo import TypeInformation

DISCOVERY_INTERVAL = 300_000
"""Milliseconds: Flink's default."""

API_TIMEOUT = 60_000
"""Milliseconds: Kafka's default."""

_OF_JAVA = frozenset({"key.deserializer", "value.deserializer", "register.consumer.metrics"})
"""Properties of Flink programs that mean nothing here."""


class KafkaRecordDeserializationSchema(ABC):
    """Makes values of whole records, with key, headers, topic and offset."""

    @abstractmethod
    def deserialize(self, record: KafkaConsumerRecord) -> Any:
        """The value; None leaves the record out."""

    def get_produced_type(self) -> TypeInformation | None:
        """The type of the values, if it is known."""
        return None


class KafkaSource(sources.KafkaSource):
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
        """A builder, which needs brokers, a subscription and a deserializer."""
        return KafkaSourceBuilder()


class KafkaSourceBuilder:
    """Builds a :class:`KafkaSource`."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._subscription: sources.Subscription | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._is_bounded = False
        self._deserialize: Callable[[Message], Any] | None = None
        self._produced_type: TypeInformation | None = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """Some of the brokers: ``host:port``, separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """The consumer group that offsets are committed to when a checkpoint is complete."""
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """Read all partitions of these topics, which must exist."""
        if not topics:
            raise ValueError("set_topics needs at least one topic")
        return self._subscribe(sources.Subscription(topics=topics))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """Read all topics whose whole name matches (Python's ``re``), also later ones."""
        try:
            return self._subscribe(sources.Subscription(pattern=re.compile(topic_pattern)))
        except re.error as error:
            raise ValueError(f"no pattern of topics: {topic_pattern!r}: {error}") from None

    def set_partitions(self, partitions: Set[KafkaTopicPartition]) -> KafkaSourceBuilder:
        """Read these partitions, which must exist."""
        if not partitions:
            raise ValueError("set_partitions needs at least one partition")
        return self._subscribe(sources.Subscription(partitions=frozenset(partitions)))

    def _subscribe(self, subscription: sources.Subscription) -> KafkaSourceBuilder:
        if self._subscription is not None:
            raise StreamError(
                "a Kafka source has one of set_topics, set_topic_pattern and set_partitions, once"
            )
        self._subscription = subscription
        return self

    def set_starting_offsets(
        self, starting_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder:
        """Where to begin, in a job that begins without a checkpoint; the default is at the first
        record that there is."""
        self._starting = starting_offsets_initializer
        return self

    def set_unbounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder:
        """End at these offsets, which are decided at the start; the source counts as unbounded."""
        self._stopping, self._is_bounded = stopping_offsets_initializer, False
        return self

    def set_bounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder:
        """End at these offsets, which are decided at the start; the source is bounded."""
        self._stopping, self._is_bounded = stopping_offsets_initializer, True
        return self

    def set_value_only_deserializer(
        self, deserialization_schema: DeserializationSchema
    ) -> KafkaSourceBuilder:
        """How values are read; None leaves a record out, and so does a record without a value."""
        self._deserialize = sources.ValueOfRecord(deserialization_schema.deserialize)
        produced_type = getattr(deserialization_schema, "get_produced_type", None)
        self._produced_type = None if produced_type is None else produced_type()
        return self

    def set_deserializer(
        self, record_deserializer: KafkaRecordDeserializationSchema
    ) -> KafkaSourceBuilder:
        """How whole records are read (Java's ``setDeserializer``; PyFlink has none)."""
        self._deserialize = sources.WholeRecord(record_deserializer.deserialize)
        self._produced_type = record_deserializer.get_produced_type()
        return self

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        """What the names of the clients begin with, as brokers know them."""
        return self.set_property("client.id.prefix", prefix)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """A property of librdkafka, or one of the source: ``partition.discovery.interval.ms``,
        ``commit.offsets.on.checkpoint``, ``client.id.prefix``, ``default.api.timeout.ms``."""
        self._properties[key] = value
        return self

    def set_properties(self, props: Mapping[str, str]) -> KafkaSourceBuilder:
        """Several of them."""
        self._properties.update(props)
        return self

    def build(self) -> KafkaSource:
        """The source.

        Raises:
            StreamError: something is missing, or does not go together.
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
    "KafkaConsumerRecord",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordDeserializationSchema",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
]
