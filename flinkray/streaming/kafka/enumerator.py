"""Enumerator of a Kafka source: finds partitions, decides where reading begins, assigns readers."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from flinkray.core.clock import Clock
from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.client import log
from flinkray.streaming.kafka.offsets import KafkaOffsetsInitializer, PartitionOffsets
from flinkray.streaming.kafka.records import KafkaPartitionSplit, KafkaTopicPartition
from flinkray.streaming.sources.source import EnumeratorContext, SplitEnumerator

_LOOK_AT_ANSWER = 0.02
"""Seconds between two checks whether the search in the other thread has ended."""


class Found(NamedTuple):
    """Result of one search: new partitions, and known partitions that Kafka does not have any
    more."""

    new: list[KafkaPartitionSplit]
    vanished: list[KafkaTopicPartition]


class PartitionFinder:
    """Searches for partitions. Called in a thread of its own, because the searches block.
    *starting*: start of partitions that exist when the job starts; later partitions are read from
    their beginning. *stopping*: end of partitions. None: no end."""

    def __init__(
        self,
        partitions: Callable[[], list[KafkaTopicPartition]],
        broker: PartitionOffsets,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
    ) -> None:
        self._partitions = partitions
        self._broker = broker
        self._starting = starting
        self._stopping = stopping

    def find(self, known: frozenset[KafkaTopicPartition], is_first: bool) -> Found:
        """Return partitions that are not in *known*, and those in *known* that do not exist any
        more. Raises StreamError if the cluster does not answer, or if a partition has no offset."""
        there = self._partitions()
        new = [partition for partition in there if partition not in known]
        starting = self._starting if is_first else KafkaOffsetsInitializer.earliest()
        begins = starting.resolve(new, self._broker)
        ends = {} if self._stopping is None else self._stopping.resolve(new, self._broker)
        splits = [
            KafkaPartitionSplit(p.topic, p.partition, begins[p], ends.get(p)) for p in sorted(new)
        ]
        return Found(splits, sorted(known.difference(there)))


class _Search:
    def __init__(self, find: Callable[[], Found]) -> None:
        self._find = find
        self.found: Found | None = None
        self.failure: BaseException | None = None
        self.is_done = False
        threading.Thread(target=self._run, name="flinkray-kafka-discovery", daemon=True).start()

    def _run(self) -> None:
        try:
            self.found = self._find()
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is taken
            self.failure = error
        self.is_done = True


class KafkaEnumerator(SplitEnumerator[KafkaPartitionSplit]):
    """Assigns partitions evenly to readers.
    The reader of partition 0 depends on the topic's name. If the first search for partitions fails,
    the source fails; a later failure is logged. *make_finder* is called once, with an event that is
    set at the end. *interval*: seconds between two searches. None: only one search."""

    def __init__(
        self,
        context: EnumeratorContext[KafkaPartitionSplit],
        clock: Clock,
        make_finder: Callable[[threading.Event], PartitionFinder],
        interval: float | None,
    ) -> None:
        super().__init__(context)
        self._clock = clock
        self._closed = threading.Event()
        self._make_finder = make_finder
        self._interval = interval
        self._known: set[KafkaTopicPartition] = set()
        """Partitions that readers have, and partitions that wait for their readers."""
        self._waiting: dict[int, list[KafkaPartitionSplit]] = {}
        """Splits that wait for their reader, by subtask of the reader."""
        self._vanished: set[KafkaTopicPartition] = set()
        self._readers: set[int] = set()
        self._has_found = False
        """Whether a search has succeeded, in this run or in the run from which it was restored."""
        self._search: _Search | None = None
        self._next: float | None = None

    def start(self) -> None:
        self._finder = self._make_finder(self._closed)
        if self._interval is not None or not self._has_found:
            self._begin_search()

    def _begin_search(self) -> None:
        finder, known, is_first = self._finder, frozenset(self._known), not self._has_found
        self._search = _Search(lambda: finder.find(known, is_first))
        self._next = self._clock.time() + _LOOK_AT_ANSWER

    def next_discovery_time(self) -> float | None:
        return self._next

    def discover(self) -> None:
        if self._next is None or self._next > self._clock.time():
            return
        search = self._search
        if search is None:
            self._begin_search()
            return
        if not search.is_done:
            self._next = self._clock.time() + _LOOK_AT_ANSWER
            return
        self._search = None
        self._next = None if self._interval is None else self._clock.time() + self._interval
        if search.found is not None:
            self._take(search.found)
        elif self._has_found and isinstance(search.failure, StreamError):
            log.warning("no new partitions are looked for until later: %s", search.failure)
        elif search.failure is not None:
            raise search.failure

    def _take(self, found: Found) -> None:
        self._has_found = True
        for partition in found.vanished:
            if partition not in self._vanished:
                log.warning("partition %s is not there any more", partition)
        self._vanished = set(found.vanished)
        self._known.update(split.topic_partition for split in found.new)
        self._hold(found.new)
        self._hand_out(sorted(self._readers))

    def _hold(self, splits: Iterable[KafkaPartitionSplit]) -> None:
        for split in splits:
            self._waiting.setdefault(self._reader_of(split), []).append(split)

    def _reader_of(self, split: KafkaPartitionSplit) -> int:
        first = zlib.crc32(split.topic.encode())
        return (first + split.partition) % self.context.current_parallelism()

    def _hand_out(self, readers: Iterable[int]) -> None:
        for reader in readers:
            for split in self._waiting.pop(reader, ()):
                self.context.assign_split(split, reader)
            if self._has_found and self._interval is None:
                self.context.signal_no_more_splits(reader)

    def add_reader(self, subtask: int) -> None:
        self._readers.add(subtask)
        self._hand_out([subtask])

    def handle_split_request(self, subtask: int) -> None:
        """Do nothing: Kafka readers request no splits."""

    def add_splits_back(self, splits: Sequence[KafkaPartitionSplit], subtask: int) -> None:
        self._readers.discard(subtask)  # its next attempt is added when it registers
        self._hold(splits)

    def snapshot_state(self, checkpoint_id: int) -> Any:
        waiting = [split for splits in self._waiting.values() for split in splits]
        known = sorted((p.topic, p.partition) for p in self._known)
        return known, sorted(tuple(split) for split in waiting), self._has_found

    def restore(self, checkpoint: Any) -> None:
        known, waiting, self._has_found = checkpoint
        self._known = {KafkaTopicPartition(*partition) for partition in known}
        self._hold(KafkaPartitionSplit(*split) for split in waiting)

    def close(self) -> None:
        self._closed.set()
