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
from flinkray.file_results import FileResultLostError, MicroBatch, PublishedBatches, ResultDirectory
from flinkray.state.operator_state import StateFile
from flinkray.streaming.sources.source import END_OF_INPUT, NoRecords, ReaderContext
from flinkray.streaming.sources.spark import LOOK_INTERVAL
from flinkray.streaming.sources.spark_stream import (
    MicroBatchLostError,
    MicroBatchSplit,
    SparkEpochsSource,
    SparkStreamSource,
)
from flinkray.testing.manual_clock import ManualClock
from tests.streaming.sources.reading import Readers, reader_of

SCHEMA = pa.schema([("n", pa.int64())])


class Published:
    """A folder, and a source that reads it."""

    def __init__(
        self,
        path: Path,
        parallelism: int = 2,
        kind: type[SparkStreamSource] = SparkEpochsSource,
    ) -> None:
        self.batches = PublishedBatches(str(path))
        self.source = kind(JobVertexID(b"v" * 16), "clicks")
        self.source.locate(str(path))
        self.readers = Readers(parallelism)
        self.clock = ManualClock()

    def enumerator(self, state: Any = None) -> Any:
        context: Any = self.readers
        if state is None:
            return self.source.create_enumerator(context, self.clock)
        return self.source.restore_enumerator(context, self.clock, state)

    def publish(self, batch_id: int, *partitions: list[int], origin: int = -1) -> None:
        """A record batch for each number."""
        written = [
            self.batches.write(
                number, SCHEMA, [pa.record_batch([pa.array([n])], schema=SCHEMA) for n in values]
            )
            for number, values in enumerate(partitions)
        ]
        partitions_with_rows = tuple(it for it in written if it.rows)
        self.batches.publish(MicroBatch(batch_id, partitions_with_rows, origin))

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


