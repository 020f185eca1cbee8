"""Kafka clients: the library, properties, errors, a producer, and queries to a cluster."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from typing import Any, TypeVar

from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.kafka.records import KafkaProducerRecord, KafkaTopicPartition
from flinkray.streaming.sinks.sink import SinkError, SinkUnavailableError

try:
    import confluent_kafka
    from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.admin._listoffsets import OffsetSpec
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
``_AUTHENTICATION`` is not among them: an OAuth token may be missing only for a while."""


def is_lasting(error: KafkaException | KafkaError) -> bool:
    """Return whether an error stays until a person changes something, such as a permission. Then a
    restart of the job is useless."""
    told = error.args[0] if isinstance(error, KafkaException) else error
    return isinstance(told, KafkaError) and told.code() in LASTING


def sink_error(error: KafkaException) -> type[SinkError]:
    return SinkError if is_lasting(error) else SinkUnavailableError


def made(kind: Any, properties: Mapping[str, Any]) -> Any:
    """Create a Kafka client of class *kind* with librdkafka's *properties*.
    Raises StreamError: librdkafka does not know a property, or refuses its value."""
    try:
        return kind(dict(properties))
    except (KafkaException, TypeError, ValueError) as error:
        raise StreamError(
            f"the Kafka client refuses its properties: {text_of(error)}; names and values are "
            "those of librdkafka's CONFIGURATION.md"
        ) from None


def text_of(error: BaseException | KafkaError) -> str:
    inner = error.args[0] if isinstance(error, BaseException) and error.args else error
    if isinstance(inner, KafkaError):
        return f"{inner.str()} ({inner.name()})"
    return str(error)


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
        """Close the producer without waiting for records that are being sent."""
        self.inner.purge()
        del self.inner  # it refers to this object: do not leave it to the garbage collector


T = TypeVar("T")

_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds: longest pause between two tries. The pause doubles with each try."""


class KafkaCluster:
    """Queries topics and offsets of a Kafka cluster. Connects when needed. *timeout*: seconds for
    which a failed query is repeated. *closed*: event that ends repeated queries early."""

    def __init__(
        self, properties: Mapping[str, Any], clock: Clock, timeout: float, closed: Event
    ) -> None:
        self._clock = clock
        self._timeout = timeout
        self._closed = closed
        self._servers = properties["bootstrap.servers"]
        self._group: str | None = properties.get("group.id")
        silent = {**properties, "log_level": 0}  # failures are raised as errors
        self._consumer_properties = {**silent, "group.id": self._group or "flinkray"}
        committed_only = properties.get("isolation.level", "read_committed") == "read_committed"
        self._isolation = (
            IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        )
        self._admin: AdminClient = made(AdminClient, silent)

    # --- topics -----------------------------------------------------------------------------------

    def partitions_of(self, topics: Iterable[str]) -> list[KafkaTopicPartition]:
        """Return all partitions of these topics. Raises StreamError if a topic does not exist."""

        def look() -> list[KafkaTopicPartition]:
            known = self._topics()
            missing = [topic for topic in topics if topic not in known]
            if missing:
                raise StreamError(
                    f"Kafka at {self._servers} has no topic {', '.join(missing)}; create it before "
                    "the job starts, or subscribe by a topic pattern, which waits for topics"
                )
            return _all_of(known, topics)

        return self._asked("the partitions of its topics", look)

    def partitions_matching(self, pattern: re.Pattern[str]) -> list[KafkaTopicPartition]:
        """Return the partitions of all topics whose whole names match, except internal topics."""

        def look() -> list[KafkaTopicPartition]:
            known = self._topics()
            names = [name for name in known if name not in _INTERNAL_TOPICS]
            return _all_of(known, [name for name in sorted(names) if pattern.fullmatch(name)])

        return self._asked("its topics", look)

    def must_have(self, partitions: Iterable[KafkaTopicPartition]) -> None:
        """Raise StreamError if a partition does not exist."""

        def look() -> None:
            known = self._topics()
            missing = [str(p) for p in sorted(partitions) if p.partition >= known.get(p.topic, 0)]
            if missing:
                raise StreamError(f"Kafka at {self._servers} has no partition {', '.join(missing)}")

        self._asked("its partitions", look)

    def _topics(self) -> dict[str, int]:
        metadata = self._admin.list_topics(timeout=self._timeout)
        found = {}
        for name, topic in metadata.topics.items():
            if topic.error is None:
                found[name] = len(topic.partitions)
            elif topic.error.code() in FETCHES_ON:
                raise KafkaException(topic.error)
        return found

    # --- offsets ----------------------------------------------------------------------------------

    def earliest(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        return self._listed(of, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def latest(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        return self._listed(of, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def of_time(
        self, of: list[KafkaTopicPartition], timestamp: int
    ) -> dict[KafkaTopicPartition, int]:
        found = self._listed(of, OffsetSpec.for_timestamp(timestamp))
        return {partition: offset for partition, offset in found.items() if offset >= 0}

    def _listed(
        self, of: list[KafkaTopicPartition], spec: OffsetSpec
    ) -> dict[KafkaTopicPartition, int]:
        if not of:
            return {}

        def look() -> dict[KafkaTopicPartition, int]:
            request = {TopicPartition(p.topic, p.partition): spec for p in of}
            futures = self._admin.list_offsets(
                request, isolation_level=self._isolation, request_timeout=self._timeout
            )
            return {
                KafkaTopicPartition(asked.topic, asked.partition): future.result().offset
                for asked, future in futures.items()
            }

        return self._asked("the offsets of partitions", look)

    def committed(self, of: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        def look() -> dict[KafkaTopicPartition, int]:
            consumer: Consumer = made(Consumer, self._consumer_properties)
            try:
                answers = consumer.committed(_asked_for(of), timeout=self._timeout)
            finally:
                consumer.close()
            found = {}
            for answer in answers:
                if answer.error is not None:
                    raise KafkaException(answer.error)
                if answer.offset >= 0:
                    found[KafkaTopicPartition(answer.topic, answer.partition)] = answer.offset
            return found

        return self._asked(f"what group {self._group} has committed", look)

    # ----------------------------------------------------------------------------------------------

    def _asked(self, what: str, look: Callable[[], T]) -> T:
        """Return the result of *look*, a query. It is repeated while the cluster is not ready to
        answer, up to the time-out. *what*: name of the result, for errors. Raises StreamError for
        an error that lasts (:func:`is_lasting`), else UnavailableError."""
        pause = _FIRST_PAUSE
        deadline = self._clock.monotonic() + self._timeout
        while True:
            try:
                return look()
            except KafkaException as error:
                told: KafkaError = error.args[0]
                passes = told.retriable() or told.code() in FETCHES_ON | VANISHED
                is_over = self._clock.monotonic() >= deadline or self._closed.is_set()
                if not passes or is_over:
                    kind = StreamError if is_lasting(told) else UnavailableError
                    raise kind(
                        f"Kafka at {self._servers} does not tell {what}: {text_of(error)}"
                    ) from None
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _all_of(known: Mapping[str, int], topics: Iterable[str]) -> list[KafkaTopicPartition]:
    return [KafkaTopicPartition(name, n) for name in topics for n in range(known[name])]


def _asked_for(partitions: Sequence[KafkaTopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(p.topic, p.partition) for p in partitions]
