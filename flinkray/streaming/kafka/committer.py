"""Committer of a Kafka sink: commits in transactions, and keeps the history of commits in Kafka.

A transaction writes the records and marks them as committed. The mark is stored with an offset of a
consumer group that has the name of the transactional id. Kafka makes both visible or neither. To
repeat a commit after any failure, the committer first begins a new session of the transactional id.
This ends every transaction of earlier sessions, committed or aborted, and prevents further writes
of these sessions. Then it reads what was committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Any

import msgpack
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.client import (
    FETCHES_ON,
    KafkaError,
    KafkaException,
    RecordProducer,
    made,
    sink_error,
    text_of,
)
from flinkray.streaming.kafka.records import KafkaProducerRecord
from flinkray.streaming.sinks.sink import CommitRequest, Committer, SinkError

_TIMEOUT = 10.0
"""Seconds that one call to Kafka may block the task. Slower calls are retried later."""

_PASSES = FETCHES_ON | frozenset(
    {
        KafkaError._FENCED,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._STATE,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.PRODUCER_FENCED,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
"""Errors after which a commit may succeed in a new session."""


CHUNK_BYTES = 1 << 18
"""Approximate number of bytes that are packed and compressed at once."""

_CODEC = "zstd"


@dataclass(frozen=True)
class KafkaCommittable:
    """The records that one Kafka transaction is to write."""

    transactional_id: str
    run: str
    """Id of the writer that has prepared the committable."""
    sequence: int
    """Number of committables of that writer so far, including this one."""
    marker_topic: str
    """Topic whose partition 0 holds the notes about commits; the same for the whole run."""
    count: int
    chunks: list[tuple[int, bytes]] = field(repr=False)
    """Packed records: (size before compression, compressed bytes)."""

    def records(self) -> Iterator[KafkaProducerRecord]:
        for size, compressed in self.chunks:
            packed = pa.decompress(compressed, size, codec=_CODEC, asbytes=True)
            for fields in msgpack.unpackb(packed, use_list=False):
                yield KafkaProducerRecord(*fields)


def pack(records: Sequence[tuple[Any, ...]]) -> tuple[int, bytes]:
    packed = msgpack.packb(records, default=index)  # for integers of other types than int
    return len(packed), pa.compress(packed, codec=_CODEC, asbytes=True)


class TransactionalSession:
    """A session of a transactional id. It ends with the first failure.
    Raises KafkaException: the session cannot begin."""

    def __init__(self, properties: Mapping[str, Any], transactional_id: str) -> None:
        self._producer = RecordProducer({**properties, "transactional.id": transactional_id})
        self._histories: dict[str, CommitHistory] = {}
        self._producer.inner.init_transactions(_TIMEOUT)
        # After this, every transaction of an earlier session is committed or aborted.
        self._consumer: Consumer = made(
            Consumer,
            {
                **properties,
                "group.id": transactional_id,
                "log_level": 0,
                "enable.auto.commit": False,
            },
        )

    def commit(self, committable: KafkaCommittable) -> bool:
        """Commit a committable. Return False if it was already committed.
        Raises KafkaException: the outcome of the commit is unknown, and the session is over."""
        topic = committable.marker_topic
        history = self._history(topic)
        if history.has(committable.run, committable.sequence):
            return False
        later = history.plus(committable.run, committable.sequence)
        producer = self._producer
        producer.inner.begin_transaction()
        for record in committable.records():
            producer.send(record)
        producer.flush()
        marker = TopicPartition(topic, 0, committable.sequence, later.text())
        group = self._consumer.consumer_group_metadata()
        producer.inner.send_offsets_to_transaction([marker], group, _TIMEOUT)
        producer.inner.commit_transaction(_TIMEOUT)
        self._histories[topic] = later
        return True

    def _history(self, topic: str) -> CommitHistory:
        if topic not in self._histories:
            (found,) = self._consumer.committed([TopicPartition(topic, 0)], _TIMEOUT)
            if found.error is not None:
                raise KafkaException(found.error)
            text = "" if found.offset < 0 else str(found.metadata)
            self._histories[topic] = CommitHistory.parse(text)
        return self._histories[topic]

    def cause(self, error: KafkaException) -> KafkaError:
        """Return the Kafka error behind *error*: that of a failed delivery, if there is one."""
        told: KafkaError = self._producer.failure or error.args[0]
        return told

    def close(self) -> None:
        self._producer.give_up()
        self._consumer.close()


class KafkaCommitter(Committer[KafkaCommittable]):
    """Commits the committables of writers, each in a transaction under the transactional id of its
    writer. *own*: transactional id for which a session begins at once, so that no transaction of an
    earlier attempt stays open. None: no such id."""

    def __init__(self, properties: Mapping[str, Any], own: str | None) -> None:
        self._properties = dict(properties)
        self._own = own
        self._sessions: dict[str, TransactionalSession] = {}
        self._unfinished: dict[str, list[tuple[str, int]]] = {}
        """Committables to retry, by transactional id: (run, sequence).
        The first one has to be committed before any other committable of its id."""
        if own is not None:
            try:
                self._session(own)
            except KafkaException as error:
                raise sink_error(error)(
                    f"the Kafka sink cannot begin transactions as {own!r}: {text_of(error)}"
                ) from None

    def commit(self, requests: Sequence[CommitRequest[KafkaCommittable]]) -> None:
        for request in requests:
            self._commit(request)
        for name in [name for name in self._sessions if name != self._own]:
            self._end_session(name)  # sessions of other writers, restored with these requests

    def _commit(self, request: CommitRequest[KafkaCommittable]) -> None:
        committable = request.committable
        name, place = committable.transactional_id, (committable.run, committable.sequence)
        unfinished = self._unfinished.setdefault(name, [])
        if unfinished and unfinished[0] != place:
            request.retry_later(SinkError(f"what was written before it waits, too: {name}"))
            if place not in unfinished:
                unfinished.append(place)
            return
        try:
            if not self._session(name).commit(committable):
                request.signal_already_committed()
        except KafkaException as error:
            session = self._sessions.get(name)
            told = error.args[0] if session is None else session.cause(error)
            self._end_session(name)
            reason = SinkError(
                f"a transaction of {committable.count} records as {name!r}: {text_of(told)}"
            )
            if told.retriable() or told.code() in _PASSES:
                request.retry_later(reason)
                if not unfinished:
                    unfinished.append(place)
            else:
                request.signal_failed_with_unknown_reason(reason)
            return
        if unfinished:
            del unfinished[0]

    def _session(self, name: str) -> TransactionalSession:
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = TransactionalSession(self._properties, name)
        return session

    def _end_session(self, name: str) -> None:
        session = self._sessions.pop(name, None)
        if session is not None:
            session.close()

    def close(self) -> None:
        for name in list(self._sessions):
            self._end_session(name)


MOST_RUNS = 16
"""Number of writers in the history. Its text stays far below Kafka's limit of 4096 bytes."""


