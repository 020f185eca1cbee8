"""Which partitions are found, where they begin, and who reads them."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from flinkray.streaming.errors import StreamError
from flinkray.streaming.kafka.enumerator import Found, KafkaEnumerator
from flinkray.streaming.kafka.records import KafkaPartitionSplit, KafkaTopicPartition
from flinkray.streaming.sources.coordinator import NO_MORE_SPLITS, SourceCoordinator
from flinkray.streaming.sources.source import Source
from flinkray.testing import ManualClock, wait_until
from tests.streaming.sources.reading import Readers

_TIMEOUT = 20.0


def split(partition: int, offset: int = 5, topic: str = "t") -> KafkaPartitionSplit:
    return KafkaPartitionSplit(topic, partition, offset, None)


class Finder:
    """Finds what the test says, at the offset that the test says."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.offset = 5
        self.failure: Exception | None = None
        self.searches: list[bool] = []

    def find(self, known: frozenset[KafkaTopicPartition], is_first: bool) -> Found:
        self.searches.append(is_first)
        if self.failure is not None:
            raise self.failure
        there = [KafkaTopicPartition("t", n) for n in range(self.partitions)]
        new = [split(p.partition, self.offset) for p in there if p not in known]
        return Found(new, sorted(known.difference(there)))


class Run:
    """An enumerator with its readers."""

    def __init__(self, finder: Finder, parallelism: int = 2, interval: float | None = 10.0) -> None:
        self.finder = finder
        self.clock = ManualClock()
        self.readers = Readers(parallelism)
        context: Any = self.readers
        make_finder: Any = lambda closed: finder  # noqa: E731
        self.enumerator = KafkaEnumerator(context, self.clock, make_finder, interval)

    def begin(self, state: Any = None) -> Run:
        if state is not None:
            self.enumerator.restore(state)
        self.enumerator.start()
        return self

    def add_readers(self) -> Run:
        for subtask in range(self.readers.parallelism):
            self.enumerator.add_reader(subtask)
        return self

    def search(self) -> Run:
        """One that is due, to its end."""
        before = len(self.finder.searches)
        if self.enumerator._search is None:
            due = self.enumerator.next_discovery_time()
            assert due is not None
            self.clock.advance(due - self.clock.time())
            self.enumerator.discover()
            before += 1

        def is_done() -> bool:
            self.clock.advance(0.02)
            self.enumerator.discover()
            return self.enumerator._search is None

        wait_until(is_done, _TIMEOUT, "the search")
        return self

    @property
    def given(self) -> dict[KafkaTopicPartition, int]:
        """What readers have been given, and from where."""
        splits = [one for given in self.readers.assigned.values() for one in given]
        assert len({one.topic_partition for one in splits}) == len(splits), splits
        return {one.topic_partition: one.offset for one in splits}


def partitions(*numbers: int, offset: int = 5) -> dict[KafkaTopicPartition, int]:
    return {KafkaTopicPartition("t", n): offset for n in numbers}


def test_partitions_are_assigned_evenly_once_readers_have_registered() -> None:
    run = Run(Finder(4)).begin().search()
    assert run.given == {}
    run.add_readers()
    assert run.given == partitions(0, 1, 2, 3)
    assert [len(given) for given in run.readers.assigned.values()] == [2, 2]
    assert run.readers.done == []


def test_partition_found_later_is_assigned_once() -> None:
    run = Run(Finder(1)).begin().add_readers().search()
    run.finder.partitions = 3
    run.search().search()
    assert run.given == partitions(0, 1, 2)
    assert run.finder.searches == [True, False, False]


def test_without_periodic_discovery_readers_get_no_more_splits_after_one_discovery() -> None:
    run = Run(Finder(1), interval=None).begin().add_readers()
    assert run.readers.done == []
    run.search()
    assert run.given == partitions(0)
    assert sorted(run.readers.done) == [0, 1]
    assert run.enumerator.next_discovery_time() is None


