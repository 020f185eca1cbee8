"""A producer, and what became of what it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Message, Producer

from flinkray.streaming.kafka.client import KafkaError, KafkaException, log, made
from flinkray.streaming.kafka.records import KafkaProducerRecord

_WAIT = 0.1
"""Seconds until a full queue is looked at again."""

DEFAULTS: Mapping[str, Any] = {
    "enable.idempotence": True,  # keeps the order when something is sent again
    "partitioner": "murmur2_random",  # Java's: a key is in the same partition, whoever writes it
}


class RecordProducer:
    """Belongs to one thread."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        self.failure: KafkaError | None = None
        """The first record that was not delivered says why."""
        self.inner: Producer = made(
            Producer, {**DEFAULTS, **properties, "on_delivery": self._delivered, "logger": log}
        )

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self.failure is None:
            self.failure = error

    def send(self, record: KafkaProducerRecord) -> None:
        """Hand it over; waits while the queue is full.  Raises KafkaException."""
        topic, value, key, partition, timestamp, headers = record
        more: dict[str, Any] = {}
        if partition is not None:
            more["partition"] = partition
        if timestamp is not None:
            more["timestamp"] = timestamp or 1  # the library takes 0 for the time of writing
        if headers:
            more["headers"] = list(headers)
        while True:
            try:
                return self.inner.produce(topic, value, key, **more)
            except BufferError:
                self.inner.poll(_WAIT)
                self.check()

    def check(self) -> None:
        """Raises KafkaException: a record was not delivered."""
        if self.failure is not None:
            raise KafkaException(self.failure)

    def flush(self) -> None:
        """Until all are delivered.  Raises KafkaException: one was not."""
        while self.inner.flush(_WAIT):
            self.check()
        self.check()

    def give_up(self) -> None:
        """The end: what is on its way is not waited for."""
        self.inner.purge()
        del self.inner  # it refers to this, and is not to live until cyclic garbage is searched for
