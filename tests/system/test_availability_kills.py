"""A job runs again in time after each burst of kills, and is gone when it was cancelled: Flink's
Jepsen tests on real processes.  Halves that are cut off from each other, and storage that is gone,
are in :mod:`tests.simulation.test_availability`.

This takes long and is run on request only: ``FLINKRAY_BURSTS=5 FLINKRAY_KILLS_SEED=1 pytest
--log-cli-level=INFO tests/system/test_availability_kills.py``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.core.errors import FlinkRayError
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import DiscardingSink
from flinkray.scheduler.shared.states import JobStatus
from tests.availability import (
    PATIENCE,
    POLL_EVERY,
    Cancelled,
    Event,
    FaultBegan,
    FaultEnded,
    Seen,
    is_healthy,
    violations,
)
from tests.datastream.numbers import generated
from tests.datastream.tallies import Tally, by_key, newest, settings
from tests.system.observer import kill, live_actors

BURSTS = int(os.environ.get("FLINKRAY_BURSTS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))

pytestmark = [
    pytest.mark.ray,
    pytest.mark.kill,
    pytest.mark.skipif(BURSTS == 0, reason="FLINKRAY_BURSTS says how many"),
]

log = logging.getLogger(__name__)

CLUSTER_ID = "bursts"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "1",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100000",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "jobmaster.max-failovers": "100000",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
}
UNTIL_KILLED = 6.0
"""A process is killed within so many seconds."""
KILLS_IN_A_BURST = 20
MASTERS_DIE_FOR = 60.0
END = 60.0
"""Seconds, at most."""
MASTERS = ("JobMaster", "Dispatcher", "ResourceManager")
TASK_EXECUTOR = ("TaskExecutor",)


never = threading.Event()


def kill_within(random: Random, pids: list[int]) -> None:
    begun = time.monotonic()
    for moment, pid in sorted((random.uniform(0.0, UNTIL_KILLED), pid) for pid in pids):
        never.wait(begun + moment - time.monotonic())
        with suppress(ProcessLookupError):
            kill(pid)


def pids_of(*kinds: str) -> list[int]:
    return [a.pid for a in live_actors() if a.namespace == NAMESPACE and a.kind in kinds and a.pid]


def kill_all(random: Random) -> None:
    kill_within(random, pids_of("TaskExecutor"))


def kill_some(random: Random) -> None:
    kill_within(random, [pid for pid in pids_of("TaskExecutor") if random.random() < 0.5])


def kill_one(random: Random) -> None:
    there = pids_of("TaskExecutor")
    kill_within(random, [random.choice(there)] if there else [])


def kill_again_and_again(random: Random) -> None:
    for _ in range(KILLS_IN_A_BURST):
        kill_one(random)


def kill_masters(random: Random) -> None:
    end = time.monotonic() + MASTERS_DIE_FOR
    while time.monotonic() < end:
        for pid in pids_of(*MASTERS):
            with suppress(ProcessLookupError):
                kill(pid)
        never.wait(random.uniform(0.0, UNTIL_KILLED))


FAULTS: dict[str, Callable[[Random], None]] = {
    "all TaskExecutors": kill_all,
    "random TaskExecutors": kill_some,
    "a TaskExecutor": kill_one,
    "TaskExecutors again and again": kill_again_and_again,
    "masters again and again": kill_masters,
}


class Watch:
    """Asks for a job's status all the time, in a thread, and keeps what it is told."""

    def __init__(self, job: JobHandle) -> None:
        self.history: list[Event] = []
        self._job = job
        self._began = time.monotonic()
        self._changed = threading.Condition()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def note(self, event: Event) -> None:
        with self._changed:
            self.history.append(event)
            self._changed.notify()
        log.info("%s", event)

    def until_healthy(self) -> None:
        """Or as long as the rules want at most, and somewhat longer."""
        with self._changed:
            since = len(self.history)
            self._changed.wait_for(lambda: is_healthy(self.history, since), PATIENCE)

    def _run(self) -> None:
        while not self._is_over.wait(POLL_EVERY):
            status = None
            with suppress(FlinkRayError):
                status = self._job.status()
            self.note(Seen(self.now, status))


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


@pytest.mark.timeout(600 + 500 * BURSTS)
def test_stream_processes_records_again_in_time_after_each_burst_of_kills(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """E2E-07, E2E-08."""
    random = Random(SEED)
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    env.configure(Configuration.from_dict(settings(tmp_path / "checkpoints", "1 s")))
    env.set_parallelism(2)
    numbers, of_part = generated(env, 10**12, 1_000.0, tmp_path)
    counted = by_key(numbers, Tally(of_part, starts=tmp_path / "starts"))
    counted.map(str, Types.STRING()).sink_to(DiscardingSink())
    job = env.execute_async("bursts")
    handle = streams.job(job.get_job_id())
    faults: list[str] = []
    with Watch(handle) as watch:
        for number in range(BURSTS):
            watch.until_healthy()
            before = newest(tmp_path / "checkpoints")
            faults = faults or random.sample(list(FAULTS), len(FAULTS))
            name = faults.pop()
            watch.note(FaultBegan(watch.now, name))
            FAULTS[name](random)
            watch.note(FaultEnded(watch.now, name))
            log.info("burst %d of %d; checkpoint %d before it", number + 1, BURSTS, before)
        watch.until_healthy()
        handle.cancel()
        watch.note(Cancelled(watch.now))
        assert handle.wait(timeout=END) is JobStatus.CANCELED
    found = violations(watch.history)
    assert not found, (found, watch.history)
