"""A stream of 10,000 records/s whose masters are killed again and again, many of them in pairs
within 2 s: its result is right, and its tasks notice nothing.  They are elected on a real
ZooKeeper, with others that stand by; or, with ``standalone`` in FLINKRAY_KILLS_OF, there are no
others, and Ray restarts them.

This takes long and is run on request only: ``FLINKRAY_KILLS=40 FLINKRAY_KILLS_OF=masters
FLINKRAY_KILLS_SEED=1 pytest --log-cli-level=INFO tests/system/test_master_kills.py``.  It prints
how soon the next leaders were there, and how long the output stood still.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

import flinkray
from flinkray.client import ClusterClient, JobHandle
from flinkray.testing.waiting import wait_until
from tests.datastream.numbers import generated
from tests.datastream.tallies import differences
from tests.system.kills.elected_streams import (
    CONFIGURATION,
    END,
    all_run,
    attempts,
    started,
)
from tests.system.kills.gaps import (
    Gap,
    gaps,
    longest,
    quantile,
    starts,
    waits_for_the_first,
)
from tests.system.kills.leaders import Leaders
from tests.system.kills.only_job import the_job
from tests.system.kills.victims import MASTERS, Kill, Moments, Victims
from tests.system.observer import traces
from tests.zookeeper_log import transactions
from tests.zookeeper_server import ZooKeeperServer, running

KILLS = int(os.environ.get("FLINKRAY_KILLS", "0"))
SEED = int(os.environ.get("FLINKRAY_KILLS_SEED", "1"))
CHOSEN = os.environ.get("FLINKRAY_KILLS_OF", "").split(",")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.kill,
    pytest.mark.skipif(
        KILLS == 0 or "masters" not in CHOSEN,
        reason="FLINKRAY_KILLS says how many, and FLINKRAY_KILLS_OF=masters",
    ),
]

log = logging.getLogger(__name__)

CLUSTER_ID = "master-kills"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
SECONDS, PER_SECOND = 60, 10_000
"""How long a job runs at least, and records per second."""
AROUND = 2.0
"""Seconds after a kill in which a gap is taken for its."""
NOTICED = 0.1
"""Seconds of a gap of which something is said."""
PAIRS_SHARE = 0.5
"""Of the kills, that are followed by another one within 2 s."""
MODES: tuple[dict[str, str], ...] = (
    {},
    {"execution.checkpointing.unaligned.enabled": "true", "state.backend.type": "rocksdb"},
)


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer | None]:
    if "standalone" in CHOSEN:
        yield None
        return
    with running() as server:
        yield server


@pytest.fixture(scope="module")
def streams(ray_cluster: object, zookeeper: ZooKeeperServer | None) -> Iterator[ClusterClient]:
    configuration = dict(CONFIGURATION)
    if zookeeper is None:
        for key in ("high-availability.type", "cluster.standby-masters"):
            del configuration[key]
    else:
        configuration["high-availability.zookeeper.quorum"] = zookeeper.hosts
        configuration["high-availability.zookeeper.client.session-timeout"] = "4 s"
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=configuration) as client:
        yield client


def kill_while_it_runs(job: JobHandle, ended: Future[Any], folder: Path, victims: Victims) -> None:
    """As many as are to be killed, or until it has ended."""
    wait_until(lambda: all_run(job), END, "all tasks to run")  # else they have a second attempt
    is_over = threading.Event()
    ended.add_done_callback(lambda _: is_over.set())
    moments = Moments(folder / "checkpoints", is_over)
    while not (is_over.wait(victims.pause()) or victims.is_over):
        victims.hit_next(moments)


def told(milliseconds: Sequence[float]) -> str:
    """A line for people, of seconds."""
    median, p99 = (quantile(milliseconds, share) * 1e3 for share in (0.5, 0.99))
    most = max(milliseconds) * 1e3
    return f"median {median:.0f} ms, p99 {p99:.0f} ms, most {most:.0f} ms, of {len(milliseconds)}"


def tell_of_gaps(found: list[Gap], kills: Sequence[Kill]) -> None:
    """Between two records of the output."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kill in kills:
        gap = longest(found, kill.at, kill.at + AROUND)
        by_kind[kill.kind].append(gap)
        if gap > NOTICED:
            log.info("gap of %.0f ms around %s", gap * 1e3, kill)
    for kind, of_kind in sorted(by_kind.items()):
        log.info("longest gap of the output after a kill of a %s: %s", kind, told(of_kind))
    if by_kind:
        log.info("after any kill: %s", told(list(chain.from_iterable(by_kind.values()))))


