from __future__ import annotations

from collections.abc import Iterator

import pytest

from flinkray.client.cluster_client import ClusterClient
from tests.client.scripted_cluster import World, scripted_cluster


@pytest.fixture
def cluster() -> Iterator[tuple[World, ClusterClient]]:
    with scripted_cluster() as cluster:
        yield cluster


@pytest.fixture
def world(cluster: tuple[World, ClusterClient]) -> World:
    return cluster[0]


@pytest.fixture
def client(cluster: tuple[World, ClusterClient]) -> ClusterClient:
    return cluster[1]
