"""The Kafka source that a builder creates."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from confluent_kafka import Message

from flinkray.core.clock import Clock
from flinkray.streaming.kafka.cluster import KafkaCluster
from flinkray.streaming.kafka.enumerator import KafkaEnumerator, PartitionFinder
from flinkray.streaming.kafka.offsets import KafkaOffsetsInitializer
from flinkray.streaming.kafka.reader import KafkaReader
from flinkray.streaming.kafka.records import (
    KafkaConsumerRecord,
    KafkaPartitionSplit,
    KafkaTopicPartition,
)
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
    T,
)


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
    """Function from a Kafka message to its deserialized value. Tombstones are left out."""

    def __init__(self, deserialize: Callable[[bytes], Any]) -> None:
        self._deserialize = deserialize

    def __call__(self, message: Message) -> Any:
        value = message.value()
        return None if value is None else self._deserialize(value)


class WholeRecord:
    """Deserializes a whole record, with key, headers and position."""

    def __init__(self, deserialize: Callable[[KafkaConsumerRecord], Any]) -> None:
        self._deserialize = deserialize

    def __call__(self, message: Message) -> Any:
        headers = cast("Sequence[tuple[str, bytes | None]]", message.headers() or ())
        return self._deserialize(
            KafkaConsumerRecord(
                cast(str, message.topic()),
                cast(int, message.partition()),
                cast(int, message.offset()),
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple(headers),
            )
        )


class KafkaSource(Source[T, KafkaPartitionSplit]):
    """Reads topics of Kafka.

    Args:
        properties: librdkafka's properties, with the brokers.
        deserialize: converts a record to a value. A record with the value None is skipped.
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
        deserialize: Callable[[Message], Any],
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
