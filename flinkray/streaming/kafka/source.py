"""The Kafka source and its builder."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, cast

from confluent_kafka import Message

from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.client import KafkaCluster
from flinkray.streaming.kafka.enumerator import KafkaEnumerator, PartitionFinder
from flinkray.streaming.kafka.offsets import KafkaOffsetsInitializer
from flinkray.streaming.kafka.reader import Deserialize, KafkaReader
from flinkray.streaming.kafka.records import (
    OF_JAVA,
    KafkaConsumerRecord,
    KafkaPartitionSplit,
    KafkaTopicPartition,
)
from flinkray.streaming.records.serialization import DeserializationSchema
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
    T,
    U,
)

DISCOVERY_INTERVAL = 300_000
"""Milliseconds between two discoveries of partitions; Flink's default."""

API_TIMEOUT = 60_000
"""Milliseconds that a call to Kafka may take; Kafka's default."""


@dataclass(frozen=True)
class Subscription:
    """The partitions to read: topics, a topic pattern, or partitions. One of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: frozenset[KafkaTopicPartition] = frozenset()

    def look_up(self, cluster: KafkaCluster) -> list[KafkaTopicPartition]:
        """Return the subscribed partitions. Raises StreamError if one of them does not exist."""
        if self.pattern is not None:
            return cluster.partitions_matching(self.pattern)
        if self.topics:
            return cluster.partitions_of(self.topics)
        cluster.must_have(self.partitions)
        return sorted(self.partitions)


class ValueOfRecord:
    """Function that deserializes the values of Kafka messages. It returns None, which leaves the
    message out, for a message without a value (a tombstone)."""

    def __init__(self, schema: DeserializationSchema) -> None:
        self._schema = schema

    def __call__(self, messages: Sequence[Message]) -> list[Any]:
        texts = [message.value() for message in messages]
        if None not in texts:
            return self._schema.deserialize_all(cast("list[bytes]", texts))
        return [None if text is None else self._schema.deserialize(text) for text in texts]


class WholeRecord:
    """Function that passes Kafka messages to the user's deserializer as
    :class:`KafkaConsumerRecord`."""

    def __init__(self, deserialize: Callable[[KafkaConsumerRecord], Any]) -> None:
        self._deserialize = deserialize

    def __call__(self, messages: Sequence[Message]) -> list[Any]:
        return [self._deserialize(_record_of(message)) for message in messages]


def _record_of(message: Message) -> KafkaConsumerRecord:
    headers = cast("Sequence[tuple[str, bytes | None]]", message.headers() or ())
    return KafkaConsumerRecord(
        cast(str, message.topic()),
        cast(int, message.partition()),
        cast(int, message.offset()),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple(headers),
    )


class KafkaRecordDeserializationSchema(ABC, Generic[T]):
    """Converter of whole Kafka records to values, with key, headers, topic and offset."""

    @abstractmethod
    def deserialize(self, record: KafkaConsumerRecord) -> T | None:
        """Return the value of a record. None leaves the record out."""

    def get_produced_type(self) -> TypeInformation[T] | None:
        """Return the type of the values. None: it is not known."""
        return None


class KafkaSource(Source[T, KafkaPartitionSplit]):
    """Reads topics of Kafka.

    Args:
        properties: librdkafka's properties, with the brokers.
        deserialize: converts records to values. A record with the value None is skipped.
        client_id_prefix: beginning of client names. They end with the subtask.
        starting: start of partitions that exist when the job starts. Later partitions are read from
            their beginning.
        stopping: end of partitions. None: no end.
        bounded: whether the source reports that it is bounded.
        discovery_interval: seconds between two searches for partitions. None: only one search.
        commits: whether offsets of complete checkpoints are committed to the consumer group.
        timeout: seconds for which queries to the cluster are repeated.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        subscription: Subscription,
        deserialize: Deserialize,
        client_id_prefix: str,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
        bounded: bool,
        discovery_interval: float | None,
        commits: bool,
        timeout: float,
        produced_type: TypeInformation | None = None,
    ) -> None:
        self._properties = dict(properties)
        self._subscription = subscription
        self._deserialize = deserialize
        self._client_id_prefix = client_id_prefix
        self._starting = starting
        self._stopping = stopping
        self._bounded = bounded
        self._discovery_interval = discovery_interval
        self._commits = commits
        self._timeout = timeout
        self._produced_type = produced_type

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def get_produced_type(self) -> TypeInformation | None:
        return self._produced_type

    def create_enumerator(
        self, context: EnumeratorContext[KafkaPartitionSplit], clock: Clock
    ) -> SplitEnumerator[KafkaPartitionSplit]:
        make_finder = partial(self._make_finder, clock)
        return KafkaEnumerator(context, clock, make_finder, self._discovery_interval)

    def _make_finder(self, clock: Clock, closed: threading.Event) -> PartitionFinder:
        properties = {**self._properties, "client.id": f"{self._client_id_prefix}-enumerator"}
        cluster = KafkaCluster(properties, clock, self._timeout, closed)
        subscription = self._subscription
        return PartitionFinder(
            lambda: subscription.look_up(cluster), cluster, self._starting, self._stopping
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[KafkaPartitionSplit]:
        group = self._properties.get("group.id") or f"{self._client_id_prefix}-without-group"
        properties = {
            **self._properties,
            "group.id": group,
            "client.id": f"{self._client_id_prefix}-{context.subtask_index}",
            "auto.offset.reset": "error",  # the reader handles missing offsets itself
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
        }
        reset = self._starting.reset
        return KafkaReader(context, properties, self._deserialize, self._commits, reset)

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        """Return a builder; it needs brokers, a subscription and a deserializer."""
        return KafkaSourceBuilder()


class KafkaSourceBuilder(Generic[T]):
    """Builder of a :class:`KafkaSource`."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._subscription: Subscription | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._is_bounded = False
        self._deserialize: Deserialize | None = None
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
        return self._subscribe(Subscription(topics=topics))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder[T]:
        """Read all topics whose whole name matches (Python's ``re``), also later ones."""
        try:
            return self._subscribe(Subscription(pattern=re.compile(topic_pattern)))
        except re.error as error:
            raise ValueError(f"no pattern of topics: {topic_pattern!r}: {error}") from None

    def set_partitions(self, partitions: Set[KafkaTopicPartition]) -> KafkaSourceBuilder[T]:
        """Read these partitions, which must exist."""
        if not partitions:
            raise ValueError("set_partitions needs at least one partition")
        return self._subscribe(Subscription(partitions=frozenset(partitions)))

    def _subscribe(self, subscription: Subscription) -> KafkaSourceBuilder[T]:
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
        Default: the first record there is."""
        self._starting = starting_offsets_initializer
        return self

    def set_unbounded(
        self, stopping_offsets_initializer: KafkaOffsetsInitializer
    ) -> KafkaSourceBuilder[T]:
        """Set the end offsets, which are determined at the start.
        The source still counts as unbounded."""
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
        A record is left out if it has no value, or if the deserializer returns None."""
        self._deserialize = ValueOfRecord(deserialization_schema)
        produced_type = getattr(deserialization_schema, "get_produced_type", None)
        self._produced_type = None if produced_type is None else produced_type()
        return cast(KafkaSourceBuilder[U], self)

    def set_deserializer(
        self, kafka_record_deserialization_schema: KafkaRecordDeserializationSchema[U]
    ) -> KafkaSourceBuilder[U]:
        """Set the deserializer of whole records, a Python class (PyFlink takes a Java class)."""
        schema = kafka_record_deserialization_schema
        self._deserialize = WholeRecord(schema.deserialize)
        self._produced_type = schema.get_produced_type()
        return cast(KafkaSourceBuilder[U], self)

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder[T]:
        """Set the beginning of the client names that brokers see."""
        return self.set_property("client.id.prefix", prefix)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder[T]:
        """Set a property of librdkafka or of the source.
        Properties of the source: ``partition.discovery.interval.ms``,
        ``commit.offsets.on.checkpoint``, ``client.id.prefix``, ``default.api.timeout.ms``."""
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
        properties = {k: v for k, v in self._properties.items() if k not in OF_JAVA}
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
