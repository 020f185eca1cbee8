"""On Ray, state is queried from another process while its job runs, and followed when it moves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import flinkray
from flinkray.client import ClusterClient, QueryableStateClient
from flinkray.core.kv_states import UnknownKeyOrNamespaceError, UnknownKvStateLocationError
from flinkray.datastream import Configuration, StreamExecutionEnvironment, Types
from flinkray.datastream.connectors import DataGeneratorSource
from flinkray.datastream.state import ReducingStateDescriptor
from flinkray.testing.waiting import wait_until
from tests.datastream.tallies import newest, settings
from tests.system.observer import kill, live_actors

pytestmark = [pytest.mark.ray, pytest.mark.kill]

CLUSTER_ID = "queryable"
NAMESPACE = f"flinkray-{CLUSTER_ID}"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "0.5",
    "taskmanager.memory": "200m",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "20",
    "restart-strategy.fixed-delay.delay": "100 ms",
}
KEYS = 50


@pytest.fixture(scope="module")
def streams(ray_cluster: object) -> Iterator[ClusterClient]:
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=CONFIGURATION) as client:
        yield client


def test_queries_from_another_process_follow_state_after_a_kill(
    streams: ClusterClient, tmp_path: Path
) -> None:
    """QS-11, QS-12: the queried counts rise. After the kill they fall back at most to the last
    checkpoint."""
    checkpoints = tmp_path / "checkpoints"
    env = StreamExecutionEnvironment.get_execution_environment(cluster=streams)
    env.configure(Configuration.from_dict(settings(checkpoints, "300 ms"))).set_parallelism(2)
    ones: DataGeneratorSource = DataGeneratorSource(lambda n: (n % KEYS, 1), 10**12, 4000.0)
    pairs = env.from_source(ones, None, "ones", Types.TUPLE([Types.LONG(), Types.LONG()]))
    counts: ReducingStateDescriptor[tuple[int, int]] = ReducingStateDescriptor(
        "counts", lambda one, other: (one[0], one[1] + other[1])
    )
    pairs.key_by(lambda pair: pair[0], Types.LONG()).as_queryable_state("counts", counts)
    job = streams.job(str(env.execute_async("queried").get_job_id()))
    client = QueryableStateClient(streams)

    def read() -> list[int]:
        states = client.get_kv_states(job.job_id, "counts", range(KEYS), counts)
        return [0 if state is None else state.get()[1] for state in states]

    def is_there() -> bool:
        try:
            return all(read())
        except (UnknownKvStateLocationError, UnknownKeyOrNamespaceError):
            return False

    try:
        wait_until(is_there, 300, "an answer")
        least, before = read(), newest(checkpoints)
        wait_until(lambda: newest(checkpoints) > before + 2, 300, "checkpoints")
        last = read()
        victims = [
            actor
            for actor in live_actors()
            if (actor.kind, actor.namespace) == ("TaskProcess", NAMESPACE)
        ]
        assert victims
        for victim in victims:
            kill(victim.pid)
        found = read()
        assert all(one <= other for one, other in zip(least, found, strict=True))
        wait_until(lambda: all(map(int.__gt__, read(), last)), 300, "more than before")
        address = ray.get_runtime_context().gcs_address
        main = "from flinkray.client.cli import main; main()"
        query = ["query", str(job.job_id), "counts", "7"]
        shown = subprocess.run(
            [sys.executable, "-c", main, *query, "--address", address, "--cluster-id", CLUSTER_ID],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert shown.stdout.startswith("7: (7, "), shown.stderr
    finally:
        job.cancel()
        with pytest.raises(flinkray.FlinkRayError):
            job.result()
