"""What all that speaks to Kafka shares: the library, its properties, its errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flinkray.streaming.errors import StreamError

try:
    import confluent_kafka
except ImportError as error:
    raise ImportError(
        "sources and sinks of Kafka need confluent-kafka: pip install 'flinkray[kafka]'"
    ) from error

log = logging.getLogger("flinkray.kafka")

KafkaError = confluent_kafka.KafkaError
KafkaException = confluent_kafka.KafkaException

FETCHES_ON = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""What the library tries again by itself, for as long as it takes."""

VANISHED = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""The partition is not there (any more); it may come back."""

REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
"""No try of the same client will be better."""


def made(kind: Any, properties: Mapping[str, Any]) -> Any:
    """A client of that kind.

    Raises:
        StreamError: librdkafka does not know a property, or refuses its value.
    """
    try:
        return kind(dict(properties))
    except (KafkaException, TypeError, ValueError) as error:
        raise StreamError(
            f"the Kafka client refuses its properties: {text_of(error)}; names and values are "
            "those of librdkafka's CONFIGURATION.md"
        ) from None


def text_of(error: BaseException | KafkaError) -> str:
    """One line."""
    inner = error.args[0] if isinstance(error, BaseException) and error.args else error
    if isinstance(inner, KafkaError):
        return f"{inner.str()} ({inner.name()})"
    return str(error)
