"""How soon the next master leads when the one that led is killed, on Ray and a real ZooKeeper.

A cluster with standbys; its Dispatcher, its ResourceManager and the JobMaster of a job are killed
by SIGKILL in turn.  Printed is the time from the kill until another one has confirmed that it
leads, and until the Dispatcher has answered a client, for which it asks the ResourceManager or the
JobMaster.  A kill waits until all that stand by, and all prestarted processes, are there again.

Needs ZooKeeper's server (Debian's package ``zookeeper``), which is started on a port of its own.

Exit status 1: a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
for place in (HERE, HERE.parent):
    if str(place) not in sys.path:
        sys.path.insert(0, str(place))

import ray  # noqa: E402
from _results import Figure, Results, parse  # noqa: E402
from _zookeeper import zookeeper  # noqa: E402
from kazoo.client import KazooClient  # noqa: E402
from kazoo.exceptions import NoNodeError  # noqa: E402

import flinkray  # noqa: E402
from flinkray.client import ClusterClient  # noqa: E402
from flinkray.rpc.ray.directory import RayDirectory  # noqa: E402
from flinkray.testing.task_jobs import task_job, waits  # noqa: E402
from tests.zookeeper_server import why_not  # noqa: E402

CLUSTER_ID = "failover"
ZNODE = f"/flinkray/{CLUSTER_ID}/leader"
COMPONENTS = {"dispatcher": "Dispatcher", "resource_manager": "ResourceManager"}
GOAL = 1.0
"""Seconds from a kill until another one leads, median."""
PRESTARTED = 3
"""As many as a cluster has ready as it comes."""
LONGEST = 60.0
LOOK = 0.002


@contextmanager
def servers(session_timeout: str) -> Iterator[tuple[ClusterClient, KazooClient]]:
    with (
        zookeeper() as (hosts, znodes),
        tempfile.TemporaryDirectory(prefix="flinkray-bench-") as storage,
    ):
        configuration = {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": hosts,
            "high-availability.zookeeper.client.session-timeout": session_timeout,
            "cluster.standby-masters": "1",
            "jobmaster.max-failovers": "1000",
            "storage.dir": storage,
        }
        with flinkray.connect(cluster_id=CLUSTER_ID, configuration=configuration) as client:
            yield client, znodes


def leader(znodes: KazooClient, component: str) -> tuple[str, str] | None:
    """Name of its process, and its session."""
    try:
        data, _ = znodes.get(f"{ZNODE}/{component}/connection_info")
    except NoNodeError:
        return None
    published = json.loads(data)
    return str(published["address"]).partition("/")[0], str(published["session"])


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LONGEST
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"waited {LONGEST:g} s for {what}")
        time.sleep(LOOK)


def kill_once(
    znodes: KazooClient, component: str, contenders: int, ask: Callable[[], object]
) -> tuple[float, float]:
    """Seconds until another one leads, and until *ask* is answered."""
    latches = f"{ZNODE}/{component}/latch"
    until(lambda: leader(znodes, component) is not None, f"a leader of {component}")
    until(lambda: len(znodes.get_children(latches)) == contenders, "all to be there")
    directory = RayDirectory(f"flinkray-{CLUSTER_ID}")
    until(lambda: len(directory.ready_prestarted()) >= PRESTARTED, "prestarted processes")
    ask()
    before = leader(znodes, component)
    assert before is not None
    record = directory.get(before[0])
    assert record is not None
    began = time.monotonic()
    os.kill(record.pid, signal.SIGKILL)
    until(lambda: leader(znodes, component) not in (None, before), "another leader")
    led = time.monotonic() - began
    ask()
    return led, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10, help="of each kind (10)")
    parser.add_argument("--session-timeout", default="4 s", help="of ZooKeeper (4 s)")
    arguments = parse(parser)
    if reason := why_not():
        print(f"skipped: {reason}")
        return
    results = Results(arguments, "flinkray", "ray", "kazoo")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    with servers(arguments.session_timeout) as (client, znodes):
        job = client.submit(task_job(waits))
        for _ in range(arguments.kills):
            for component, kind in COMPONENTS.items():
                times[kind].append(kill_once(znodes, component, 2, client.cluster_overview))
            times["JobMaster"].append(kill_once(znodes, job.job_id.hex(), 1, job.details))
        job.cancel()
    ray.shutdown()
    print(f"\nseconds from SIGKILL, of {arguments.kills}: median, most\n")
    print(f"{'':<18}{'another one leads':<22}{'and has answered'}")
    figures = []
    for kind, of_kind in times.items():
        led, answered = zip(*of_kind, strict=True)
        cells = [f"{statistics.median(of):.2f}, {max(of):.2f}" for of in (led, answered)]
        print(f"{kind:<18}{cells[0]:<22}{cells[1]}")
        what = f"SIGKILL of a {kind}: the next one leads (ZooKeeper, standby), median"
        figures.append(Figure(kind, what, statistics.median(led), GOAL, "s"))
    print()
    results.add(*figures)
    results.raw = times
    results.end()


if __name__ == "__main__":
    main()
