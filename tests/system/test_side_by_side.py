"""A Spark job, a stream, and a stream that reads what Spark computes, on one cluster at once.

Each of them stops at a gate, so that there is a time at which all three have what they need: then
the node is full.  A sampler looks all the time whether the resources add up.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import flinkray
from flinkray.client import ClusterClient
from flinkray.client.ray_runtime import cluster_namespace
from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.waiting import wait_until
from tests.spark.hosts import SPARK_HOST
from tests.system.observer import assert_leaves_no_traces
from tests.system.pipelines import ROWS, Gate, expected_rows
from tests.system.resource_sampler import Look, Sampler
from tests.system.resource_samples import Sample, differences, jobs_with_slots

# test_spark_job runs jobs side by side, too
pytestmark = [pytest.mark.ray, pytest.mark.spark, pytest.mark.slow]

log = logging.getLogger(__name__)

CLUSTER_ID = "side-by-side"
CONFIGURATION = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "taskmanager.memory": "400m",
    "resourcemanager.taskmanager-timeout": "1 s",
    "spark.host": SPARK_HOST,
}
KEYS = 10
START = 250.0
"""Seconds within which all jobs run, or everything of them is gone, also on a busy machine."""


@pytest.fixture
def cluster(ray_cluster: object, tmp_path: Path) -> Iterator[ClusterClient]:
    configuration = {**CONFIGURATION, "storage.dir": str(tmp_path / "storage")}
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=configuration) as client:
        yield client


@pytest.fixture
def gates(tmp_path: Path) -> Iterator[list[Gate]]:
    gates = [Gate(tmp_path / name) for name in ("spark", "stream", "mix")]
    yield gates
    for gate in gates:
        gate.open()


def waits_at(gate: Gate) -> Callable[[int], int]:
    """Gives numbers on, the first one when the gate is open."""
    directory = str(gate.directory)

    def wait(number: int) -> int:
        if not Path(directory, "open").exists():
            Path(directory, f"task-{os.getpid()}-{time.monotonic_ns()}").touch()
        while not Path(directory, "open").exists():
            time.sleep(0.02)
        return number

    return wait


def environment(cluster: ClusterClient, parallelism: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment(cluster=cluster)
    return env.set_parallelism(parallelism).enable_checkpointing(200)


def counted(env: StreamExecutionEnvironment, gate: Gate) -> Any:
    """Each number's place among those of its key."""
    numbers = env.from_sequence(1, ROWS).map(waits_at(gate))
    ones = numbers.map(lambda number: (number % KEYS, 1)).key_by(lambda one: one[0])
    return ones.reduce(lambda a, b: (a[0], a[1] + b[1]))


def one_more(env: StreamExecutionEnvironment, gate: Gate) -> Any:
    """What Spark has computed, and one more."""
    rows = env.from_spark(gate.pipeline(), executors=1, cpu=1, memory="1g")
    by_key = rows.key_by(lambda row: row["id"] % KEYS)
    return by_key.map(lambda row: (row["id"], row["twice"] + 1))


@pytest.mark.timeout(900)
def test_resources_of_side_by_side_jobs_add_up_in_every_sample(
    cluster: ClusterClient, gates: list[Gate]
) -> None:
    """Two TaskExecutors of two slots each run tasks of the two streams; one of the TaskExecutors
    runs tasks of both."""
    names = f"{cluster_namespace(CLUSTER_ID)}-"
    with Sampler(Look(cluster)) as sampler:

        def settled(is_expected: Callable[[Sample], bool]) -> Sample | None:
            sample = sampler.latest()
            if sample is None or not is_expected(sample) or differences(sample, names):
                return None
            return sample

        spark_gate, stream_gate, mix_gate = gates
        spark = cluster.submit(flinkray.spark_job(spark_gate.pipeline(), cpu=1, memory="1g"))
        mix = one_more(environment(cluster, 1), mix_gate).execute_and_collect()
        stream = counted(environment(cluster, 3), stream_gate).execute_and_collect()
        slots = Counter({spark.job_id: 1, mix.job_id: 1 + 1, stream.job_id: 3})
        wait_until(
            lambda: sampler.latest() and all(gate.waiting_tasks() for gate in gates),
            START,
            "all jobs to be at their gates",
        )
        full = wait_until(
            lambda: settled(lambda sample: jobs_with_slots(sample) == slots), START, f"{slots}"
        )

        assert [profile.cpu for profile in full.ray_after.available.values()] == [0]
        jobs = [{slot.job_id for slot in executor.assigned} for executor in full.executors]
        assert sorted(map(len, jobs)) == [1, 1, 1, 2]
        assert {mix.job_id, stream.job_id} in jobs
        count_when_full = sampler.count

        for gate in gates:
            gate.open()
        rows = spark.result(timeout=START).to_arrow().to_pylist()
        assert sorted((row["id"], row["twice"]) for row in rows) == expected_rows()
        places = [(key, place) for key in range(KEYS) for place in range(1, ROWS // KEYS + 1)]
        assert sorted(stream) == places
        assert sorted(mix) == [(i, twice + 1) for i, twice in expected_rows()]

        for job_id in slots:
            assert_leaves_no_traces(job_id)
        wait_until(
            lambda: settled(lambda sample: not sample.manager_after.groups),
            START,
            "all that the cluster had to be Ray's again",
        )
    log.info("%d samples, %d of them until the node was full", sampler.count, count_when_full)
