"""Savepoints of programs on a cluster: taken, started from, and jobs that are stopped with them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.datastream.closeable_iterator import CloseableIterator
from flinkray.datastream.cluster_execution import ClusterResults
from flinkray.state_reader import SavepointReader
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from flinkray.testing.waiting import wait_until
from tests.datastream.rescaled import (
    COUNTERS,
    counted_and_totalled,
    expected_totals,
    restored,
)
from tests.datastream.tallies import newest, settings
from tests.datastream.threads import none_left

CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "10 ms",
    "task.cancellation.interval": "50 ms",
    "cluster.registration.error-delay": "5 ms",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    storage = str(tmp_path_factory.mktemp("cluster"))
    with none_left(), threaded_cluster(storage, configuration=CONFIGURATION) as cluster:
        yield cluster


def on(
    cluster: ThreadedCluster, checkpoints: Path, parallelism: int = 2, **others: str
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster.client)
    values = {**settings(checkpoints), **{k.replace("__", "."): v for k, v in others.items()}}
    env.configure(Configuration.from_dict(values))
    return env.set_parallelism(parallelism)


def from_savepoint(env: StreamExecutionEnvironment, path: str | None) -> StreamExecutionEnvironment:
    """None: from the beginning."""
    return env.configure(Configuration.from_dict({"execution.state-recovery.path": path or ""}))


def wait_for_checkpoint(directory: Path) -> None:
    before = newest(directory)
    wait_until(lambda: newest(directory) > before, 30, "a checkpoint")


def stop(
    cluster: ThreadedCluster,
    results: CloseableIterator | list[Any],
    directory: Path,
    *,
    drain: bool = False,
) -> tuple[str, list[Any]]:
    """The savepoint, and the results that come until the program has finished with it."""
    assert isinstance(results, ClusterResults)
    job = cluster.client.job(results.job_id)
    stopping = cluster.client.start(job.stop_with_savepoint_async(str(directory), drain=drain))
    shown = list(results)
    assert job.result(60).savepoint == stopping.result(60)
    return stopping.result(), shown


def test_state_is_rescaled_out_and_in(cluster: ThreadedCluster, tmp_path: Path) -> None:
    """E2E-01, E2E-02: max parallelism 13 and 42 keys; the savepoint is moved meanwhile."""
    count, rate = 42 * 400, 3_000.0
    path: str | None = None
    for run, parallelism in enumerate((2, 4)):
        checkpoints = tmp_path / f"checkpoints-{run}"
        env = from_savepoint(on(cluster, checkpoints, parallelism), path)
        totals = counted_and_totalled(env, count, rate, tmp_path / f"run-{run}")
        results = totals.execute_and_collect()
        wait_for_checkpoint(checkpoints)
        taken, shown = stop(cluster, results, tmp_path / "savepoints")
        assert shown == [], "timers have not fired"
        path = str(tmp_path / "elsewhere" / f"moved-{run}")
        shutil.move(taken, path)
    env = from_savepoint(on(cluster, tmp_path / "checkpoints-2", 1), path)
    results = counted_and_totalled(env, count, rate, tmp_path / "run-2").execute_and_collect()
    assert set(results) == expected_totals(count)
    for run, parallelism in ((1, 4), (2, 1)):
        savepoint = SavepointReader(str(tmp_path / "elsewhere" / f"moved-{run - 1}"))
        entries = savepoint.keyed_entries("totals", "total")
        processed = sum(entry.value[0] for entry in entries)
        assert 0 < processed < count
        subtasks = restored(tmp_path / f"run-{run}")
        assert len(subtasks) == parallelism
        assert sum(sum(each["counters"]) for each in subtasks) == processed
        sizes = [len(each["counters"]) for each in subtasks]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == 2 * COUNTERS
        assert all(sum(each["all"]) == processed for each in subtasks)
        assert all(each["table"] == {"limit": 7} for each in subtasks)
