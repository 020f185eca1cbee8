"""What writers of files call durable survives that the power goes, with all folders above it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from flinkray.checkpoint.files import LocalStateFiles
from flinkray.datastream.connectors import BucketAssigner, FileSink, RollingPolicy
from flinkray.file_results.batches import MicroBatch, PublishedBatches
from flinkray.file_results.commit_log import FileCommitLog
from flinkray.file_results.epochs import EpochPart, Epochs
from flinkray.file_results.published import Publication, PublishedPartitions
from flinkray.file_results.result_files import ResultDirectory, ResultWriter
from flinkray.ha.directory import LocalDirectory
from tests.losing_disk import LosingDisk
from tests.streaming.sinks.sink_harness import SinkHarness, SinkState

ROWS = pa.record_batch({"id": [1, 2, 3]})


def entry(folder: Path) -> Callable[[], object]:
    LocalDirectory(folder).write("entry", b"content")
    return lambda: LocalDirectory(folder).read("entry")


def state_file(folder: Path) -> Callable[[], object]:
    location = str(folder / "file")
    with_content = LocalStateFiles().create(location)
    with_content.write(b"content")
    with_content.close()
    return lambda: LocalStateFiles().open(location).read(0, 100)


def note(folder: Path) -> Callable[[], object]:
    ResultDirectory(str(folder)).write_json("note", {"rows": 3})
    return lambda: ResultDirectory(str(folder)).read_json("note")


def manifest(folder: Path) -> Callable[[], object]:
    writer = ResultWriter(ResultDirectory(str(folder)))
    writer.write(ROWS)
    writer.finish()
    ResultDirectory(str(folder)).sync()
    return lambda: ResultDirectory(str(folder)).list()


def epoch(folder: Path) -> Callable[[], object]:
    epochs = Epochs(str(folder))
    name, directory = epochs.new_part()
    writer = ResultWriter(directory)
    writer.write(ROWS)
    writer.finish()
    epochs.sync(name)
    epochs.publish(1, [EpochPart(name, 3, "id")])

    def read() -> object:
        ((part,),) = [one.parts for one in epochs.published(0)]
        (file,) = epochs.part(part.name).list()
        return epochs.part(part.name).open(file).read().to_pylist()

    return read


def micro_batch(folder: Path) -> Callable[[], object]:
    batches = PublishedBatches(str(folder))
    batches.publish(MicroBatch(0, (batches.write(0, ROWS.schema, [ROWS]),)))

    def read() -> object:
        batch = batches.batch(0)
        assert batch is not None
        (partition,) = batch.partitions
        return batches.open(partition.name).read_all().to_pylist()

    return read


def publication(folder: Path) -> Callable[[], object]:
    partitions = PublishedPartitions(str(folder))
    partition = partitions.write("one", 0, ROWS.schema, [ROWS], durable=True)
    partitions.accept("one", partition)
    partitions.seal("one", {0: 3})

    def read() -> object:
        found = partitions.list(Publication("one", {0: 3}))
        return partitions.open("one", found[0].name).read_all().to_pylist()

    return read


def committables(folder: Path) -> Callable[[], object]:
    FileCommitLog(str(folder)).settle(["first"])
    return lambda: FileCommitLog(str(folder)).settle(["second"])


@pytest.mark.parametrize("is_made_by_another", [False, True])
@pytest.mark.parametrize(
    "write",
    [entry, state_file, note, manifest, epoch, micro_batch, publication, committables],
)
def test_durable_files_survive_a_power_loss_with_their_new_folders(
    tmp_path: Path, write: Callable[[Path], Callable[[], object]], is_made_by_another: bool
) -> None:
    folder = tmp_path / "of" / "a" / "job"
    with LosingDisk(tmp_path) as disk:
        if is_made_by_another:  # who died before the folders were durable
            folder.mkdir(parents=True)
        read = write(folder)
        before = read()
        disk.lose_power()
        assert read() == before


def test_losing_disk_loses_files_that_were_not_synced(tmp_path: Path) -> None:
    with LosingDisk(tmp_path) as disk:
        (tmp_path / "a" / "b").mkdir(parents=True)
        (tmp_path / "a" / "b" / "file").write_bytes(b"content")
        disk.lose_power()
        assert list(tmp_path.iterdir()) == []


class ByBucket(BucketAssigner):
    def get_bucket_id(self, value: Any, context: Any) -> str:
        return str(value[0])


class FileSinkStory(RuleBasedStateMachine):
    """A FileSink that is killed, and whose machine loses its power, between any two steps.

    Each record is in a visible file once, as soon as a checkpoint that covers it is complete and
    the sink goes on; records that no complete checkpoint covers are in none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.disk = LosingDisk(Path(self.folder.name))
        self.number = 0
        self.written: list[tuple[str, int]] = []
        self.covered: list[tuple[str, int]] = []
        self.complete: SinkState | None = None
        self.taken: tuple[SinkState, list[tuple[str, int]]] | None = None
        self.killed: list[SinkHarness] = []
        self.begin()

    def begin(self) -> None:
        sink = FileSink(
            Path(self.folder.name) / "out",
            bucket_assigner=ByBucket(),
            rolling_policy=RollingPolicy(part_size=30),
        )
        self.sink = SinkHarness(sink, self.complete, attempt_number=len(self.killed))

    def visible(self) -> Counter[str]:
        out = Path(self.folder.name) / "out"
        files = [p for p in out.rglob("*") if p.is_file() and not p.name.startswith(".")]
        return Counter(line for file in files for line in file.read_text().splitlines())

    @rule(bucket=st.sampled_from(["country=de/day=1", "country=de/day=2", "country=fr/day=1"]))
    def write(self, bucket: str) -> None:
        self.number += 1
        self.sink.process((bucket, self.number))
        self.written.append((bucket, self.number))

    @rule()
    def take_checkpoint(self) -> None:
        self.taken = self.sink.checkpoint(), list(self.written)

    @precondition(lambda self: self.taken is not None)
    @rule(is_told=st.booleans())
    def complete_checkpoint(self, is_told: bool) -> None:
        """The checkpoint is stored, which commits if the sink lives to be told."""
        assert self.taken is not None
        self.complete, self.covered = self.taken
        self.taken = None
        if is_told:
            self.sink.complete()
            self.check()

    @rule(loses_power=st.booleans(), is_killed=st.booleans())
    def fail(self, loses_power: bool, is_killed: bool) -> None:
        if not is_killed:
            self.sink.close()
        self.killed.append(self.sink)
        if loses_power:
            self.disk.lose_power()
        self.written, self.taken = list(self.covered), None
        self.begin()
        self.check()

    def check(self) -> None:
        assert self.visible() == Counter(str(record) for record in self.covered)

    def teardown(self) -> None:
        with self.folder, self.disk:
            for sink in (*self.killed, self.sink):
                sink.close()


TestFileSinkStory = FileSinkStory.TestCase
TestFileSinkStory.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
