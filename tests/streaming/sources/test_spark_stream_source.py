"""Micro-batches of a streaming DataFrame, as they are handed out, read and deleted."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flinkray.core.ids import JobVertexID
from flinkray.file_results import FileResultLostError, MicroBatch, PublishedBatches
from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.published_splits import LOOK_INTERVAL
from flinkray.streaming.sources.source import END_OF_INPUT, NoRecords, ReaderContext
from flinkray.streaming.sources.spark_stream import (
    MicroBatchLostError,
    MicroBatchSplit,
    SparkStreamSource,
)
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, reader_of

SCHEMA = pa.schema([("n", pa.int64())])


class Published:
    """A folder, and a source that reads it."""

    def __init__(self, path: Path, parallelism: int = 2) -> None:
        self.batches = PublishedBatches(str(path))
        self.source = SparkStreamSource(JobVertexID(b"v" * 16), "clicks")
        self.source.locate(str(path))
        self.readers = Readers(parallelism)
        self.clock = ManualClock()

    def enumerator(self, state: Any = None) -> Any:
        context: Any = self.readers
        if state is None:
            return self.source.create_enumerator(context, self.clock)
        return self.source.restore_enumerator(context, self.clock, state)

    def publish(self, batch_id: int, *partitions: list[int]) -> None:
        """A record batch for each number."""
        written = [
            self.batches.write(
                number, SCHEMA, [pa.record_batch([pa.array([n])], schema=SCHEMA) for n in values]
            )
            for number, values in enumerate(partitions)
        ]
        self.batches.publish(MicroBatch(batch_id, tuple(it for it in written if it.rows)))

    def files(self) -> int:
        return len(list(Path(self.batches.location, "rows").glob("*.arrow")))


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return Published(tmp_path)


def numbers_of(reader: Any) -> list[int]:
    """What it still reads."""
    found: list[int] = []
    while (polled := reader.poll(1)) is not END_OF_INPUT:
        found += polled.batch["n"].to_pylist()
    return found


def places(splits: list[MicroBatchSplit]) -> list[tuple[int, int]]:
    return [(split.batch_id, split.number) for split in splits]


def test_micro_batches_are_handed_out_in_their_order_each_when_it_is_published(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    published.publish(1, [3])
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)
    assert published.readers.assigned == {}
    assert enumerator.next_discovery_time() == published.clock.time() + LOOK_INTERVAL

    published.publish(0, [1], [2])
    enumerator.discover()
    enumerator.handle_split_request(0)

    assigned = {subtask: places(it) for subtask, it in published.readers.assigned.items()}
    assert assigned == {0: [(0, 0), (1, 0)], 1: [(0, 1)]}
    assert enumerator.next_discovery_time() is None
    assert published.readers.done == []


def test_empty_micro_batches_are_passed_over_and_the_end_is_told(published: Published) -> None:
    enumerator = published.enumerator()
    published.publish(0, [], [])
    published.publish(1)
    published.publish(2, [1])
    published.batches.end()
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)
    assert {k: places(v) for k, v in published.readers.assigned.items()} == {0: [(2, 0)]}
    assert published.readers.done == [1]


def test_how_far_they_are_taken_is_told(published: Published) -> None:
    enumerator = published.enumerator()
    for batch_id in range(3):
        published.publish(batch_id, [batch_id])
    assert published.batches.waiting() == 3
    enumerator.handle_split_request(0)
    assert published.batches.waiting() == 2


def test_in_another_job_they_are_refused_with_the_way_out(
    published: Published, tmp_path: Path
) -> None:
    enumerator = published.enumerator()
    published.publish(0, [1])
    enumerator.handle_split_request(0)
    state = enumerator.snapshot_state(1)
    other = Published(tmp_path / "another-job")
    with pytest.raises(StreamError, match=r"'clicks' were read up to number 1 in another job"):
        other.enumerator(state)


def test_a_partition_that_is_gone_is_named(published: Published) -> None:
    published.publish(0, [1])
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    (split,) = published.readers.assigned[0]
    published.batches.delete(split.name)
    with pytest.raises(FileResultLostError, match=split.name):
        reader_of(published.source, split).poll(1)


def test_what_is_read_on_begins_where_it_was(published: Published) -> None:
    published.publish(0, [1, 2, 3])
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    reader = reader_of(published.source, *published.readers.assigned[0])
    assert reader.poll(1).batch["n"].to_pylist() == [1]
    (rest,) = reader.snapshot_state(1)
    assert rest.offset == 1
    assert numbers_of(reader_of(published.source, rest)) == [2, 3]


def test_what_was_read_is_deleted_when_a_checkpoint_behind_it_is_complete(
    published: Published,
) -> None:
    published.publish(0, [1], [2])
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(0)
    first, second = published.readers.assigned[0]
    reader = reader_of(published.source, first, second)
    reader.poll(1)
    assert [split.name for split in reader.snapshot_state(1)] == [first.name, second.name]
    numbers_of(reader)
    reader.snapshot_state(2)  # which is aborted
    reader.notify_checkpoint_complete(1)
    assert published.files() == 2
    reader.snapshot_state(3)
    reader.notify_checkpoint_complete(3)
    assert published.files() == 0


def test_manifests_stay_while_a_checkpoint_needs_them(published: Published) -> None:
    enumerator = published.enumerator()
    for batch_id in range(3):
        published.publish(batch_id, [batch_id])
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(1)
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(1)  # asked for again, between two checkpoints
    enumerator.notify_checkpoint_complete(1)
    assert [published.batches.batch(i) is not None for i in range(3)] == [False, True, True]


def test_a_cut_is_that_of_the_enumerator_before_which_died(published: Published) -> None:
    """The checkpoint can still be completed, and the job go back to it."""
    before = published.enumerator()
    for batch_id in range(3):
        published.publish(batch_id, [batch_id])
    before.handle_split_request(0)
    before.snapshot_state(7)
    before.handle_split_request(0)

    after = published.enumerator(before.snapshot_state(7))
    after.snapshot_state(7)
    after.notify_checkpoint_complete(7)

    assert [published.batches.batch(i) is not None for i in range(3)] == [False, True, True]


def test_micro_batches_that_are_gone_are_named(published: Published) -> None:
    enumerator = published.enumerator()
    state = enumerator.snapshot_state(1)
    for batch_id in range(2):
        published.publish(batch_id, [batch_id])
    published.batches.forget(below=1)
    with pytest.raises(MicroBatchLostError, match="micro-batch 0 of 'clicks'"):
        published.enumerator(state)


def test_the_end_of_another_execution_is_not_that_of_this_one(published: Published) -> None:
    published.source.locate(published.batches.location, "2")
    enumerator = published.enumerator()
    published.batches.end("1")
    enumerator.handle_split_request(0)
    assert published.readers.done == []
    published.batches.end("2")
    enumerator.discover()
    assert published.readers.done == [0]


# --- whatever happens -----------------------------------------------------------------------------


class Run:
    """Source, readers and checkpoints of a job, one step at a time; all of it fails at once."""

    def __init__(self, published: Published, parallelism: int) -> None:
        self.published = published
        self.parallelism = parallelism
        self.numbers = iter(range(10**6))
        self.written: list[int] = []
        self.next_batch = 0
        self.seen: list[int] = []
        self.checkpoints = 0
        self.pending: deque[tuple[int, Any, list[list[Any]], int]] = deque()
        self.complete: tuple[Any, list[list[Any]], int] = (None, [], 0)
        self.start()

    def start(self) -> None:
        state, splits, seen = self.complete
        del self.seen[seen:]
        self.pending.clear()
        self.published.readers = Readers(self.parallelism)
        self.given = [0] * self.parallelism
        self.asked = [0] * self.parallelism
        self.enumerator = self.published.enumerator(state)
        self.readers = [
            self.published.source.create_reader(ReaderContext(i, self.parallelism, ManualClock()))
            for i in range(self.parallelism)
        ]
        for number, of_reader in enumerate(splits):
            self.readers[number % self.parallelism].add_splits(of_reader)
        for number, reader in enumerate(self.readers):
            reader.start()
            self.ask(number)

    def ask(self, number: int) -> None:
        context = self.readers[number].context
        if context.split_requested:
            context.split_requested = False
            self.asked[number] += 1
            self.enumerator.handle_split_request(number)
        self.hand_over()

    def kept(self) -> Any:
        """What another coordinator would go on from."""
        last = self.pending[-1][0] if self.pending else self.checkpoints
        return self.enumerator.snapshot_state(last)

    def replace(self) -> None:
        """The process of the enumerator dies."""
        self.enumerator = self.published.enumerator(self.kept())
        for number in range(self.parallelism):
            if self.asked[number] > self.given[number]:
                self.enumerator.handle_split_request(number)
        self.hand_over()

    def hand_over(self) -> None:
        for number, reader in enumerate(self.readers):
            assigned = self.published.readers.assigned.get(number, [])
            reader.add_splits(assigned[self.given[number] :])
            self.given[number] = len(assigned)

    def publish(self, sizes: list[int]) -> None:
        partitions = [[next(self.numbers) for _ in range(size)] for size in sizes]
        self.written += [n for one in partitions for n in one]
        self.published.publish(self.next_batch, *partitions)
        self.next_batch += 1
        self.enumerator.discover()
        self.hand_over()

    def poll(self, number: int) -> None:
        number %= self.parallelism
        polled: Any = self.readers[number].poll(1)
        if not isinstance(polled, NoRecords):
            self.seen += polled.batch["n"].to_pylist()
        self.ask(number)

    def checkpoint(self) -> None:
        self.checkpoints += 1
        number = self.checkpoints
        state = self.enumerator.snapshot_state(number)
        splits = [reader.snapshot_state(number) for reader in self.readers]
        self.pending.append((number, state, splits, len(self.seen)))

    def completes(self) -> None:
        if self.pending:
            number, *taken = self.pending.popleft()
            self.complete = (taken[0], taken[1], taken[2])
            self.enumerator.notify_checkpoint_complete(number)
            for reader in self.readers:
                reader.notify_checkpoint_complete(number)

    def read_all(self) -> None:
        before: Any = None
        while before != (now := (len(self.seen), list(self.given))):
            before = now
            for number in range(self.parallelism):
                self.poll(number)


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 3), max_size=3)),
    st.tuples(st.just("poll"), st.integers(0, 5)),
    st.tuples(
        st.sampled_from(["checkpoint", "completes", "fails", "rescales", "keep", "replace"]),
        st.none(),
    ),
)


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=60))
def test_each_row_is_read_once_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    run = Run(Published(tmp_path_factory.mktemp("batches")), 2)
    for what, argument in steps:
        if what == "publish":
            run.publish(argument)
        elif what == "poll":
            run.poll(argument)
        elif what == "checkpoint":
            run.checkpoint()
        elif what == "completes":
            run.completes()
        elif what == "keep":
            run.kept()
        elif what == "replace":
            run.replace()
        else:
            if what == "rescales":
                run.parallelism = 5 - run.parallelism
            run.start()
    run.read_all()
    assert sorted(run.seen) == run.written
