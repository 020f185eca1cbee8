"""Writers of a Kafka sink: one keeps records for a transaction, one writes directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from flinkray.streaming.kafka.client import KafkaException, sink_error, text_of
from flinkray.streaming.kafka.committer import CHUNK_BYTES, KafkaCommittable, pack
from flinkray.streaming.kafka.producing import RecordProducer
from flinkray.streaming.kafka.record_check import MAX_BYTES, max_bytes_of, why_refused
from flinkray.streaming.kafka.records import KafkaProducerRecord
from flinkray.streaming.records.elements import Block
from flinkray.streaming.sinks.sink import SinkError, SinkWriter

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
    """Keeps records for a transaction: those since the last checkpoint become one committable."""

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
    """Writes records at once.

    Args:
        waits: whether to wait for delivery before each checkpoint. At the end it waits in any case.
    """

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
