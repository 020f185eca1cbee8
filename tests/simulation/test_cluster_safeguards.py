"""What the simulated whole cluster notices when a safeguard is missing, if it takes few seeds."""

from __future__ import annotations

import pytest

from tests.simulation.safeguards import CLUSTER, seeds_until_noticed

SEEDS = 25
NOTICED_SOON = (
    "submissions stored first",
    "cancels stored first",
    "ends stored first",
    "content synchronised",
    "names synchronised",
    "new directories synchronised",
    "de-duplication of submissions",
    "cancelling of both kinds",
    "watches",
    "registrations tried again",
    "heartbeats",
    "fencing",
)


@pytest.mark.parametrize("name", NOTICED_SOON)
def test_a_missing_safeguard_of_the_whole_cluster_is_noticed(name: str) -> None:
    assert seeds_until_noticed(CLUSTER, name, 0, SEEDS) is not None


@pytest.mark.parametrize("name", CLUSTER.safeguards)
def test_what_is_switched_off_is_there(name: str) -> None:
    """A piece that was renamed or moved raises AttributeError."""
    with CLUSTER.safeguards[name].switched_off() as replacement:
        assert replacement is not None
