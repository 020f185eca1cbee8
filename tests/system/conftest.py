"""A flinkray cluster on the session's Ray, shared by all system tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import flinkray
from flinkray.client import ClusterClient
from tests.spark.hosts import SPARK_HOST
from tests.system.observer import CLUSTER_ID, available_resources
from tests.system.pipelines import Gate


@pytest.fixture(scope="session")
def shared_client(ray_cluster: object) -> Iterator[ClusterClient]:
    configuration = {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": 2,
        "restart-strategy.fixed-delay.delay": "200 ms",
        "spark.host": SPARK_HOST,
    }
    with flinkray.connect(cluster_id=CLUSTER_ID, configuration=configuration) as client:
        yield client


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, ray_cluster: object) -> Iterator[ClusterClient]:
    """A cluster for the tests of one module, whose slots take few of Ray's processors."""
    configuration = {"taskmanager.cpu.cores": "0.5", "taskmanager.memory": "300m"}
    name = request.module.__name__.rpartition(".")[2].replace("_", "-")
    with flinkray.connect(cluster_id=name, configuration=configuration) as client:
        yield client


@pytest.fixture
def client(shared_client: ClusterClient) -> Iterator[ClusterClient]:
    """No job outlasts its test: one that failed half-way would hold slots of those after it."""
    yield shared_client
    for job in shared_client.list_jobs():
        if not job.status.is_terminal:
            handle = shared_client.job(job.job_id)
            handle.cancel()
            handle.wait(timeout=300)


@pytest.fixture
def resources_before(client: ClusterClient) -> dict[str, float]:
    return available_resources()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()
