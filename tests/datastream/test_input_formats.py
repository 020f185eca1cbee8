"""Input formats on a cluster whose tasks and coordinators fail."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flinkray.datastream import (
    Configuration,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flinkray.datastream.common.io import InputFormat
from flinkray.datastream.connectors import DiscardingSink
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import MASTERS_MAY_DIE, RESTARTS

CONFIGURATION = MASTERS_MAY_DIE


def on(cluster: ThreadedCluster) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(RESTARTS))
    return env.set_parallelism(2)


class TenNumbers(InputFormat[int, int]):
    """Each is a split. Notes how often the splits are created."""

    def __init__(self, folder: Path) -> None:
        self.created = str(folder / "created")

    def create_input_splits(self, min_num_splits: int) -> Sequence[int]:
        with open(self.created, "a") as file:
            file.write("x")
        return range(10)

    def open(self, split: int) -> None:
        self.left = [split]

    def reached_end(self) -> bool:
        return not self.left

    def next_record(self) -> int:
        return self.left.pop()


class FailingOnce(MapFunction[int, int]):
    """Subtask 0 fails on its third record, before subtask 1 has read any."""

    def __init__(self, folder: Path) -> None:
        self.read = str(folder / "read")
        self.failed = str(folder / "failed")

    def open(self, runtime_context: RuntimeContext) -> None:
        self.me = runtime_context.get_index_of_this_subtask()
        self.attempt = runtime_context.get_attempt_number()
        self.count = 0

    def map(self, value: int) -> int:
        if self.me == 1:
            wait_until(Path(self.failed).exists, 300, "the failure of subtask 0")
        self.count += 1
        with open(self.read, "a") as file:
            file.write(json.dumps([self.me, self.attempt, value]) + "\n")
        if (self.me, self.attempt, self.count) == (0, 0, 3):
            Path(self.failed).touch()
            raise ValueError("after three of them")
        return value


def read_by(folder: Path) -> list[tuple[int, int, int]]:
    """The records of each subtask: (subtask, attempt number, value)."""
    return [tuple(json.loads(line)) for line in (folder / "read").read_text().splitlines()]


def test_only_the_splits_of_a_failed_subtask_are_read_again(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """JM-12: after a local failover."""
    env = on(own_cluster)
    env.create_input(TenNumbers(tmp_path)).map(FailingOnce(tmp_path)).sink_to(DiscardingSink())
    env.execute()

    read = read_by(tmp_path)
    assert {attempt for me, attempt, _ in read if me == 1} == {0}
    lost = [value for me, attempt, value in read if (me, attempt) == (0, 0)]
    kept = [value for me, attempt, value in read if (me, attempt) != (0, 0)]
    assert len(lost) == 3
    assert sorted(kept) == list(range(10)), "each once by the attempts that finished"
    assert (tmp_path / "created").read_text() == "x"


def test_death_of_the_stream_coordinator_loses_no_split_and_creates_no_splits_again(
    own_cluster: ThreadedCluster, tmp_path: Path
) -> None:
    go, begun = str(tmp_path / "go"), str(tmp_path / "begun")

    class Held(MapFunction[int, int]):
        def map(self, value: int) -> int:
            Path(begun).touch()
            wait_until(Path(go).exists, 300, "the death of the StreamCoordinator")
            return value

    results = on(own_cluster).create_input(TenNumbers(tmp_path)).map(Held()).execute_and_collect()
    wait_until(Path(begun).exists, 150, "the first record")
    own_cluster.crash("StreamCoordinator")
    Path(go).touch()
    assert sorted(results) == list(range(10))
    assert (tmp_path / "created").read_text() == "x"