def test_restored_enumerator_assigns_only_partitions_not_assigned_before() -> None:
    run = Run(Finder(2)).begin().search()
    state = run.enumerator.snapshot_state(1)
    run.finder.offset = 99
    again = Run(run.finder, parallelism=1).begin(state).add_readers()
    assert again.given == partitions(0, 1)  # waited, with the offsets of the first time
    state = again.search().enumerator.snapshot_state(2)
    run.finder.partitions = 3
    third = Run(run.finder).begin(state).add_readers().search()
    assert third.given == partitions(2, offset=99)
    assert run.finder.searches == [True, False, False]


def test_restored_enumerator_without_periodic_discovery_discovers_nothing_again() -> None:
    run = Run(Finder(1), interval=None).begin().search()
    again = Run(run.finder, interval=None).begin(run.enumerator.snapshot_state(1))
    assert again.enumerator.next_discovery_time() is None
    again.add_readers()
    assert again.given == partitions(0)
    assert sorted(again.readers.done) == [0, 1]


def test_enumerator_restored_before_its_first_discovery_ended_repeats_the_discovery() -> None:
    run = Run(Finder(1)).begin()
    again = Run(run.finder).begin(run.enumerator.snapshot_state(1)).add_readers().search()
    assert again.given == partitions(0)
    assert run.finder.searches == [True, True]


def test_splits_of_a_failed_reader_are_assigned_to_its_next_attempt() -> None:
    run = Run(Finder(2)).begin().add_readers().search()
    (given,) = run.readers.assigned.pop(0)
    run.enumerator.add_splits_back([given], 0)
    run.search()
    assert 0 not in run.readers.assigned
    run.enumerator.add_reader(0)
    assert run.readers.assigned[0] == [given]


def test_failed_first_partition_discovery_raises_and_a_later_failed_one_is_repeated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    finder = Finder(1)
    finder.failure = StreamError("no answer")
    with pytest.raises(StreamError, match="no answer"):
        Run(finder).begin().search()
    finder.failure = None
    run = Run(finder).begin().add_readers().search()
    finder.failure, finder.partitions = StreamError("no answer"), 2
    with caplog.at_level(logging.WARNING, "flinkray.kafka"):
        run.search()
    assert re.search("until later: no answer", caplog.text)
    finder.failure = None
    run.search()
    assert run.given == partitions(0, 1)


def test_kafka_partition_that_vanished_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(Finder(2)).begin().add_readers().search()
    run.finder.partitions = 1
    with caplog.at_level(logging.WARNING, "flinkray.kafka"):
        run.search().search()
    assert caplog.text.count("partition t-1 is not there any more") == 1
    run.finder.partitions = 2
    run.search()
    assert run.given == partitions(0, 1)  # it is read on where its reader is


def test_enumerator_state_is_restored_at_another_parallelism() -> None:
    """Together with the source coordinator, which stores the state as bytes."""

    class FromKafka(Source[Any]):
        def __init__(self, finder: Finder) -> None:
            self.finder = finder

        def get_boundedness(self) -> Any: ...

        def create_reader(self, context: Any) -> Any: ...

        def create_enumerator(self, context: Any, clock: Any) -> Any:
            make_finder: Any = lambda closed: self.finder  # noqa: E731
            return KafkaEnumerator(context, clock, make_finder, None)

    clock = ManualClock()
    source = FromKafka(Finder(3))
    first = SourceCoordinator(clock)
    first.start(source, 2)

    def is_found(coordinator: SourceCoordinator) -> bool:
        clock.advance(0.02)
        coordinator.discover()
        return coordinator.next_discovery_time() is None

    wait_until(lambda: is_found(first), _TIMEOUT, "the search")
    first.heard(0, 0, 0)
    state = first.snapshot(7)
    given = first.events(0, 0, 0) or ()

    again = SourceCoordinator(clock, state=state, checkpoint_id=7)
    again.start(source, 1)
    again.heard(0, 0, 0, restored_from=7)
    rest = again.events(0, 0, 0) or ()
    splits = [event for event in (*given, *rest) if event is not NO_MORE_SPLITS]
    assert sorted(one.partition for one in splits) == [0, 1, 2]
