"""A thread that fetches the records of some partitions: whoever takes them never waits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.client import (
    FETCHES_ON,
    REFUSED,
    VANISHED,
    KafkaError,
    KafkaException,
    log,
    made,
    text_of,
)
from flinkray.streaming.kafka.records import KafkaPartitionSplit, KafkaTopicPartition

AHEAD = 16384
"""Records that lie ready before the thread waits; the library has a buffer of its own besides
(``queued.max.messages.kbytes``)."""

_TAKEN_AT_ONCE = 2048
"""Records."""

_PATIENCE = 0.1
"""Seconds for which a poll waits: as long may it take until another partition is begun."""


class Fetched(NamedTuple):
    """Records of one partition, in order; none: there is nothing behind *end* at present."""

    partition: KafkaTopicPartition
    messages: Sequence[Message]
    end: int


class PartitionFetcher:
    """Methods are called by the task's thread; the consumer belongs to the thread that is made
    here.

    Args:
        properties: of the consumer.
        wake: called, from the thread, when there is something to take after there was nothing.
    """

    def __init__(self, properties: Mapping[str, Any], wake: Callable[[], None]) -> None:
        self._wake = wake
        self._fetched: deque[Fetched] = deque()
        self._ready = 0
        """Records in them."""
        self._changed = threading.Condition()
        """Guards all that follows, and what lies ready."""
        self._begun: list[KafkaPartitionSplit] = []
        self._ended: list[KafkaTopicPartition] = []
        self._to_commit: dict[KafkaTopicPartition, int] = {}
        self._assigned = 0
        """Partitions that are fetched; the thread's own."""
        self._found_nothing = False
        self._is_closed = False
        self._failure: BaseException | None = None
        self._reported: set[str] = set()
        self._consumer: Consumer = made(
            Consumer,
            {**properties, "error_cb": self._on_error, "on_commit": _on_commit, "logger": log},
        )
        self._thread = threading.Thread(target=self._run, name="flinkray-kafka", daemon=True)
        self._thread.start()

    # --- for the task's thread --------------------------------------------------------------------

    def begin(self, splits: Iterable[KafkaPartitionSplit]) -> None:
        """Fetch these, too."""
        with self._changed:
            self._begun += splits
            self._changed.notify()

    def end(self, partition: KafkaTopicPartition) -> None:
        """Fetch no more of it; what lies ready of it still comes."""
        with self._changed:
            self._ended.append(partition)

    def take(self) -> Fetched | None:
        """The next; None: there is nothing now.  Raises what the thread has ended with, after what
        came before."""
        with self._changed:
            if self._fetched:
                fetched = self._fetched.popleft()
                self._ready -= len(fetched.messages)
                if self._ready <= AHEAD // 2:
                    self._changed.notify()
                return fetched
            if self._failure is not None:
                raise self._failure
            self._found_nothing = True
            return None

    def commit(self, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        """Tell the group how far this is; for those who watch.  Does not wait."""
        with self._changed:
            self._to_commit.update(offsets)
            self._changed.notify()

    def close(self) -> None:
        """Does not wait for a poll that is under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._fetch()
        except BaseException as error:  # noqa: BLE001 - raised again where records are taken
            self._fail(error)
        finally:
            self._consumer.close()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
        self._wake()

    def _fetch(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._may_go_on)
                if self._is_closed or self._failure is not None:
                    return
                begun, self._begun = self._begun, []
                ended, self._ended = self._ended, []
                to_commit, self._to_commit = self._to_commit, {}
            if begun:
                self._consumer.incremental_assign(
                    [TopicPartition(s.topic, s.partition, s.offset) for s in begun]
                )
            if ended:
                self._consumer.incremental_unassign(
                    [TopicPartition(p.topic, p.partition) for p in ended]
                )
            if to_commit:
                self._commit(to_commit)
            self._assigned += len(begun) - len(ended)
            if self._assigned:
                self._poll()

    def _may_go_on(self) -> bool:
        if self._is_closed or self._failure is not None:
            return True
        if self._begun or self._ended or self._to_commit:
            return True
        return self._assigned > 0 and self._ready < AHEAD

    def _commit(self, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        try:
            self._consumer.commit(
                offsets=[TopicPartition(p.topic, p.partition, n) for p, n in offsets.items()],
                asynchronous=True,
            )
        except KafkaException as error:
            log.warning("offsets are not committed: %s", text_of(error))

    def _poll(self) -> None:
        first = self._consumer.poll(_PATIENCE)
        if first is None:
            return
        messages = [first, *self._consumer.consume(_TAKEN_AT_ONCE, 0)]
        for partition, group in groupby(messages, _partition_of):
            self._sort_out(partition, list(group))

    def _sort_out(self, partition: KafkaTopicPartition, messages: list[Message]) -> None:
        begin = 0
        for number, message in enumerate(messages):
            error = message.error()
            if error is not None:
                self._hand_over(partition, messages[begin:number])
                begin = number + 1
                if error.code() == KafkaError._PARTITION_EOF:
                    self._hand_over(partition, [], _offset_of(message))
                else:
                    self._judge(partition, error)
        self._hand_over(partition, messages[begin:])

    def _hand_over(
        self, partition: KafkaTopicPartition, messages: Sequence[Message], end: int | None = None
    ) -> None:
        if end is None:
            if not messages:
                return
            end = _offset_of(messages[-1]) + 1
        with self._changed:
            self._fetched.append(Fetched(partition, messages, end))
            self._ready += len(messages)
            found_nothing, self._found_nothing = self._found_nothing, False
        if found_nothing:
            self._wake()

    # --- errors -----------------------------------------------------------------------------------

    def _judge(self, partition: KafkaTopicPartition, error: KafkaError) -> None:
        code = error.code()
        if code in FETCHES_ON or error.retriable():
            log.info("%s is tried again: %s", partition, text_of(error))
        elif code in VANISHED:
            self._report_vanished(f"{partition}: {text_of(error)}")
        elif code == KafkaError._AUTO_OFFSET_RESET:
            raise StreamError(
                f"Kafka has no record of {partition} at the offset to read on from: "
                f"{text_of(error)}; its records may have expired, or the topic been made anew. "
                "Give a KafkaOffsetResetStrategy other than NONE, or begin without the state"
            )
        else:
            raise StreamError(f"{partition} cannot be read: {text_of(error)}")

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSED or error.fatal():
            self._fail(StreamError(f"Kafka refuses the reader: {text_of(error)}"))
        elif error.code() in VANISHED:
            self._report_vanished(text_of(error))
        else:
            log.debug("%s", text_of(error))  # the library writes what it does about it

    def _report_vanished(self, what: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            log.warning("a partition is not there, and is read on if it returns: %s", what)


def _partition_of(message: Message) -> KafkaTopicPartition:
    topic, partition = message.topic(), message.partition()
    return KafkaTopicPartition(topic or "", -1 if partition is None else partition)


def _offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _on_commit(error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
    if error is not None:
        log.warning("offsets are not committed: %s", text_of(error))
