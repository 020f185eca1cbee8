"""Fetches records of Kafka's partitions in a thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from flinkray.streaming.errors import StreamError, UnavailableError
from flinkray.streaming.kafka.client import (
    FETCHES_ON,
    REFUSED,
    VANISHED,
    KafkaError,
    KafkaException,
    is_lasting,
    log,
    made,
    text_of,
)
from flinkray.streaming.kafka.offsets import KafkaOffsetResetStrategy
from flinkray.streaming.kafka.records import KafkaPartitionSplit, KafkaTopicPartition

AHEAD = 16384
"""Records that are ready before the thread pauses.
The library has its own buffer in addition (``queued.max.messages.kbytes``)."""

_TAKEN_AT_ONCE = 2048
"""Records taken from the library at once."""

_LONGEST_ANSWER = 5.0
"""Seconds to wait for the first and last offset of a partition.
No partition is read during this time."""

_PATIENCE = 0.1
"""Seconds that a poll waits. A new partition may have to wait as long."""


class Fetched(NamedTuple):
    """Records of one partition, in order. *end*: offset after them. An empty list of messages says
    that Kafka has no record from *end* on at the moment."""

    partition: KafkaTopicPartition
    messages: Sequence[Message]
    end: int


class PartitionFetcher:
    """Fetches records of partitions in its own thread, which alone uses the consumer. The task's
    thread calls the public methods. *properties* must set ``auto.offset.reset`` to ``error``.
    *wake* is called from the thread when there is something to take after there was nothing."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        reset: KafkaOffsetResetStrategy,
        wake: Callable[[], None],
    ) -> None:
        self._reset = reset
        self._wake = wake
        self._fetched: deque[Fetched] = deque()
        self._ready = 0
        """Number of records in :attr:`_fetched`."""
        self._changed = threading.Condition()
        """Guards the fields below and the fetched records."""
        self._begun: list[KafkaPartitionSplit] = []
        self._ended: list[KafkaTopicPartition] = []
        self._to_commit: dict[KafkaTopicPartition, int] = {}
        self._positions: dict[KafkaTopicPartition, int] = {}
        """Next offset of each partition that is fetched. Used only by the fetching thread."""
        self._out_of_range: dict[KafkaTopicPartition, str] = {}
        """Kafka's error text for each partition that has no record at its position.
        Used only by the fetching thread."""
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
        with self._changed:
            self._begun += splits
            self._changed.notify()

    def end(self, partition: KafkaTopicPartition) -> None:
        """Fetch no more records of a partition. Records that were fetched can still be taken."""
        with self._changed:
            self._ended.append(partition)

    def take(self) -> Fetched | None:
        """Return the next fetched records. None: there is nothing now. Raises the thread's failure,
        after all records that came before it."""
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
        """Commit the offsets to the consumer group, for monitoring. Does not block."""
        with self._changed:
            self._to_commit.update(offsets)
            self._changed.notify()

    def close(self) -> None:
        """Stop the thread. Does not wait for a running poll."""
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
                self._positions.update((s.topic_partition, s.offset) for s in begun)
            if ended:
                self._consumer.incremental_unassign(
                    [TopicPartition(p.topic, p.partition) for p in ended]
                )
                for partition in ended:
                    self._positions.pop(partition, None)
                    self._out_of_range.pop(partition, None)
            if to_commit:
                self._commit(to_commit)
            if self._positions:
                self._poll()
                self._go_on_elsewhere()

    def _may_go_on(self) -> bool:
        if self._is_closed or self._failure is not None:
            return True
        if self._begun or self._ended or self._to_commit:
            return True
        return bool(self._positions) and self._ready < AHEAD

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
        for (topic, partition), group in groupby(messages, _place_of):
            place = KafkaTopicPartition(topic or "", -1 if partition is None else partition)
            self._sort_out(place, list(group))

    def _sort_out(self, partition: KafkaTopicPartition, messages: list[Message]) -> None:
        if not any(map(Message.error, messages)):
            self._hand_over(partition, messages)
            return
        begin = 0
        for number, message in enumerate(messages):
            error = message.error()
            if error is not None:
                self._hand_over(partition, messages[begin:number])
                begin = number + 1
                if error.code() == KafkaError._PARTITION_EOF:
                    self._hand_over(partition, [], offset_of(message))
                else:
                    self._judge(partition, error)
        self._hand_over(partition, messages[begin:])

    def _hand_over(
        self, partition: KafkaTopicPartition, messages: Sequence[Message], end: int | None = None
    ) -> None:
        if end is None:
            if not messages:
                return
            end = offset_of(messages[-1]) + 1
        if partition in self._positions:
            self._positions[partition] = end
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
            if partition in self._positions:
                self._out_of_range[partition] = text_of(error)
        else:
            raise _read_error(error)(f"{partition} cannot be read: {text_of(error)}")

    def _go_on_elsewhere(self) -> None:
        for partition, said in list(self._out_of_range.items()):
            at = TopicPartition(partition.topic, partition.partition)
            try:
                answer = self._consumer.get_watermark_offsets(at, _LONGEST_ANSWER)
            except KafkaException as error:
                self._judge(partition, error.args[0])  # may be asked again, with the next poll
                continue
            if answer is not None:
                at.offset = self._elsewhere(partition, said, *answer)
                self._consumer.incremental_unassign([at])
                self._consumer.incremental_assign([at])
                self._positions[partition] = at.offset
                del self._out_of_range[partition]

    def _elsewhere(self, partition: KafkaTopicPartition, said: str, first: int, end: int) -> int:
        """Return the offset from which to continue if Kafka has no record at the reader's offset.
        *said*: Kafka's error text. *first*, *end*: the partition's offsets in Kafka. Raises
        StreamError: the reset strategy is NONE."""
        wanted = self._positions[partition]
        if first <= wanted <= end:
            log.info("%s is read on from offset %d after all: %s", partition, wanted, said)
            return wanted
        if self._reset is KafkaOffsetResetStrategy.NONE:
            raise StreamError(
                f"Kafka has no record of {partition} at offset {wanted}, to read on from: it has "
                f"offsets {first} to {end}; its records may have expired, or the topic been made "
                "anew. Give a KafkaOffsetResetStrategy other than NONE, or begin without the state"
            )
        elsewhere = end if self._reset is KafkaOffsetResetStrategy.LATEST else first
        gone = f"{first - wanted} records have gone" if wanted < first else f"it ends at {end}"
        left = f", which skips {end - first} records that are there" if elsewhere > first else ""
        log.warning(
            "partition %d of topic %s has no record at offset %d: its first offset is %d, %s. It "
            "is read on from offset %d (%s)%s",
            *(partition.partition, partition.topic, wanted, first, gone),
            *(elsewhere, self._reset.name, left),
        )
        return elsewhere

    def _on_error(self, error: KafkaError) -> None:
        if error.code() in REFUSED or error.fatal():
            self._fail(_read_error(error)(f"Kafka refuses the reader: {text_of(error)}"))
        elif error.code() in VANISHED:
            self._report_vanished(text_of(error))
        else:
            log.debug("%s", text_of(error))  # the library logs how it handles the error

    def _report_vanished(self, what: str) -> None:
        if what not in self._reported:
            self._reported.add(what)
            log.warning("a partition is not there, and is read on if it returns: %s", what)


def _read_error(error: KafkaError) -> type[StreamError]:
    return StreamError if is_lasting(error) else UnavailableError


def _place_of(message: Message) -> tuple[str | None, int | None]:
    return message.topic(), message.partition()


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _on_commit(error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
    if error is not None:
        log.warning("offsets are not committed: %s", text_of(error))
