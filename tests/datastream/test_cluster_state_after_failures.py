"""Windows and operator state after a failure: as without it, and of what has failed only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import (
    Configuration,
    DataStream,
    MapFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from flinkray.datastream.cluster_execution import ClusterResults
from flinkray.datastream.common import Time
from flinkray.datastream.common.watermark_strategy import TimestampAssigner
from flinkray.datastream.connectors import DiscardingSink, IteratorSource
from flinkray.datastream.state import ValueStateDescriptor
from flinkray.datastream.window import SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkray.testing.threaded_cluster import ThreadedCluster
from flinkray.testing.waiting import wait_until
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.tallies import settings

CONFIGURATION = QUICK_RESTARTS

# As in test_cluster_checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HALF, COUNT = 500, 1000
KEYS = 5


def on(cluster: ThreadedCluster, folder: Path, parallelism: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    env.configure(Configuration.from_dict(settings(folder / "checkpoints", "1 h")))
    return env.set_parallelism(parallelism)


def halves(env: StreamExecutionEnvironment, goes_on: Path) -> DataStream:
    """Each reader has so many numbers of its own; the second half comes when it may."""

    def numbers(number: int, offset: int) -> Iterator[int]:
        for n in range(offset, COUNT):
            while n >= HALF and not goes_on.exists():
                goes_on.with_suffix(f".{number}").touch()
                time.sleep(0.002)
            yield number * COUNT + n

    no_watermarks = WatermarkStrategy.no_watermarks()
    source = IteratorSource(numbers, env.get_parallelism())
    return env.from_source(source, no_watermarks, "numbers", Types.LONG())


class Itself(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value) % COUNT


class Collected(ProcessWindowFunction[int, Any, int, Any]):
    """All numbers of a window, and how many windows of the key there were before."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._before = runtime_context.get_state(ValueStateDescriptor("before", Types.LONG()))

    def process(self, key: int, context: Any, elements: Any) -> Iterator[Any]:
        before = self._before.value() or 0
        self._before.update(before + 1)
        window = context.window()
        yield "collected", key, window.start, before, tuple(sorted(elements))


def windows(env: StreamExecutionEnvironment, goes_on: Path) -> DataStream:
    env.get_config().set_auto_watermark_interval(1)
    in_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Itself())
    by_key = (
        halves(env, goes_on)
        .assign_timestamps_and_watermarks(in_time)
        .key_by(lambda n: n % KEYS, Types.LONG())
    )
    tumbling = by_key.window(TumblingEventTimeWindows.of(Time.milliseconds(130)))
    sliding = by_key.window(
        SlidingEventTimeWindows.of(Time.milliseconds(120), Time.milliseconds(40))
    )
    sums = tumbling.reduce(lambda a, b: a + b).map(lambda total: ("sum", total))
    slides = sliding.reduce(lambda a, b: a + b).map(lambda total: ("slide", total))
    return sums.union(slides, tumbling.process(Collected()))


def expected_windows() -> Counter[Any]:
    """Each comes once."""
    tumbling: dict[tuple[int, int], list[int]] = {}
    sliding: Counter[tuple[int, int]] = Counter()
    for value in range(4 * COUNT):
        key, at = value % KEYS, value % COUNT
        tumbling.setdefault((key, at // 130 * 130), []).append(value)
        for start in range(at // 40 * 40, at - 120, -40):
            sliding[key, start] += value
    return Counter(
        [
            *(("sum", sum(values)) for values in tumbling.values()),
            *(("slide", total) for total in sliding.values()),
            *(
                ("collected", key, start, start // 130, tuple(sorted(values)))
                for (key, start), values in tumbling.items()
            ),
        ]
    )


def test_windows_interrupted_by_a_failure_give_the_same_results(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-03: all task processes in four slots of two TaskExecutors die half way."""
    goes_on = tmp_path / "goes-on"
    results = windows(on(cluster, tmp_path, 4), goes_on).execute_and_collect()
    assert isinstance(results, ClusterResults)
    job = cluster.client.job(results.job_id)
    with ThreadPoolExecutor() as threads:
        found = threads.submit(list, results)
        half_way = [goes_on.with_suffix(f".{number}") for number in range(4)]
        wait_until(lambda: all(map(Path.exists, half_way)), 300, "all to be half way")
        job.trigger_checkpoint(timeout=300)
        last = job.trigger_checkpoint(timeout=300)
        cluster.crash_all("TaskProcess")
        goes_on.touch()
        shown = found.result(300)
    assert Counter(shown) == expected_windows()
    details = job.details()
    assert details.restarts == 1
    assert details.checkpoints is not None
    assert details.checkpoints.latest_restored == int(Path(last).name.removeprefix("chk-"))
    places = {(e.location or "").split()[0] for v in details.vertices for e in v.executions}
    assert len(places) == 2


class Seen(MapFunction[int, int]):
    """Writes down what comes, by the reader that it comes from; fails once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_first = runtime_context.get_attempt_number() == 0

    def map(self, value: int) -> int:
        if self._is_first and value == COUNT + HALF + 10:
            raise ValueError(f"record {value}")
        with (self._folder / str(value // COUNT)).open("a") as file:
            file.write(f"{value}\n")
        return value


def test_only_the_failed_region_is_restored_from_its_checkpoint(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """E2E-05"""
    goes_on, seen = tmp_path / "goes-on", tmp_path / "seen"
    seen.mkdir()
    env = on(cluster, tmp_path, 2)
    halves(env, goes_on).map(Seen(seen)).sink_to(DiscardingSink())
    job = cluster.client.job(env.execute_async("regions").get_job_id())

    def of(reader: int) -> list[int]:
        path = seen / str(reader)
        return list(map(int, path.read_text().split())) if path.exists() else []

    wait_until(lambda: len(of(0)) == len(of(1)) == HALF, 300, "both to be half way")
    job.trigger_checkpoint(timeout=300)
    goes_on.touch()
    job.result(300)
    assert of(0) == list(range(COUNT)), "it has not noticed"
    failed = COUNT + HALF
    assert of(1) == [*range(COUNT, failed + 10), *range(failed, 2 * COUNT)]
    details = job.details()
    assert details.restarts == 1
    for vertex in details.vertices:
        assert sorted(e.attempt_number for e in vertex.executions) == [0, 1]
