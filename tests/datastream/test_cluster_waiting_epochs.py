"""Streams that Spark is too slow for: their sources wait, and checkpoints go on."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import (
    Configuration,
    DataStream,
    JobClient,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.file_results import Epochs
from flinkray.streaming.sources.collection import Slice
from flinkray.streaming.sources.generated import _GeneratorReader
from flinkray.streaming.sources.source import NOTHING_NOW, Polled, ReaderContext, SourceReader
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.tallies import newest, settings
from tests.datastream.threads import none_left

NAME = "tests.datastream.test_cluster_waiting_epochs"
MOST = 3
ENDLESS = 10**9
ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
TAKEN: dict[str, dict[int, list[int]]] = {}
"""By the name of a sink and checkpoint, the numbers."""
OPEN: set[str] = set()
"""Sinks whose function does not hold Spark up."""


class Numbers(DataGeneratorSource):
    """They come slowly, and as fast as they can once no sink holds Spark up any more."""

    def __init__(self, count: int) -> None:
        super().__init__(lambda n: n, count, 1e6)

    def create_reader(self, context: ReaderContext) -> SourceReader[Slice]:
        return _Reader(context, self.records, 1e6)


class _Reader(_GeneratorReader):
    _next = 0.0
    """When another one may come."""

    def read(self, max_records: int) -> Polled:
        if self._is_fast():
            return super().read(max_records)
        now = time.time()
        if now < self._next:
            return NOTHING_NOW
        self._next = now + 0.02
        return super().read(1)

    def next_poll_time(self) -> float | None:
        return super().next_poll_time() if self._is_fast() else self._next

    def _is_fast(self) -> bool:
        module = importlib.import_module(NAME)
        return set(module.OPEN) == set(module.TAKEN)


def taker(name: str) -> Callable[[Any, int], None]:
    TAKEN[name] = {}
    OPEN.discard(name)

    def take(rows: Any, checkpoint_id: int) -> None:
        # the function has come by value, the test has the module
        module = importlib.import_module(NAME)
        wait_until(lambda: name in module.OPEN, 300, "the gate")
        numbers = rows.column("n").to_pylist()
        assert module.TAKEN[name].setdefault(checkpoint_id, numbers) == numbers

    return take


def numbers_of(name: str) -> list[int]:
    return [n for numbers in list(TAKEN[name].values()) for n in numbers]


def assert_each_once(name: str, count: int) -> None:
    assert Counter(numbers_of(name)) == Counter(range(count))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ThreadedCluster]:
    storage = str(tmp_path / "cluster")
    with none_left(), threaded_cluster(storage, configuration=QUICK_RESTARTS) as cluster:
        yield cluster
        OPEN.update(TAKEN)


def on(cluster: ThreadedCluster, tmp_path: Path) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    most = {"execution.spark.max-waiting-epochs": str(MOST)}
    checkpoints = settings(tmp_path / "checkpoints", "50 ms")
    return env.configure(Configuration.from_dict({**checkpoints, **most})).set_parallelism(2)


def numbers(env: StreamExecutionEnvironment, name: str, count: int = ENDLESS) -> DataStream:
    stream = env.from_source(Numbers(count), WatermarkStrategy.no_watermarks(), name, Types.LONG())
    return stream.uid(name).map(lambda n: (n,), output_type=ROW)


def into_spark(stream: DataStream, name: str) -> None:
    stream.to_spark(taker(name), name, memory="1g").uid(name)


class Waiting:
    """Epochs of a job that wait for so many of its stages."""

    def __init__(self, tmp_path: Path, job: JobClient, stages: int = 1) -> None:
        self._stages = stages
        self._tmp_path = tmp_path
        self._pattern = f"data/{job.get_job_id()}/results/epochs/*"

    def number(self) -> int:
        """0: some of the stages are not behind."""
        waiting = [Epochs(str(path)).waiting() for path in self._paths()]
        behind = [number for number in waiting if number >= MOST]
        return sum(behind) if len(behind) == self._stages else 0

    def are_all(self) -> bool:
        """The stream has ended."""
        return any(list(path.glob("_end-*")) for path in self._paths())

    def _paths(self) -> list[Path]:
        return list((self._tmp_path / "cluster").glob(self._pattern))

    def once_still(self) -> int:
        """How many they are, when checkpoints do not make them more."""
        begin = checkpoint = newest(self._tmp_path / "checkpoints")
        before = -1

        def is_still() -> bool:
            nonlocal begin, before, checkpoint
            now, checkpoint = self.number(), newest(self._tmp_path / "checkpoints")
            if now != before or not now:
                begin, before = checkpoint, now
            return checkpoint >= begin + 10

        wait_until(is_still, 300, "checkpoints without epochs")
        return before


def test_source_waits_while_spark_is_stopped_and_reads_on_when_spark_continues(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    env = on(cluster, tmp_path)
    into_spark(numbers(env, "numbers", 4_000), "out")
    job = env.execute_async("held")
    assert Waiting(tmp_path, job).once_still() >= MOST
    vertices = cluster.client.job(job.get_job_id()).details().vertices
    held = [vertex.io_metrics.held for vertex in vertices if vertex.io_metrics is not None]
    assert [number for number in held if number is not None] == [2], "both tasks of the source"
    OPEN.add("out")
    job.get_job_execution_result().result(300)
    assert_each_once("out", 4_000)


@pytest.mark.parametrize("drain", [False, True])
def test_job_with_a_waiting_source_can_be_stopped_with_a_savepoint(
    drain: bool, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    env = on(cluster, tmp_path)
    into_spark(numbers(env, "numbers"), "out")
    job = env.execute_async("stopped")
    waiting = Waiting(tmp_path, job)
    waiting.once_still()
    stopped = job.stop_with_savepoint(drain, str(tmp_path / "savepoints"))
    wait_until(waiting.are_all, 300, "the end of the stream")
    assert numbers_of("out") == []
    OPEN.add("out")
    stopped.result(300)
    seen = numbers_of("out")
    first = [n for n in seen if n < ENDLESS // 2]  # one subtask's half
    second = [n - ENDLESS // 2 for n in seen if n >= ENDLESS // 2]
    assert (sorted(first), sorted(second)) == ([*range(len(first))], [*range(len(second))])


def test_source_keeps_waiting_for_spark_whichever_process_dies(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Restored tasks ask before they read; the waiting epochs are in storage."""
    env = on(cluster, tmp_path)
    into_spark(numbers(env, "numbers", 4_000), "out")
    job = env.execute_async("dying")
    waiting = Waiting(tmp_path, job)
    number = waiting.once_still()
    for kind in ("JobMaster", "StreamCoordinator", "SparkDriver", "TaskProcess"):
        cluster.crash(kind)
        wait_until(lambda kind=kind: cluster.mini.processes(kind), 300, "another one")  # type: ignore[misc]
        assert waiting.once_still() == number, kind
    job.trigger_savepoint(str(tmp_path / "savepoints")).result(300)
    OPEN.add("out")
    job.get_job_execution_result().result(300)
    assert_each_once("out", 4_000)
