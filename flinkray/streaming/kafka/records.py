"""Partitions and records of Kafka, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, order=True)
class KafkaTopicPartition:
    """A partition of a topic.

    >>> KafkaTopicPartition("clicks", 0)
    KafkaTopicPartition(topic='clicks', partition=0)
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class KafkaPartitionSplit(NamedTuple):
    """A partition from *offset* up to but not including *stopping_offset* (None: no end)."""

    topic: str
    partition: int
    offset: int
    stopping_offset: int | None
    is_read: bool = False
    """Whether Kafka has had records up to *offset*. If not, *offset* is the configured start."""

    @property
    def topic_partition(self) -> KafkaTopicPartition:
        return KafkaTopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class KafkaConsumerRecord:
    """A record as read from Kafka. *timestamp*: milliseconds, -1 if the record has none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class KafkaProducerRecord(NamedTuple):
    """A record to be written.
    *partition*: None lets the producer choose, by the key. *timestamp*: milliseconds since 1970.
    None: the time of writing. 0 is written as 1, because librdkafka cannot write 0."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


OF_JAVA = frozenset(
    {"key.deserializer", "value.deserializer", "register.consumer.metrics"}
    | {"key.serializer", "value.serializer", "register.producer.metrics"}
)
"""Properties in Flink programs that have no meaning outside Java; they are ignored."""
