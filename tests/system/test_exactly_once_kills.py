"""Streaming jobs whose processes are killed and stopped at random: nothing is lost, doubled or out
of order, and what was killed goes on from its last checkpoint.

This takes long and is run on request only: ``FLINKRAY_KILLS=20 FLINKRAY_STOPS=2
FLINKRAY_KILLS_SEED=1 pytest --log-cli-level=INFO tests/system/test_exactly_once_kills.py``.
``FLINKRAY_KILLS_OF`` chooses sources, sinks, modes and state backends by parts of their names, and
what is killed: ``FLINKRAY_KILLS_OF=files,unaligned,TaskProcess``.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.datastream import Configuration, DataStream, StreamExecutionEnvironment
from flinkray.testing.waiting import wait_until
from tests.datastream.numbers import SOURCES
from tests.datastream.tallies import (
    Tally,
    by_key,
    differences,
    newest,
    restarted_from,
    settings,
)
from tests.system.observer import kill, live_actors, traces

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
STOPS = int(os.environ.get("FLINKRAY_STOPS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
CHOSEN = [name for name in os.environ.get("FLINKRAY_KILLS_OF", "").split(",") if name]

pytestmark = [
    pytest.mark.ray,
    pytest.mark.kill,
    pytest.mark.skipif(KILLS + STOPS == 0, reason="FLINKRAY_KILLS and FLINKRAY_STOPS say how many"),
]

log = logging.getLogger(__name__)

CLUSTER_ID = "kills"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "100000",
    "restart-strategy.fixed-delay.delay": "100 ms",
    "jobmaster.max-failovers": "100000",
    "execution.checkpointing.tolerable-failed-checkpoints": "-1",
}
COUNT, PER_SECOND = 48_000, 4_000.0
PAUSE = (0.0, 5.0)
"""Seconds between two kills."""
STOPPED = (5.0, 70.0)
"""Seconds for which a process is stopped."""
MOST_STOPPED = 2
"""Processes at the same time."""
END = 300.0
"""Seconds within which a job ends that nothing happens to any more, also on a busy machine."""

KINDS = (
    "TaskProcess",
    "TaskExecutor",
    "StreamCoordinator",
    "JobMaster",
    "SlotPool",
    "Dispatcher",
    "ResourceManager",
)
MODES = {
    "aligned": {},
    "unaligned": {"execution.checkpointing.unaligned.enabled": "true"},
    "aligned-with-timeout": {
        "execution.checkpointing.unaligned.enabled": "true",
        "execution.checkpointing.aligned-checkpoint-timeout": "20 ms",
    },
}
BACKENDS: dict[str, dict[str, str]] = {"heap": {}}
Run = Callable[[DataStream, Path], list[Any]]


def collected(results: DataStream, folder: Path) -> list[Any]:
    return list(results.execute_and_collect())


SINKS: dict[str, Run] = {"collected": collected}
"""Each runs the program that ends with the stream, and gives what came out."""


@dataclass(frozen=True)
class Setting:
    """Of one job."""

    source: str
    sink: str
    mode: str
    backend: str
    parallelism: int

    def __str__(self) -> str:
        return f"{self.source}-{self.sink}-{self.mode}-{self.backend}-{self.parallelism}"


def chosen(names: Sequence[str]) -> list[str]:
    return [name for name in names if name in CHOSEN] or list(names)


def settings_in_turn(random: Random) -> Iterator[Setting]:
    """All of them, in an order of the seed's, again and again."""
    parts = [chosen(list(names)) for names in (SOURCES, SINKS, MODES, BACKENDS)]
    every = [
        Setting(source, sink, mode, backend, parallelism)
        for source, sink, mode, backend in itertools.product(*parts)
        for parallelism in (1, 2, 4)
    ]
    while True:
        random.shuffle(every)
        yield from every


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def the_job(streams: ClusterClient) -> JobHandle:
    def found() -> list[JobHandle]:
        return [streams.job(it.job_id) for it in streams.list_jobs() if not it.status.is_terminal]

    return wait_until(found, 60, "the job")[0]


