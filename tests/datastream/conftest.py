"""What the tests of the API share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.datastream.quick_restarts import QUICK_RESTARTS
from tests.datastream.threads import none_left

TWO_SLOTS = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "restart-strategy.type": "none",
}


@pytest.fixture(scope="module")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ThreadedCluster]:
    """The cluster of a module, with the module's CONFIGURATION.
    Default: the first failure of a job ends the job."""
    configuration = getattr(request.module, "CONFIGURATION", TWO_SLOTS)
    storage = str(tmp_path_factory.mktemp("cluster"))
    with none_left(), threaded_cluster(storage, configuration=configuration) as cluster:
        yield cluster


@pytest.fixture
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThreadedCluster]:
    """A cluster for one test, with the module's CONFIGURATION. Default: failed jobs restart at
    once. The test may end processes of this cluster."""
    configuration = getattr(request.module, "CONFIGURATION", QUICK_RESTARTS)
    storage = str(tmp_path / "cluster")
    with none_left(), threaded_cluster(storage, configuration=configuration) as cluster:
        yield cluster


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    """On a clock that stands still while records flow, with two subtasks."""
    return StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(2)
