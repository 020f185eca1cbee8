"""Shared parts of Kafka clients: the library, properties, errors."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from flinkray.streaming.errors import StreamError
from flinkray.streaming.sinks.sink import SinkError, SinkUnavailableError

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
"""Errors after which the library retries by itself, without a time limit."""

VANISHED = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
"""Errors for a partition that does not exist (any more). It may come back."""

REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
"""Errors that no retry with the same client can overcome."""

LASTING = VANISHED | frozenset(
    {
        KafkaError._INVALID_ARG,
        KafkaError._UNSUPPORTED_FEATURE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.INVALID_CONFIG,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
"""Errors that Kafka repeats until somebody changes something: a restart of the job does not help.

``_AUTHENTICATION`` is not among them: an OAuth token may be missing only for a while.
"""


def is_lasting(error: KafkaException | KafkaError) -> bool:
    """Return whether an error stays until somebody changes something, such as a permission.
    Restarting the job does not help against these errors."""
    told = error.args[0] if isinstance(error, KafkaException) else error
    return isinstance(told, KafkaError) and told.code() in LASTING


def sink_error(error: KafkaException) -> type[SinkError]:
    """Return the class of the error that a sink raises for a Kafka error."""
    return SinkError if is_lasting(error) else SinkUnavailableError


def made(kind: Any, properties: Mapping[str, Any]) -> Any:
    """Create a Kafka client of class *kind* with librdkafka's *properties*.

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
    """Return the error as one line of text."""
    inner = error.args[0] if isinstance(error, BaseException) and error.args else error
    if isinstance(inner, KafkaError):
        return f"{inner.str()} ({inner.name()})"
    return str(error)
