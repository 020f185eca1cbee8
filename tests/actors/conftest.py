"""A whole cluster in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flinkray.testing.mini_cluster import MiniCluster

QUICK = {
    "cluster.registration.error-delay": "5 ms",
    "cluster.registration.refused-registration-delay": "5 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": "2",
    "restart-strategy.fixed-delay.delay": "1 ms",
}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[MiniCluster]:
    async with MiniCluster(str(tmp_path), configuration=QUICK) as cluster:
        yield cluster
