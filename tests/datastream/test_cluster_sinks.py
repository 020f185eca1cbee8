"""Sinks with committers on a cluster: whatever dies, each record is seen once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from flinkray.datastream import (
    Configuration,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import (
    CommitRequest,
    Committer,
    CommitterContext,
    DataGeneratorSource,
    FileSink,
)
from flinkray.datastream.functions import MapFunction
from flinkray.streaming.sinks.file_writer import Rename, RenamingCommitter
from flinkray.testing.threaded_cluster import ThreadedCluster
from tests.datastream.gates import new_gate, pass_through
from tests.datastream.held_numbers import HeldNumbers, crash_after_each_part
from tests.datastream.tallies import newest, settings

COUNT = 6000
PER_SECOND = 8000.0


# An interrupt that ends the thread of a crashed process may come between the opening of a file or
# connection and its being kept; of a real process nothing would be left.
interrupted = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def on(
    cluster: ThreadedCluster, parallelism: int, options: dict[str, str]
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(options))
    return env.set_parallelism(parallelism)


def written(folder: Path) -> list[int]:
    """What readers of the directory see, sorted."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name[0] != "."]
    return sorted(int(line) for path in files for line in path.read_text().split())


def assert_each_once(folder: Path, count: int = COUNT) -> None:
    counts = Counter(written(folder))
    lost = [n for n in range(count) if n not in counts]
    doubled = [n for n, times in counts.items() if times > 1]
    assert (lost[:5], len(lost), doubled[:5], len(doubled)) == ([], 0, [], 0)


def into_files(
    env: StreamExecutionEnvironment, source: DataGeneratorSource, sink: FileSink
) -> None:
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", Types.LONG())
    numbers.uid("numbers").rebalance().sink_to(sink).name("files").uid("files")


@pytest.mark.parametrize(
    ("kind", "parallelism", "unaligned"),
    [
        ("TaskProcess", 1, False),
        ("TaskProcess", 2, True),
        ("TaskExecutor", 2, False),
        ("StreamCoordinator", 1, True),
        ("JobMaster", 2, True),
    ],
)
@interrupted
def test_file_sink_writes_each_record_once_whichever_process_dies(
    kind: str, parallelism: int, unaligned: bool, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-04"""
    checkpoints, files = tmp_path / "checkpoints", tmp_path / "files"
    options = settings(checkpoints, "50 ms")
    options["execution.checkpointing.unaligned.enabled"] = str(unaligned).lower()
    env = on(own_cluster, parallelism, options)
    into_files(env, HeldNumbers(lambda n: n, COUNT, PER_SECOND), FileSink(files))
    job = env.execute_async("files")
    crash_after_each_part(own_cluster, kind, lambda: len(written(files)))
    job.get_job_execution_result().result(300)
    assert_each_once(files)
    assert newest(checkpoints) == 0


class HeldCommitter(RenamingCommitter):
    """Of the first commit, the first half is done when it is held."""

    def __init__(self, is_before: bool) -> None:
        self._is_before = is_before

    def commit(self, requests: Sequence[CommitRequest[Rename]]) -> None:
        if self._is_before:
            pass_through("commit")
        super().commit(requests)
        if not self._is_before:
            pass_through("commit")


class HeldFileSink(FileSink):
    """Its commits are held before, or after they were done, and before anybody hears of it."""

    def __init__(self, folder: Path, is_before: bool) -> None:
        super().__init__(folder)
        self._is_before = is_before

    def create_committer(self, context: CommitterContext) -> Committer[Rename]:
        return HeldCommitter(self._is_before)


class FailingAtTheEnd(MapFunction[int, int]):
    """Of the last subtask; the first time, and when others have ended already."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def map(self, value: int) -> int:
        marker = self._folder / "failed"
        if value == COUNT - 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("just before the end")
        return value


@pytest.mark.parametrize("mode", ["STREAMING", "BATCH"])
def test_output_of_an_ended_subtask_is_written_once_although_another_subtask_fails(
    mode: str, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """No checkpoints: the region runs again from the beginning."""
    files = tmp_path / "files"
    env = on(own_cluster, 2, {})
    env.set_runtime_mode(RuntimeExecutionMode[mode])
    numbers = env.from_sequence(0, COUNT - 1)
    failing = numbers.map(FailingAtTheEnd(tmp_path), Types.LONG())
    failing.sink_to(FileSink(files))
    env.execute("fails at the end")
    assert (tmp_path / "failed").exists()
    assert_each_once(files)


@pytest.mark.parametrize("kind", ["TaskExecutor", "JobMaster"])
@interrupted
def test_batch_job_writes_each_record_once_when_a_process_dies_during_commit(
    kind: str, own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Files of its writers may be lost and written again under other names."""
    gate = new_gate("commit")
    files = tmp_path / "files"
    env = on(own_cluster, 2, {})
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.from_sequence(0, COUNT - 1).sink_to(HeldFileSink(files, is_before=False))
    job = env.execute_async("batch")
    assert gate.reached.wait(300)
    own_cluster.crash(kind)
    gate.opened.set()
    job.get_job_execution_result().result(300)
    assert_each_once(files)
