"""Ray's head node is killed and comes back: what runs elsewhere runs on, and is found again.

Ray's head keeps what it knows in Redis.  ``FLINKRAY_HEAD_AWAY=90`` keeps the head away for so many
seconds; ``pytest -s`` shows the figures.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flinkray.testing.waiting import wait_until
from tests import redis_server
from tests.datastream.tallies import KEYS, newest
from tests.ray_client_server import ENVIRONMENT
from tests.ray_nodes import RayNode, RayNodes, ray_nodes
from tests.redis_server import RedisServer

AWAY = float(os.environ.get("FLINKRAY_HEAD_AWAY", "1"))
"""Seconds until the head is started again, which takes some more."""

pytestmark = [
    pytest.mark.ray,
    pytest.mark.own_ray,
    pytest.mark.kill,
    pytest.mark.skipif(bool(redis_server.why_not()), reason=redis_server.why_not() or "-"),
    pytest.mark.timeout(900 + 2 * AWAY),
]

PATIENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
"""For all nodes: they end when the head is away for longer."""
OF_RAY = {"ray::DashboardA", "ray::RuntimeEnv", "ray::IDLE"}
"""Processes that Ray itself has on each node."""
NO_CLUSTER = 3
LIMIT = 300.0


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    server = RedisServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(PATIENT) as nodes:
        yield nodes


def flinkray(*arguments: str, timeout: float = LIMIT) -> subprocess.CompletedProcess[str]:
    return _python("flinkray.client.cli", arguments, timeout)


def client(*arguments: str) -> Any:
    """What a client of its own process has to say."""
    done = _python("tests.system.head_node_program", arguments, LIMIT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _python(
    module: str, arguments: tuple[str, ...], timeout: float
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**ENVIRONMENT, **PATIENT},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def actors_on(node: RayNode) -> list[str]:
    """Programs of the actors' processes, which Linux cuts off."""
    programs = set(node.processes().values())
    return sorted(name for name in programs - OF_RAY if name.startswith("ray::"))


def said(nodes: RayNodes) -> str:
    """What processes of jobs and masters have logged."""
    return " ".join(log.read_text() for log in nodes.logs("worker-*.err"))


def entries(diary: Path) -> list[tuple[float, int]]:
    """When each number came, in order."""
    lines = [line.split() for path in diary.iterdir() for line in path.read_text().splitlines()]
    return sorted((float(line[0]), int(line[1])) for line in lines if len(line) == 2)


def longest_gap(came: list[tuple[float, int]], begin: float, end: float) -> float:
    """Seconds without a number."""
    times = [begin, *(when for when, _ in came if begin < when < end), end]
    return max(later - earlier for earlier, later in pairwise(times))


def test_job_runs_on_while_rays_head_is_away_and_new_clients_reach_the_job(
    redis: RedisServer, nodes: RayNodes, tmp_path: Path
) -> None:
    """No attempt number grows; afterwards a new client takes a savepoint, and new jobs run."""
    checkpoints, diary = tmp_path / "checkpoints", tmp_path / "diary"
    of_head = {"RAY_REDIS_ADDRESS": redis.address}
    head = nodes.start_head(of_head, "--num-cpus=0")
    worker = nodes.start_worker("--num-cpus=4")
    options = {
        "cluster.avoid-head-node": "true",
        "storage.dir": str(tmp_path / "storage"),
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.cpu.cores": "0.5",
        "taskmanager.memory": "200m",
    }
    settings = [part for key, value in options.items() for part in ("-D", f"{key}={value}")]
    up = flinkray("cluster", "up", "--address", nodes.address, *settings)
    assert up.returncode == 0, up.stderr
    job_id = client("submit", nodes.address, str(tmp_path))
    wait_until(lambda: newest(checkpoints) > 1, LIMIT, "two checkpoints")
    assert actors_on(head) == []
    running = actors_on(worker)
    assert {"ray::Dispatcher", "ray::TaskProces"} <= set(running)

    killed = time.time()
    head.kill()
    nobody = flinkray("list", "--address", nodes.address, timeout=30)
    assert nobody.returncode == NO_CLUSTER
    assert "nothing answers at the Ray address" in nobody.stderr
    before = newest(checkpoints)
    wait_until(
        lambda: (
            newest(checkpoints) > before + 1
            and time.time() > killed + AWAY
            and "Ray's head has not answered for " in said(nodes)
        ),
        LIMIT + AWAY,
        "checkpoints, and a word of it, while the head is away",
    )
    assert set(actors_on(worker)) >= set(running)
    nodes.start_head(of_head, "--num-cpus=0")
    back = time.time()

    seen = client("finish", nodes.address, str(tmp_path), job_id)
    found = time.time()
    assert seen["listed"] == {job_id: "RUNNING"}
    assert seen["attempts"] == [0, 0, 0]
    assert (tmp_path / "savepoint") in Path(seen["savepoint"]).parents
    assert (seen["ended"], seen["squares"]) == ("CANCELED", [1, 4, 9])
    came = entries(diary)
    assert len(list(diary.iterdir())) == 2, "a subtask was started twice"
    of_key: defaultdict[int, list[int]] = defaultdict(list)
    for _, number in came:
        of_key[number % KEYS].append(number)
    for key, numbers in of_key.items():
        assert numbers == list(range(key, key + KEYS * len(numbers), KEYS)), "lost or twice"
    assert "Ray's head answers again" in said(nodes)
    gap, usual = longest_gap(came, killed, back), longest_gap(came, came[0][0], killed)
    print(  # noqa: T201
        f"head away for {back - killed:.1f} s: longest gap between two records {1000 * gap:.0f} ms "
        f"({1000 * usual:.0f} ms before); a new client had the list of jobs "
        f"{seen['found after']:.2f} s after it had connected, all done {found - back:.1f} s after "
        "the head was back"
    )
