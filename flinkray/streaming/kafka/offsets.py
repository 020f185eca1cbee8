"""Offsets at which reading of partitions begins and ends (Flink's ``OffsetsInitializer``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.records import KafkaTopicPartition


class KafkaOffsetResetStrategy(Enum):
    """Says where to start in a partition for which no offset is known: at the earliest record, at
    the end, or (NONE) not at all: an error is raised."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class PartitionOffsets(Protocol):
    """Queries offsets of partitions from Kafka.
    Each answer has all requested partitions, except where noted."""

    def earliest(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]: ...

    def latest(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]: ...

    def of_time(
        self, of: list[KafkaTopicPartition], timestamp: int
    ) -> dict[KafkaTopicPartition, int]:
        """Return the offset of the first record of each partition at or after *timestamp*.
        Partitions without such a record are left out."""
        ...

    def committed(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """Return the offset that the group has committed, for each partition.
        Partitions without a committed offset are left out."""
        ...


class KafkaOffsetsInitializer(ABC):
    """Chooses an offset for each partition, once. The offset is then stored in checkpoints.
    Create instances with the static methods."""

    reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST
    """Position at which a reader continues if Kafka has no record at its offset. Default: the first
    record that exists, so that no further record is skipped after others have expired."""
    needs_group = False

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """Return an initializer that starts at the first record that Kafka still has."""
        return _Earliest()

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """Return an initializer that starts at the end that a partition has when the source finds
        the partition."""
        return _Latest()

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """Return an initializer that starts at the first record at *timestamp* or later.
        *timestamp* is in milliseconds. Without such a record, reading starts at the end."""
        return _OfTime(timestamp)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """Return an initializer that starts at the offsets committed by the consumer group.
        The strategy applies to partitions without a committed offset, and if Kafka has no record
        at the offset."""
        return _Committed(offset_reset_strategy)

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """Return an initializer that starts at the offsets given for each partition. The strategy
        applies to partitions that are not listed, and if Kafka has no record at the offset."""
        return _Named(offsets, offset_reset_strategy)

    @abstractmethod
    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        """Return the offset that this initializer chooses for each of *partitions*.

        Raises:
            StreamError: a partition has no offset, and the strategy is NONE.
        """

    def _or_reset(
        self,
        found: dict[KafkaTopicPartition, int],
        partitions: list[KafkaTopicPartition],
        broker: PartitionOffsets,
        what: str,
    ) -> dict[KafkaTopicPartition, int]:
        missing = [partition for partition in partitions if partition not in found]
        if not missing:
            return found
        if self.reset is KafkaOffsetResetStrategy.NONE:
            names = ", ".join(map(str, missing))
            raise StreamError(
                f"{what} for {names}; give a KafkaOffsetResetStrategy other than NONE to read "
                "such partitions from their beginning or end"
            )
        is_latest = self.reset is KafkaOffsetResetStrategy.LATEST
        return {**found, **(broker.latest(missing) if is_latest else broker.earliest(missing))}


class _Earliest(KafkaOffsetsInitializer):
    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        return broker.earliest(partitions)


class _Latest(KafkaOffsetsInitializer):
    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        return broker.latest(partitions)


class _OfTime(KafkaOffsetsInitializer):
    def __init__(self, timestamp: int) -> None:
        if timestamp < 0:
            raise ValueError(f"a timestamp must not be negative, got {timestamp}")
        self._timestamp = timestamp

    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        # Query the end first, so that records written between the two queries are read.
        return {**broker.latest(partitions), **broker.of_time(partitions, self._timestamp)}


class _Committed(KafkaOffsetsInitializer):
    needs_group = True

    def __init__(self, strategy: KafkaOffsetResetStrategy) -> None:
        self.reset = KafkaOffsetResetStrategy(strategy)

    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        found = broker.committed(partitions)
        return self._or_reset(found, partitions, broker, "the group has committed no offset")


class _Named(KafkaOffsetsInitializer):
    def __init__(
        self, offsets: Mapping[KafkaTopicPartition, int], strategy: KafkaOffsetResetStrategy
    ) -> None:
        self.reset = KafkaOffsetResetStrategy(strategy)
        self._offsets = dict(offsets)
        for partition, offset in self._offsets.items():
            if offset < 0:
                raise ValueError(f"the offset of {partition} must not be negative, got {offset}")

    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        found = {p: self._offsets[p] for p in partitions if p in self._offsets}
        return self._or_reset(found, partitions, broker, "no offset is given")
