"""One Ray cluster for all tests of this package, with logical CPUs enough for several stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from tests.spark.hosts import SLOT


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=8,
        namespace="flinkray-test",
        log_to_driver=False,
        logging_level="WARNING",
    )
    yield
    ray.shutdown()


@pytest.fixture
def worker_group(ray_cluster: None) -> Iterator[Callable[[int], PlacementGroup]]:
    """Makes placement groups of so many slots; they are removed after the test."""
    groups = []

    def make(slots: int) -> PlacementGroup:
        group = placement_group([SLOT.to_ray_resources()] * slots)
        assert group.wait(30)
        groups.append(group)
        return group

    yield make
    for group in groups:
        remove_placement_group(group)
