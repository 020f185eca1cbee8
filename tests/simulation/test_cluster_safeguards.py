"""What the simulated whole cluster notices when a safeguard is missing, if it takes few seeds."""

from __future__ import annotations

import pytest

from tests.simulation.safeguards import CLUSTER, seeds_until_noticed

SEEDS = 25
NOTICED_SOON = {
    "submissions stored first": 0,
    "cancels stored first": 5,
    "ends stored first": 0,
    "content synchronised": 0,
    "names synchronised": 0,
    "new directories synchronised": 0,
    "de-duplication of submissions": 0,
    "cancelling of both kinds": 0,
    "watches": 0,
    "registrations tried again": 0,
    "heartbeats": 0,
}
"""Safeguard -> the first of so many seeds, of which one notices that it is missing."""
NOTICED_LATER = {
    "fencing": 11,
    "reconciliation": 400,
    "slot comparison": 40,
    "ends of tasks told again": 150,
}
"""The same, of those that few seeds notice: which ones do changes with every new message."""


@pytest.mark.safeguards
@pytest.mark.parametrize(
    ("name", "first"),
    [
        *NOTICED_SOON.items(),
        *(pytest.param(*item, marks=pytest.mark.slow) for item in NOTICED_LATER.items()),
    ],
)
def test_a_missing_safeguard_of_the_whole_cluster_is_noticed(name: str, first: int) -> None:
    assert seeds_until_noticed(CLUSTER, name, first, SEEDS) is not None


@pytest.mark.parametrize("name", CLUSTER.safeguards)
def test_every_safeguard_of_the_cluster_can_be_switched_off(name: str) -> None:
    """A piece that was renamed or moved raises AttributeError."""
    with CLUSTER.safeguards[name].switched_off() as replacement:
        assert replacement is not None