def test_published_micro_batches_are_assigned_in_order(
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


def test_empty_micro_batches_are_skipped_and_readers_are_told_to_end(published: Published) -> None:
    enumerator = published.enumerator()
    published.publish(0, [], [])
    published.publish(1)
    published.publish(2, [1])
    published.batches.end()
    enumerator.handle_split_request(0)
    enumerator.handle_split_request(1)
    assert {k: places(v) for k, v in published.readers.assigned.items()} == {0: [(2, 0)]}
    assert published.readers.done == [1]


def test_number_of_waiting_micro_batches_decreases_when_one_is_assigned(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    for batch_id in range(3):
        published.publish(batch_id, [batch_id])
    assert published.batches.waiting() == 3
    enumerator.handle_split_request(0)
    assert published.batches.waiting() == 2


# --- faults ---------------------------------------------------------------------------------------


def test_missing_partition_file_raises_an_error_that_names_the_file(published: Published) -> None:
    published.publish(0, [1])
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    (split,) = published.readers.assigned[0]
    published.batches.delete(split.name)
    with pytest.raises(FileResultLostError, match=split.name):
        reader_of(published.source, split).poll(1)


def test_restored_reader_of_micro_batches_resumes_at_its_offset(published: Published) -> None:
    published.publish(0, [1, 2, 3])
    enumerator = published.enumerator()
    enumerator.handle_split_request(0)
    reader = reader_of(published.source, *published.readers.assigned[0])
    assert reader.poll(1).batch["n"].to_pylist() == [1]
    (rest,) = reader.snapshot_state(1)
    assert rest.offset == 1
    assert numbers_of(reader_of(published.source, rest)) == [2, 3]


def test_read_partitions_are_deleted_after_a_completed_checkpoint(
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
    reader.delete_read(1)
    assert published.files() == 2
    reader.snapshot_state(3)
    reader.delete_read(3)
    assert published.files() == 0


def test_micro_batch_manifests_are_kept_while_a_checkpoint_needs_them(published: Published) -> None:
    enumerator = published.enumerator()
    for batch_id in range(3):
        published.publish(batch_id, [batch_id])
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(1)
    enumerator.handle_split_request(0)
    enumerator.snapshot_state(1)  # asked for again, between two checkpoints
    enumerator.notify_checkpoint_complete(1)
    assert [published.batches.batch(i) is not None for i in range(3)] == [False, True, True]


def test_micro_batch_manifests_that_a_checkpoint_of_a_dead_enumerator_needs_are_kept(
    published: Published,
) -> None:
    """The checkpoint can still complete, and the job can restore it."""
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


def test_restore_that_needs_a_deleted_micro_batch_raises_an_error_that_names_it(
    published: Published,
) -> None:
    enumerator = published.enumerator()
    state = enumerator.snapshot_state(1)
    for batch_id in range(2):
        published.publish(batch_id, [batch_id])
    published.batches.forget(below=1)
    with pytest.raises(MicroBatchLostError, match="micro-batch 0 of 'clicks'"):
        published.enumerator(state)


def test_end_of_micro_batches_in_one_execution_does_not_end_the_next_execution(
    published: Published,
) -> None:
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
        self.files: dict[str, StateFile] = {}
        """Of the savepoint that it begins with."""
        self.start()

    def start(self) -> None:
        state, splits, seen = self.complete
        del self.seen[seen:]
        self.pending.clear()
        self.published.readers = Readers(self.parallelism)
        self.given = [0] * self.parallelism
        self.asked = [0] * self.parallelism
        self.enumerator = self.published.enumerator(state)
        self.readers: list[Any] = [
            self.published.source.create_reader(ReaderContext(i, self.parallelism, ManualClock()))
            for i in range(self.parallelism)
        ]
        for reader in self.readers:
            reader.restore_files(self.files, is_complete=True)
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
        self.hand_over()
        splits = [reader.snapshot_state(number) for reader in self.readers]
        self.pending.append((number, state, splits, len(self.seen)))

    def completes(self) -> None:
        if self.pending:
            number, *taken = self.pending.popleft()
            self.complete = (taken[0], taken[1], taken[2])
            self.enumerator.notify_checkpoint_complete(number)
            for reader in self.readers:
                reader.delete_read(number)

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


def do(run: Run, what: str, argument: Any) -> None:
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


@settings(max_examples=40)
@given(st.lists(STEPS, max_size=60))
def test_each_row_of_a_micro_batch_is_read_once_despite_failures_and_rescaling(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    run = Run(Published(tmp_path_factory.mktemp("batches")), 2)
    for what, argument in steps:
        do(run, what, argument)
    run.read_all()
    assert sorted(run.seen) == run.written


class RunThroughSpark(Run):
    """Spark makes micro-batches of epochs.  A job may be gone on from by another one, with a
    savepoint; that has the epochs that the sink of the stage keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = 0
        self.epochs: dict[int, list[int]] = {}
        self.to_make: deque[int] = deque()
        super().__init__(Published(folder / "0"), 2)

    def publish(self, sizes: list[int]) -> None:
        """An epoch; sizes are those of what is made of it at first."""
        numbers = [next(self.numbers) for _ in range(sum(sizes))]
        self.written += numbers
        epoch = len(self.epochs) + 1
        self.epochs[epoch] = numbers
        self.to_make.append(epoch)

    def make(self, parts: int) -> None:
        """The next micro-batch, in so many partitions."""
        if self.to_make:
            epoch = self.to_make.popleft()
            numbers = self.epochs[epoch]
            partitions = [numbers[part::parts] for part in range(parts)]
            self.published.publish(self.next_batch, *partitions, origin=epoch)
            self.next_batch += 1

    def discover(self) -> None:
        self.enumerator.discover()
        self.hand_over()

    def moves(self, makes: int, completes: bool) -> None:
        """*makes*, and whether the checkpoint before is completed, between the cut of the source
        and that of the sink."""
        self.checkpoints += 1
        state = self.enumerator.snapshot_state(self.checkpoints)
        self.hand_over()
        for _ in range(makes):
            self.make(2)
        if completes:
            self.completes()
        consumed = self.published.batches.consumed()
        splits = [reader.snapshot_state(self.checkpoints) for reader in self.readers]
        self.files = {file.name: file for reader in self.readers for file in reader.files()}
        self.complete = state, splits, len(self.seen)
        self.to_make = deque(epoch for epoch in self.epochs if epoch > consumed)
        self.jobs += 1
        self.published = Published(self.folder / str(self.jobs))
        self.next_batch = 0
        self.start()


STEPS_OF_JOBS = (
    st.tuples(st.just("discover"), st.none()),
    st.tuples(st.just("poll"), st.integers(0, 5)),
    st.tuples(st.just("poll"), st.integers(0, 5)),
    st.tuples(st.just("checkpoint"), st.none()),
    st.tuples(st.just("completes"), st.none()),
    st.tuples(st.sampled_from(["fails", "rescales", "keep", "replace"]), st.none()),
    st.tuples(st.just("moves"), st.tuples(st.integers(0, 2), st.booleans())),
)
"""Of jobs that another one may go on from."""

STEPS_THROUGH_SPARK = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(1, 3), min_size=1, max_size=3)),
    st.tuples(st.just("make"), st.integers(1, 4)),
    *STEPS_OF_JOBS,
)


@settings(max_examples=40)
@given(st.lists(STEPS_THROUGH_SPARK, min_size=30, max_size=60))
def test_each_row_returns_from_spark_once_although_jobs_continue_from_savepoints(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    run = RunThroughSpark(tmp_path_factory.mktemp("batches"))
    for what, argument in steps:
        if what == "make":
            run.make(argument)
        elif what == "discover":
            run.discover()
        elif what == "moves":
            run.moves(*argument)
        else:
            do(run, what, argument)
    while run.to_make:
        run.make(3)
        run.discover()
        run.read_all()
    run.discover()
    run.read_all()
    assert sorted(run.seen) == run.written


class RunOfQuery(Run):
    """A job may be gone on from by another one, with a savepoint: Spark goes on where the copy of
    its checkpoint says, and may have gone further before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jobs = 0
        super().__init__(Published(folder / "0", kind=SparkStreamSource), 2)

    def publish(self, sizes: list[int]) -> None:
        self.written += [next(self.numbers) for _ in range(sum(sizes))]
        self.compute()

    def compute(self) -> None:
        """A micro-batch of all that no earlier one has had, in Spark's own order of things."""
        spark = ResultDirectory(self.published.batches.query.location)
        done = self.written_before(self.next_batch)
        numbers = self.written[done:]
        ResultDirectory(f"{spark.location}/sources/0").write_pieces("0", [b"v1"])
        ResultDirectory(f"{spark.location}/offsets").write_pieces(
            str(self.next_batch), [str(len(self.written)).encode()]
        )
        if self.next_batch:
            ResultDirectory(f"{spark.location}/commits").write_pieces(
                str(self.next_batch - 1), [b"{}"]
            )
        partitions = [numbers[part::2] for part in range(2)]
        self.published.publish(self.next_batch, *partitions)
        self.next_batch += 1

    def written_before(self, batch_id: int) -> int:
        """So many rows were in batches of lower numbers."""
        path = Path(self.published.batches.query.location, "offsets", str(batch_id - 1))
        return int(path.read_text()) if batch_id else 0

    def discover(self) -> None:
        self.enumerator.discover()
        self.hand_over()

    def moves(self, computes: int, completes: bool) -> None:
        """*computes* more batches, and the checkpoint before may be completed, between the cut of
        the source and that of its readers, and when files are copied."""
        self.checkpoints += 1
        state = self.enumerator.snapshot_state(self.checkpoints)
        self.hand_over()
        for _ in range(computes):
            self.publish([2])
        if completes:
            self.completes()
        splits = [reader.snapshot_state(self.checkpoints) for reader in self.readers]
        self.files = {file.name: file for reader in self.readers for file in reader.files()}
        for _ in range(computes):
            self.publish([1])
        self.complete = state, splits, len(self.seen)
        self.jobs += 1
        self.published = Published(self.folder / str(self.jobs), kind=SparkStreamSource)
        self.start()
        after = self.published.batches.goes_on_after()
        assert after is not None
        self.next_batch = after


STEPS_OF_QUERY = st.one_of(
    st.tuples(st.just("publish"), st.lists(st.integers(0, 3), max_size=3)),
    *STEPS_OF_JOBS,
)


@settings(max_examples=40)
@given(st.lists(STEPS_OF_QUERY, min_size=20, max_size=60))
def test_each_row_of_a_spark_query_is_read_once_although_new_jobs_continue_the_query(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    run = RunOfQuery(tmp_path_factory.mktemp("batches"))
    for what, argument in steps:
        if what == "discover":
            run.discover()
        elif what == "moves":
            run.moves(*argument)
        else:
            do(run, what, argument)
    run.compute()
    run.discover()
    run.read_all()
    assert sorted(run.seen) == run.written
