"""Reader of a Kafka source: threads fetch records of one subtask's partitions in parallel."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple

from confluent_kafka import Message

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.offsets import KafkaOffsetResetStrategy
from flinkray.streaming.kafka.partition_fetcher import Fetched, PartitionFetcher, offset_of
from flinkray.streaming.kafka.records import KafkaPartitionSplit, KafkaTopicPartition
from flinkray.streaming.records.elements import Block, Origin
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    NOTHING_NOW,
    OfSplit,
    Polled,
    ReaderContext,
    SourceReader,
)

Deserialize = Callable[[Sequence[Message]], list[Any]]
"""Function that returns the values of records. None: the record is skipped."""


class _Reading(NamedTuple):
    """Fetched records of which the first *position* were emitted already."""

    fetched: Fetched
    position: int


class KafkaReader(SourceReader[KafkaPartitionSplit]):
    """Reads partitions, each in its order.
    *commits*: whether offsets of complete checkpoints are committed to the consumer group. *reset*:
    where to continue if Kafka has no record at the offset."""

    def __init__(
        self,
        context: ReaderContext,
        properties: Mapping[str, Any],
        deserialize: Deserialize,
        commits: bool,
        reset: KafkaOffsetResetStrategy,
    ) -> None:
        super().__init__(context)
        self._properties = properties
        self._deserialize = deserialize
        self._commits = commits
        self._reset = reset
        self._fetcher: PartitionFetcher | None = None
        self._splits: dict[KafkaTopicPartition, KafkaPartitionSplit] = {}
        """Splits with the offsets to read on from."""
        self._reading: _Reading | None = None
        self._ended: list[KafkaTopicPartition] = []
        """Partitions that are read completely but still hold back the watermark."""
        self._committable: dict[KafkaTopicPartition, int] = {}
        """Offsets to commit for partitions that were read to their end."""
        self._of_checkpoints: dict[int, dict[KafkaTopicPartition, int]] = {}
        self._no_more = False

    # --- splits -----------------------------------------------------------------------------------

    def add_splits(self, splits: Sequence[KafkaPartitionSplit]) -> None:
        splits = [KafkaPartitionSplit(*split) for split in splits]
        for split in splits:
            self._splits[split.topic_partition] = split
        if self._fetcher is None:
            self._fetcher = PartitionFetcher(self._properties, self._reset, self.context.wake)
        self._fetcher.begin([split for split in splits if not self._has_ended(split)])
        for split in splits:
            if self._has_ended(split):
                self._end(split)

    def split_id(self, split: KafkaPartitionSplit) -> str:
        return str(KafkaTopicPartition(split[0], split[1]))

    def notify_no_more_splits(self) -> None:
        self._no_more = True

    def _has_ended(self, split: KafkaPartitionSplit) -> bool:
        return split.stopping_offset is not None and split.offset >= split.stopping_offset

    def _move(self, partition: KafkaTopicPartition, offset: int) -> None:
        split = self._splits[partition]._replace(offset=offset, is_read=True)
        self._splits[partition] = split
        if self._has_ended(split):
            assert self._fetcher is not None
            self._fetcher.end(partition)
            self._end(split)

    def _end(self, split: KafkaPartitionSplit) -> None:
        del self._splits[split.topic_partition]
        self._committable[split.topic_partition] = split.offset
        self._ended.append(split.topic_partition)

    # --- records ----------------------------------------------------------------------------------

    def poll(self, max_records: int) -> Polled:
        for partition in self._ended:
            self.context.finish_split(str(partition))
        self._ended.clear()
        while True:
            if self._reading is None:
                if not self._splits:
                    return END_OF_INPUT if self._no_more else NOTHING_NOW
                assert self._fetcher is not None
                fetched = self._fetcher.take()
                if fetched is None:
                    return NOTHING_NOW
                self._reading = _Reading(fetched, 0)
            polled = self._read(self._reading, max_records)
            if polled is not None:
                return polled

    def _read(self, reading: _Reading, max_records: int) -> OfSplit | None:
        (partition, messages, end), begin = reading
        split = self._splits.get(partition)
        if split is None:  # records after the end of the split
            self._reading = None
            return None
        if begin == 0:
            self._check_goes_on(split, offset_of(messages[0]) if messages else end)
        chunk = messages[begin : begin + max_records]
        is_last = begin + len(chunk) >= len(messages)
        self._reading = None if is_last else _Reading(reading.fetched, begin + len(chunk))
        next_offset = end if is_last else offset_of(messages[begin + len(chunk)])
        if split.stopping_offset is not None and next_offset > split.stopping_offset:
            next_offset = split.stopping_offset
            chunk = [message for message in chunk if offset_of(message) < next_offset]
        batch = self._block(partition, chunk) if chunk else None
        self._move(partition, next_offset)
        return None if batch is None else OfSplit(str(partition), batch)

    @staticmethod
    def _check_goes_on(split: KafkaPartitionSplit, offset: int) -> None:
        """Check that the reader may continue the split at *offset*.
        *offset* may be larger than the split's offset, because records may have expired. It may be
        smaller if nothing was read and the program chose the split's offset. Raises StreamError:
        the split was read up to its offset, and *offset* is smaller."""
        if split.is_read and offset < split.offset:
            raise StreamError(
                f"{split.topic_partition} was read up to offset {split.offset}, and Kafka has "
                "fewer records than that now: the topic was deleted and made again, or has lost "
                "records.  To read what there is, start the job without the state of this source: "
                "give the source another uid, and allow non-restored state"
            )

    def _block(self, partition: KafkaTopicPartition, messages: Sequence[Message]) -> Block:
        try:
            values = self._deserialize(messages)
        except Exception as error:
            raise self._fault(partition, messages, error) from error
        timestamps = [message.timestamp()[1] for message in messages]
        is_kept = [value is not None for value in values]
        if not all(is_kept):
            values = list(compress(values, is_kept))
            timestamps = list(compress(timestamps, is_kept))
        return Block(values, timestamps, None, Origin(str(partition), offset_of(messages[0])))

    def _fault(
        self, partition: KafkaTopicPartition, messages: Sequence[Message], error: Exception
    ) -> StreamError:
        """Return the error that names the first message that cannot be deserialized by itself, or
        the first message of all."""
        faulty = messages[0]
        for message in messages:
            try:
                self._deserialize([message])
            except Exception as its_error:  # noqa: BLE001 - part of the error that is returned
                faulty, error = message, its_error
                break
        return StreamError(
            f"the record at offset {faulty.offset()} of {partition} cannot be deserialized: "
            f"{type(error).__name__}: {error}"
        )

    def next_poll_time(self) -> float | None:
        return math.inf

    # --- checkpoints ------------------------------------------------------------------------------

    def snapshot_state(self, checkpoint_id: int) -> list[KafkaPartitionSplit]:
        if self._commits:
            read = {partition: split.offset for partition, split in self._splits.items()}
            self._of_checkpoints[checkpoint_id] = {**read, **self._committable}
        return list(self._splits.values())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        offsets = self._of_checkpoints.pop(checkpoint_id, None)
        for earlier in [id_ for id_ in self._of_checkpoints if id_ < checkpoint_id]:
            del self._of_checkpoints[earlier]
        if offsets and self._fetcher is not None:
            self._fetcher.commit(offsets)
            for partition, offset in offsets.items():
                if self._committable.get(partition) == offset:
                    del self._committable[partition]

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
