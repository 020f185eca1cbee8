"""The Kafka sink that a builder creates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from flinkray.streaming.kafka.committer import KafkaCommittable, KafkaCommitter
from flinkray.streaming.kafka.record_check import max_bytes_of
from flinkray.streaming.kafka.writers import DirectWriter, Serialize, TransactionalWriter
from flinkray.streaming.sinks.delivery_guarantee import DeliveryGuarantee
from flinkray.streaming.sinks.sink import (
    Committer,
    CommitterContext,
    Sink,
    SinkWriter,
    T,
    WriterContext,
)

TRANSACTION_TIMEOUT = 600_000
"""Time-out of transactions in milliseconds, below the 15 minutes that brokers allow by default."""


class KafkaSink(Sink[T, KafkaCommittable]):
    """Writes to topics of Kafka.

    Args:
        properties: librdkafka's properties, with the brokers.
        serialize: converts a value and its timestamp to a record.
        transactional_id_prefix: unique to this sink in the whole Kafka cluster. For exactly once.
    """

    def __init__(
        self,
        properties: Mapping[str, Any],
        serialize: Serialize,
        guarantee: DeliveryGuarantee,
        transactional_id_prefix: str,
    ) -> None:
        self._properties = dict(properties)
        self._serialize = serialize
        self._guarantee = guarantee
        self._prefix = transactional_id_prefix

    @property
    def has_committer(self) -> bool:
        return self._guarantee is DeliveryGuarantee.EXACTLY_ONCE

    def create_writer(self, context: WriterContext) -> SinkWriter[KafkaCommittable]:
        if self.has_committer:
            run = uuid4().hex[:16]
            most = max_bytes_of(self._properties)
            own = self._id_of(context.subtask_index)
            return TransactionalWriter(own, run, self._serialize, most)
        waits = self._guarantee is DeliveryGuarantee.AT_LEAST_ONCE
        return DirectWriter(self._properties, self._serialize, waits)

    def create_committer(self, context: CommitterContext) -> Committer[KafkaCommittable]:
        properties = {"transaction.timeout.ms": TRANSACTION_TIMEOUT, **self._properties}
        return KafkaCommitter(properties, self._id_of(context.subtask_index))

    def _id_of(self, subtask: int) -> str:
        return f"{self._prefix}-{subtask}"
