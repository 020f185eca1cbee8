"""ZooKeeper itself fails below a cluster that runs a stream: tasks notice nothing, and who leads
then goes on, or is elected anew.

The last test takes long and is run on request only: ``FLINKRAY_KILLS=10
FLINKRAY_KILLS_OF=zookeeper FLINKRAY_KILLS_SEED=1 pytest --log-cli-level=INFO
tests/system/test_zookeeper_faults.py``.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.core.errors import FlinkRayError
from flinkray.datastream import StreamExecutionEnvironment, Types
from flinkray.scheduler.shared.states import JobStatus
from flinkray.testing.task_jobs import ends, task_job
from flinkray.testing.waiting import wait_until
from tests.datastream.numbers import Numbers, Paced, generated
from tests.datastream.tallies import differences, newest
from tests.system.kills.elected_streams import (
    CONFIGURATION,
    END,
    all_run,
    attempts,
    started,
)
from tests.system.kills.gaps import gaps, longest, starts
from tests.system.kills.leaders import Leaders
from tests.system.kills.only_job import the_job
from tests.system.observer import live_actors
from tests.zookeeper_log import transactions
from tests.zookeeper_server import ZooKeeperServer, running, running_ensemble

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
CHOSEN = os.environ.get("FLINKRAY_KILLS_OF", "").split(",")

pytestmark = [pytest.mark.ray, pytest.mark.kill, pytest.mark.slow]

log = logging.getLogger(__name__)

SESSION_TIMEOUT = 6.0
"""Seconds."""
COUNT, PER_SECOND = 80_000, 200.0
"""Records of a job, and how many of them it gets a second until the faults are over."""
NO_FAILURES = {"execution.checkpointing.tolerable-failed-checkpoints": "0"}
"""One that fails for another reason than that its JobMaster was lost restarts all tasks."""
OF_ONE_JOB = 5
"""Faults at random."""
LONGEST_STOP = 3 * SESSION_TIMEOUT
"""Seconds; nobody leads any more a little before that."""


class PacedUntil(Paced):
    """Lets all through at once as soon as a file is there."""

    def __init__(self, per_second: float, file: Path) -> None:
        super().__init__(per_second)
        self._file = file
        self._is_over = False

    def map(self, value: int) -> int:
        self._is_over = self._is_over or self._file.exists()
        return value if self._is_over else super().map(value)


def as_long_as_it_takes(
    env: StreamExecutionEnvironment, count: int, per_second: float, folder: Path
) -> Numbers:
    """Numbers that come slowly until there is a file *over* in the folder."""
    numbers, of_part = generated(env, count, None, folder)
    pace = PacedUntil(per_second / env.get_parallelism(), folder / "over")
    return numbers.map(pace, Types.LONG()).uid("pace"), of_part


@contextmanager
def cluster(cluster_id: str, hosts: str) -> Iterator[ClusterClient]:
    configuration = {
        **CONFIGURATION,
        "high-availability.zookeeper.quorum": hosts,
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_TIMEOUT:g} s",
    }
    with flinkray.connect(cluster_id=cluster_id, configuration=configuration) as client:
        yield client


class Stream:
    """A job that is running, and what must be true of it whatever becomes of ZooKeeper.  A context:
    it ends with it."""

    def __init__(self, client: ClusterClient, folder: Path, threads: ThreadPoolExecutor) -> None:
        self._client = client
        self._folder = folder
        self._checkpoint = 0
        self.results: Future[list[Any]] = started(
            client, as_long_as_it_takes, COUNT, PER_SECOND, folder, threads, **NO_FAILURES
        )
        self.job: JobHandle = the_job(client)

    def __enter__(self) -> Stream:
        wait_until(lambda: all_run(self.job), 300, "all tasks to run")
        self.await_checkpoints()
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "over").touch()

    def await_checkpoints(self) -> None:
        """Two more are complete; their ids never go back."""
        least = self._newest_checkpoint() + 2
        wait_until(lambda: self._newest_checkpoint() >= least, 300, f"checkpoint {least}")

    def _newest_checkpoint(self) -> int:
        before, self._checkpoint = self._checkpoint, newest(self._folder / "checkpoints")
        assert self._checkpoint >= before
        return self._checkpoint

    def await_records(self) -> None:
        """Some come out that had not when this was called."""
        assert not self.results.done()
        begin = len(gaps(self._folder))
        wait_until(lambda: len(gaps(self._folder)) > begin + 20, 300, "records")

    def tell(self, begin: float) -> None:
        """How long the output stood still since then."""
        gap = longest(gaps(self._folder), begin, time.time())
        log.info("longest gap of the output: %.0f ms", gap * 1e3)

    def end(self) -> None:
        """It goes on, all is right, and no task has begun a second time."""
        self.await_checkpoints()
        (self._folder / "over").touch()
        assert not differences(self.results.result(timeout=END), COUNT)
        assert attempts(self.job) == {0}
        assert max(starts(self._folder)) == 1
        assert self.job.exceptions() == ()
        assert self.job.details().restarts == 0


def leading(client: ClusterClient) -> dict[str, int]:
    """The processes that lead now, by their names, with their process ids."""
    namespace = f"flinkray-{client.cluster_id}"
    pids = {a.name: a.pid for a in live_actors() if a.namespace == namespace}
    masters = [info.leader for info in client.cluster_overview().masters]
    names = [*masters, *(name for name in pids if name.startswith("JobMaster-"))]
    assert None not in names
    return {name: pids[name] for name in names if name is not None}


def await_ends(leaders: dict[str, int]) -> None:
    """They notice that they lead no more, and nobody else does."""
    wait_until(lambda: not any(map(psutil.pid_exists, leaders.values())), 300, "them to end")


def submitted(client: ClusterClient, threads: ThreadPoolExecutor) -> Future[JobStatus]:
    """How another job ends."""
    return threads.submit(lambda: client.submit(task_job(ends)).wait(timeout=END))


def leaders_of(client: ClusterClient, server: ZooKeeperServer) -> Leaders:
    """Whoever has written anything led then."""
    return Leaders(f"/flinkray/{client.cluster_id}", transactions(server.directory))


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def streams(ray_cluster: object, zookeeper: ZooKeeperServer) -> Iterator[ClusterClient]:
    with cluster("zookeeper-faults", zookeeper.hosts) as client:
        yield client


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def test_leaders_stay_when_the_zookeeper_server_is_killed_and_restarted(
    streams: ClusterClient, zookeeper: ZooKeeperServer, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """A ZooKeeper session outlives its server."""
    with Stream(streams, tmp_path, threads) as stream:
        before = leading(streams)
        began = time.time()
        zookeeper.stop()
        other = submitted(streams, threads)
        stream.await_records()
        zookeeper.start()
        assert other.result(timeout=END) is JobStatus.FINISHED
        stream.await_checkpoints()
        stream.tell(began)
        assert leading(streams) == before
        stream.end()
    leaders_of(streams, zookeeper)


def test_stopped_zookeeper_server_ends_all_leaderships_but_loses_no_record(
    streams: ClusterClient, zookeeper: ZooKeeperServer, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """HA-27, HA-28, HA-29: the server is stopped for longer than sessions live. A client that
    submits a job while nobody leads gets an error about ZooKeeper, or is served when ZooKeeper is
    back."""
    with Stream(streams, tmp_path, threads) as stream:
        before = leading(streams)
        began = time.time()
        zookeeper.suspend()
        try:
            await_ends(before)
            log.info("nobody led any more after %.1f s", time.time() - began)
            stream.await_records()
            other = submitted(streams, threads)
            with pytest.raises(FlinkRayError, match=f"ZooKeeper.*{zookeeper.hosts}") as refusal:
                streams.submit(task_job(ends), timeout=5)
            log.info("told: %s", refusal.value)
            stream.await_records()
        finally:
            zookeeper.resume()
        assert other.result(timeout=END) is JobStatus.FINISHED
        stream.await_checkpoints()
        stream.tell(began)
        assert not {*before.values()} & {*leading(streams).values()}
        stream.end()
    leaders_of(streams, zookeeper)


def test_zookeeper_ensemble_that_loses_leader_and_majority_loses_no_record(
    ray_cluster: object, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """HA-27, HA-28, HA-29: without its leader the ensemble works on; without a second server no
    process of the cluster leads."""
    with (
        running_ensemble() as ensemble,
        cluster("zookeeper-majority", ensemble.hosts) as streams,
        Stream(streams, tmp_path, threads) as stream,
    ):
        before = leading(streams)
        began = time.time()
        first = ensemble.leader()
        first.stop()
        stream.await_checkpoints()  # the other two have elected one of them
        assert submitted(streams, threads).result(timeout=END) is JobStatus.FINISHED
        assert leading(streams) == before
        stream.tell(began)

        began = time.time()
        second = ensemble.leader()
        (left,) = (it for it in ensemble.servers if it not in (first, second))
        second.stop()
        await_ends(before)
        log.info("nobody led any more after %.1f s", time.time() - began)
        stream.await_records()
        other = submitted(streams, threads)
        first.launch()
        second.launch()
        assert other.result(timeout=END) is JobStatus.FINISHED
        stream.await_checkpoints()
        stream.tell(began)
        assert not {*before.values()} & {*leading(streams).values()}
        stream.end()
        leaders_of(streams, left)


@pytest.mark.skipif(
    KILLS == 0 or "zookeeper" not in CHOSEN,
    reason="FLINKRAY_KILLS says how many, and FLINKRAY_KILLS_OF=zookeeper",
)
@pytest.mark.timeout(900 + 60 * KILLS)
def test_random_zookeeper_faults_lose_no_record(
    streams: ClusterClient, zookeeper: ZooKeeperServer, tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    """One fault follows another after a complete checkpoint, or sooner. Sessions live, or end, or
    only some of them end."""
    random = Random(SEED)
    for begin in range(0, KILLS, OF_ONE_JOB):
        folder = tmp_path / str(begin)
        folder.mkdir()
        with Stream(streams, folder, threads) as stream:
            for number in range(begin, min(begin + OF_ONE_JOB, KILLS)):
                began = time.time()
                is_kill, seconds = random.random() < 0.3, random.uniform(0.0, LONGEST_STOP)
                log.info("fault %d: %s for %.1f s", number + 1, ("stop", "kill")[is_kill], seconds)
                fail(zookeeper, is_kill, seconds)
                stream.await_records()
                if random.random() < 0.7:
                    stream.await_checkpoints()
                    stream.tell(began)
            assert submitted(streams, threads).result(timeout=END) is JobStatus.FINISHED
            stream.end()
    found = leaders_of(streams, zookeeper)
    log.info("%d leaders of %d faults", len(found.confirmed), KILLS)


def fail(zookeeper: ZooKeeperServer, is_kill: bool, seconds: float) -> None:
    """How long it is away is the fault itself, and nothing to wait for."""
    until = time.monotonic() + seconds
    if is_kill:
        zookeeper.stop()
    else:
        zookeeper.suspend()
    try:
        wait_until(lambda: time.monotonic() > until, 2 * seconds + 1, "the end of the fault")
    finally:
        if is_kill:
            zookeeper.start()
        else:
            zookeeper.resume()