@dataclass(frozen=True)
class CommittedRun:
    """Numbers of one writer's committed committables: all up to *up_to*, and those in *beyond*."""

    up_to: int = 0
    beyond: frozenset[int] = frozenset()

    def __contains__(self, sequence: int) -> bool:
        return sequence <= self.up_to or sequence in self.beyond

    def plus(self, sequence: int) -> CommittedRun:
        beyond, up_to = {*self.beyond, sequence}, self.up_to
        while up_to + 1 in beyond:
            up_to += 1
        return CommittedRun(up_to, frozenset(number for number in beyond if number > up_to))


@dataclass(frozen=True)
class CommitHistory:
    """Says which committables were committed, for each writer. The writer of the latest commit is
    last in *runs*. A writer numbers its committables from 1. Each number is committed once, mostly
    in order. After a change of parallelism, two committers may have committables of one writer."""

    runs: dict[str, CommittedRun] = field(default_factory=dict)

    def has(self, run: str, sequence: int) -> bool:
        return sequence in self.runs.get(run, CommittedRun())

    def plus(self, run: str, sequence: int) -> CommitHistory:
        others = {name: of for name, of in self.runs.items() if name != run}
        for name in list(others)[: max(0, len(others) + 1 - MOST_RUNS)]:
            del others[name]
        return CommitHistory({**others, run: self.runs.get(run, CommittedRun()).plus(sequence)})

    def text(self) -> str:
        return " ".join(
            f"{name}:{'+'.join(map(str, (of.up_to, *sorted(of.beyond))))}"
            for name, of in self.runs.items()
        )

    @staticmethod
    def parse(text: str) -> CommitHistory:
        """Return the history from its ``text()``. Raises StreamError for a text of another form."""
        runs = {}
        for entry in text.split():
            name, _, numbers = entry.partition(":")
            try:
                up_to, *beyond = map(int, numbers.split("+"))
            except ValueError:
                raise StreamError(
                    f"what is committed there was not written by a Kafka sink: {text!r:.200}; "
                    "another application uses the transactional id prefix as its consumer group"
                ) from None
            runs[name] = CommittedRun(up_to, frozenset(beyond))
        return CommitHistory(runs)
