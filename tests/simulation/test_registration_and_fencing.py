"""Registrations and fencing under every kind of fault."""

from __future__ import annotations

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.registration_and_fencing import FAULTS, registration_and_fencing


@simulate(seeds=200, faults=FAULTS, nodes=2)
async def test_the_newest_registration_at_the_last_leader_wins(simulation: Simulation) -> None:
    """FEN-09, RM-02: whatever goes wrong meanwhile."""
    await registration_and_fencing(simulation)
