"""Where partitions begin and end to be read (Flink's ``OffsetsInitializer``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.records import KafkaTopicPartition


class KafkaOffsetResetStrategy(Enum):
    """What to do where there is no offset: begin at the end, at the beginning, or fail."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class PartitionOffsets(Protocol):
    """What a broker is asked of some partitions.  Each answer has all that were asked for, but for
    what is said."""

    def earliest(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]: ...

    def latest(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]: ...

    def of_time(
        self, of: list[KafkaTopicPartition], timestamp: int
    ) -> dict[KafkaTopicPartition, int]:
        """Those that have no record so late are left out."""
        ...

    def committed(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """Those for which the group has committed nothing are left out."""
        ...


class KafkaOffsetsInitializer(ABC):
    """An offset for each partition, decided once: what comes of it is stored in checkpoints.

    Made by its static methods.
    """

    reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST
    """Of readers that find their offset out of range."""
    needs_group = False

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """The first record that Kafka still has."""
        return _Earliest()

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """The end, as it is when the partition is found."""
        return _Latest()

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """The first record of that time (milliseconds) or later; the end if there is none."""
        return _OfTime(timestamp)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """What the consumer group has committed; the strategy is for partitions without that."""
        return _Committed(offset_reset_strategy)

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """These offsets; the strategy is for partitions that are not named, and where Kafka has no
        such offset."""
        return _Named(offsets, offset_reset_strategy)

    @abstractmethod
    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        """The offsets of all of these.

        Raises:
            StreamError: one has none, and the strategy is to fail.
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
    reset = KafkaOffsetResetStrategy.LATEST

    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        return broker.latest(partitions)


class _OfTime(KafkaOffsetsInitializer):
    reset = KafkaOffsetResetStrategy.LATEST

    def __init__(self, timestamp: int) -> None:
        if timestamp < 0:
            raise ValueError(f"a timestamp must not be negative, got {timestamp}")
        self._timestamp = timestamp

    def resolve(
        self, partitions: list[KafkaTopicPartition], broker: PartitionOffsets
    ) -> dict[KafkaTopicPartition, int]:
        # The end is asked for first: what is written between the two questions is read.
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
