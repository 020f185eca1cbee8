"""Queries to a Kafka cluster about topics and offsets. Every call blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Event
from typing import Any, TypeVar

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.kafka.client import (
    FETCHES_ON,
    VANISHED,
    KafkaError,
    KafkaException,
    is_lasting,
    made,
    text_of,
)
from flinkray.streaming.kafka.records import KafkaTopicPartition

T = TypeVar("T")

_INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__share_group_state", "__transaction_state"})

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds: longest pause between two tries. The pause doubles with each try."""


class KafkaCluster:
    """Queries topics and offsets. Connects when needed.

    Args:
        properties: librdkafka's properties of a consumer.
        timeout: seconds for which a query is repeated.
        closed: event that is set when answers are not needed any more.
    """

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
        """Return the result of *look*, which is repeated while the cluster is not ready to answer.
        *what*: name of the result, for errors."""
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
