"""On Ray and a real ZooKeeper, masters stand by, and one of them leads: whoever is killed or
stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import flinkray
from flinkray.client import ClusterClient
from flinkray.datastream import Configuration, StreamExecutionEnvironment
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import expected, newest, settings, tallies
from tests.system.observer import kill, live_actors
from tests.zookeeper_server import ZooKeeperServer, why_not

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "elected"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
ZNODE = f"/flinkray/{CLUSTER_ID}"
SESSION_TIMEOUT = 2.0
"""Seconds."""


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeperServer]:
    if reason := why_not():
        pytest.skip(reason)
    server = ZooKeeperServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def znodes(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="module")
def streams(
    ray_cluster: object, zookeeper: ZooKeeperServer, znodes: KazooClient
) -> Iterator[ClusterClient]:
    configuration = {
        "taskmanager.numberOfTaskSlots": "2",
        "taskmanager.cpu.cores": "0.5",
        "taskmanager.memory": "200m",
        "heartbeat.interval": "500 ms",
        "heartbeat.timeout": "4 s",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "20",
        "restart-strategy.fixed-delay.delay": "100 ms",
        "high-availability.type": "zookeeper",
        "high-availability.zookeeper.quorum": zookeeper.hosts,
        "high-availability.zookeeper.client.session-timeout": f"{SESSION_TIMEOUT} s",
        "cluster.standby-masters": "1",
    }
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=configuration) as client:
        yield client
    assert not znodes.exists(ZNODE)
    assert not [actor for actor in live_actors() if actor.namespace == NAMESPACE]


def leader(znodes: KazooClient, component: str) -> str | None:
    """Name of the process that leads; None: nobody."""
    try:
        data, _ = znodes.get(f"{ZNODE}/leader/{component}/connection_info")
    except NoNodeError:
        return None
    return str(json.loads(data)["address"]).partition("/")[0]


def pid_of(process: str) -> int:
    (pid,) = [a.pid for a in live_actors() if (a.name, a.namespace) == (process, NAMESPACE)]
    return pid


def another_leads(znodes: KazooClient, component: str, before: str) -> str:
    """Its process, when it does."""
    wait_until(lambda: leader(znodes, component) not in (None, before), 60, "another leader")
    found = leader(znodes, component)
    assert found is not None
    return found


def all_are_there(znodes: KazooClient, component: str) -> bool:
    return len(znodes.get_children(f"{ZNODE}/leader/{component}/latch")) == 2


def test_standbys_take_over_from_killed_masters_while_a_job_runs(
    streams: ClusterClient, znodes: KazooClient, tmp_path: Path
) -> None:
    """HA-27, HA-28, HA-29, DI-16: waiting clients are answered by the next Dispatcher."""
    wait_until(lambda: all_are_there(znodes, "dispatcher"), 60, "a Dispatcher that stands by")
    wait_until(lambda: all_are_there(znodes, "resource_manager"), 60, "and a ResourceManager")
    checkpoints, witness = tmp_path / "checkpoints", tmp_path / "witness"
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    env.configure(Configuration.from_dict(settings(checkpoints, "300 ms")))
    results = tallies(env.set_parallelism(2), 40_000, 4_000.0, witness).execute_and_collect()
    wait_until(lambda: newest(checkpoints) > 1, 90, "two checkpoints")
    for component, kind in (("dispatcher", "Dispatcher"), ("resource_manager", "ResourceManager")):
        before = leader(znodes, component)
        assert before is not None
        kill(pid_of(before))
        after = another_leads(znodes, component, before)
        masters = {info.component: info for info in streams.cluster_overview().masters}
        assert masters[kind].leader == after
    (job_master,) = [a for a in live_actors() if (a.kind, a.namespace) == ("JobMaster", NAMESPACE)]
    kill(job_master.pid)
    assert set(results) == expected(40_000)
    (job,) = streams.list_jobs()
    assert job.status.name == "FINISHED"
