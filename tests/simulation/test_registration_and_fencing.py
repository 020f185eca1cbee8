"""Registrations and fencing under every kind of fault."""

from __future__ import annotations

import pytest

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.registration_and_fencing import FAULTS, registration_and_fencing
from tests.simulation.safeguards import REGISTRATIONS, seeds_until_noticed


@simulate(seeds=60, faults=FAULTS, nodes=2)
async def test_newest_registration_at_the_last_leader_wins_despite_all_faults(
    simulation: Simulation,
) -> None:
    """FEN-09, RM-02: under all faults."""
    await registration_and_fencing(simulation)


@pytest.mark.safeguards
@pytest.mark.parametrize("name", REGISTRATIONS.safeguards)
def test_missing_safeguard_of_registration_or_fencing_is_noticed(name: str) -> None:
    assert seeds_until_noticed(REGISTRATIONS, name, 1000, 400) is not None
