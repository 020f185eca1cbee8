"""What the tests of the API share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flinkray.datastream import StreamExecutionEnvironment
from flinkray.testing.manual_clock import ManualClock
from flinkray.testing.threaded_cluster import ThreadedCluster, threaded_cluster
from tests.datastream.threads import none_left

TWO_SLOTS = {
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.cpu.cores": "1",
    "restart-strategy.type": "none",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    """Where the first failure ends a program."""
    storage = str(tmp_path_factory.mktemp("cluster"))
    with none_left(), threaded_cluster(storage, configuration=TWO_SLOTS) as cluster:
        yield cluster


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    """On a clock that stands still while records flow, with two subtasks."""
    return StreamExecutionEnvironment(clock=ManualClock()).set_parallelism(2)
