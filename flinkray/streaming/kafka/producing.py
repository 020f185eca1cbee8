"""A Kafka producer that notes failed deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message, Producer

from flinkray.streaming.kafka.client import KafkaError, KafkaException, log, made
from flinkray.streaming.kafka.records import KafkaProducerRecord

_WAIT = 0.1
"""Seconds until a full queue is checked again."""

DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,  # keeps the order of retried records
    "partitioner": "murmur2_random",  # Java's default: a key has the same partition for all clients
}


class RecordProducer:
    """Sends records to Kafka, and keeps the error of a failed delivery. For use by one thread."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.failure: KafkaError | None = None
        """Error of the first record that was not delivered. None: there is no such record."""
        self.inner: Producer = made(
            Producer, {**DEFAULTS, **properties, "on_delivery": self._delivered, "logger": log}
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.failure is None:
            self.failure = error

    def send(self, record: KafkaProducerRecord) -> None:
        """Pass a record to the library. Blocks while the queue is full. Raises KafkaException."""
        topic, value, key, partition, timestamp, headers = record
        more: dict[str, Any] = {}
        if partition is not None:
            more["partition"] = partition
        if timestamp is not None:
            more["timestamp"] = timestamp or 1  # for the library, 0 means the time of writing
        if headers:
            more["headers"] = list(headers)
        while True:
            try:
                return self.inner.produce(topic, value, key, **more)
            except BufferError:
                self.inner.poll(_WAIT)
                self.check()

    def check(self) -> None:
        """Raise KafkaException if a record was not delivered."""
        if self.failure is not None:
            raise KafkaException(self.failure)

    def flush(self) -> None:
        """Wait until all records are delivered. Raises KafkaException if a record was not."""
        while self.inner.flush(_WAIT):
            self.check()
        self.check()

    def give_up(self) -> None:
        """Close without waiting for records that are being sent."""
        self.inner.purge()
        del self.inner  # it refers to this object: do not leave it to the garbage collector
