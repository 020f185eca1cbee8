"""Placement groups for the tests of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from tests.spark.hosts import SLOT


@pytest.fixture
def worker_group(ray_cluster: None) -> Iterator[Callable[[int], PlacementGroup]]:
    """Makes placement groups of so many slots; they are removed after the test."""
    groups: list[PlacementGroup] = []

    def make(slots: int) -> PlacementGroup:
        group: PlacementGroup = placement_group([SLOT.to_ray_resources()] * slots)
        assert group.wait(300)
        groups.append(group)
        return group

    yield make
    for group in groups:
        remove_placement_group(group)