class Victims:
    """What is killed and stopped, by a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._kinds = chosen(KINDS)
        self.killed: list[str] = []
        self.stopped: list[str] = []
        self._now_stopped: dict[int, threading.Timer] = {}
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        return len(self.killed) >= KILLS and len(self.stopped) >= STOPS

    def next(self) -> None:
        """Kill or stop a process, if one is there."""
        there: dict[str, list[int]] = {}
        for actor in live_actors():
            if actor.namespace == NAMESPACE and actor.pid and actor.kind in self._kinds:
                there.setdefault(actor.kind, []).append(actor.pid)
        if not there:
            return
        kind = self._random.choice(sorted(there))
        pid = self._random.choice(there[kind])
        kills, stops = KILLS - len(self.killed), STOPS - len(self.stopped)
        if self._random.randrange(kills + stops) < kills:
            with suppress(ProcessLookupError):
                kill(pid)
                self.killed.append(kind)
                log.info("kill %d: %s %d", len(self.killed), kind, pid)
            return
        with self._lock:
            if len(self._now_stopped) < MOST_STOPPED and pid not in self._now_stopped:
                with suppress(ProcessLookupError):
                    self._stop(kind, pid)

    def _stop(self, kind: str, pid: int) -> None:
        seconds = self._random.uniform(*STOPPED)
        os.kill(pid, signal.SIGSTOP)
        self.stopped.append(kind)
        log.info("stop %d: %s %d for %.0f s", len(self.stopped), kind, pid, seconds)
        timer = threading.Timer(seconds, self._go_on, [pid])
        self._now_stopped[pid] = timer
        timer.start()

    def _go_on(self, pid: int) -> None:
        with self._lock:
            del self._now_stopped[pid]
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
                log.info("%d goes on", pid)

    @contextmanager
    def none_left_stopped(self) -> Iterator[None]:
        try:
            yield
        finally:
            with self._lock:
                timers = dict(self._now_stopped)
            for pid, timer in timers.items():
                timer.cancel()
                self._go_on(pid)


def started(
    setting: Setting, streams: ClusterClient, folder: Path, threads: ThreadPoolExecutor
) -> Future[list[Any]]:
    """A job that runs, and its results to come."""
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    options = {
        **settings(folder / "checkpoints", "300 ms"),
        **MODES[setting.mode],
        **BACKENDS[setting.backend],
    }
    env.configure(Configuration.from_dict(options))
    env.set_parallelism(setting.parallelism)
    numbers, of_part = SOURCES[setting.source](env, COUNT, PER_SECOND, folder)
    tally = Tally(of_part, echoes=True, starts=folder / "starts")
    results = by_key(numbers, tally)
    return threads.submit(SINKS[setting.sink], results, folder)


def assert_never_from_the_beginning(starts: Path, since: float | None) -> None:
    """*since* then there was a checkpoint."""
    if since is not None:
        late = [start for start in restarted_from(starts) if start[0] > since + 1.0]
        assert all(count > 0 for _, _, count in late), (since, late)


@pytest.mark.timeout(900 + 60 * KILLS + 120 * STOPS)
def test_nothing_is_lost_doubled_or_out_of_order_under_random_kills_and_stops(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """E2E-04: one job after the other, until so many processes were killed and stopped."""
    random = Random(SEED)
    victims = Victims(random)
    begin = time.monotonic()
    jobs = 0
    with ThreadPoolExecutor() as threads, victims.none_left_stopped():
        for setting in settings_in_turn(random):
            if victims.is_over:
                break
            jobs += 1
            folder = tmp_path / str(jobs)
            folder.mkdir()
            results = started(setting, streams, folder, threads)
            handle = the_job(streams)
            before = len(victims.killed), len(victims.stopped)
            since = None
            pause = Random(random.random())
            while not (results.done() or victims.is_over):
                with suppress(TimeoutError):
                    results.result(timeout=pause.uniform(*PAUSE))
                if since is None and newest(folder / "checkpoints") > 1:
                    since = time.time()  # the first one has its pointer when the second is stored
                if not results.done():
                    victims.next()
            difference = differences(results.result(timeout=END), COUNT)
            log.info(
                "%.0f s: job %d, %s, %s has ended after %d kills and %d stops: %s",
                time.monotonic() - begin,
                jobs,
                handle.job_id,
                setting,
                len(victims.killed) - before[0],
                len(victims.stopped) - before[1],
                difference or "right",
            )
            assert not difference
            assert_never_from_the_beginning(folder / "starts", since)
            wait_until(lambda: not traces(handle.job_id), END, "everything of it to be gone")  # noqa: B023
            assert not list(folder.glob("checkpoints/*/chk-*/*"))
    log.info("%d jobs ended right after %s and %s", jobs, victims.killed, victims.stopped)