def tell_of_leaders(leaders: Leaders, kills: Iterable[Kill]) -> None:
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kill in kills:
        confirmed = leaders.next_after(kill.at, kill.process)
        if confirmed is not None:
            by_kind[kill.kind].append(confirmed.at - kill.at)
    for kind, of_kind in sorted(by_kind.items()):
        log.info("from a kill of a %s that led to the next leader: %s", kind, told(of_kind))
    log.info(
        "%d leaders of %d components have written %d times, each in its turn",
        len(leaders.confirmed),
        len({it.component for it in leaders.confirmed}),
        sum(leaders.effects.values()),
    )


@pytest.mark.timeout(900 + 60 * KILLS)
def test_random_kills_of_masters_restart_no_task_and_there_is_one_leader_at_a_time(
    streams: ClusterClient, zookeeper: ZooKeeperServer | None, tmp_path: Path
) -> None:
    """E2E-04, HA-27, HA-29, DI-16: runs one job after another until the wanted number of masters is
    killed."""
    random = Random(SEED)
    chosen = [kind for kind in MASTERS if kind in CHOSEN] or list(MASTERS)
    victims = Victims(Random(random.random()), NAMESPACE, chosen, KILLS, 0, pairs=PAIRS_SHARE)
    found: list[Gap] = []
    jobs = 0
    with ThreadPoolExecutor() as threads:
        while not victims.is_over:
            mode = MODES[jobs // 2 % 2]
            jobs += 1
            folder = tmp_path / str(jobs)
            folder.mkdir()
            before = len(victims.kills)
            count = SECONDS * PER_SECOND
            results = started(streams, generated, count, PER_SECOND, folder, threads, **mode)
            handle = the_job(streams)
            kill_while_it_runs(handle, results, folder, victims)
            with suppress(TimeoutError):
                results.result(timeout=END)
            assert results.done(), f"job {handle.job_id} has not ended in {END:g} s"
            kills = victims.kills[before:]
            difference = differences(results.result(), count)
            numbers = attempts(handle)
            log.info(
                "job %d, %s, has ended after %d kills, attempts %s, begun %s times: %s",
                jobs,
                handle.job_id,
                len(kills),
                sorted(numbers),
                starts(folder),
                difference or "right",
            )
            for failure in handle.exceptions():
                log.info("job %d told at %.3f: %s", jobs, failure.timestamp, failure.text)
            tell_of_gaps(gaps(folder), kills)
            firsts = [wait for _, wait in waits_for_the_first(folder)]
            log.info("from the start of a task to its first record: %s", told(firsts))
            assert not difference
            assert max(numbers) == 0, kills
            assert max(starts(folder)) == 1, kills
            found += gaps(folder)
            wait_until(lambda: not traces(handle.job_id), END, "everything of it to be gone")  # noqa: B023
    log.info("%d jobs ended right after %s", jobs, victims.killed)
    log.info("%d kills were within 2 s of one of another kind", victims.pairs_within)
    tell_of_gaps(found, victims.kills)
    if zookeeper is not None:
        root = f"/flinkray/{CLUSTER_ID}"
        tell_of_leaders(Leaders(root, transactions(zookeeper.directory)), victims.kills)
