"""Processes that stand still for a while: nobody is given up because of it."""

from __future__ import annotations

import pytest

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.safeguards import STALLS, seeds_until_noticed
from tests.simulation.stalled_processes import StalledProcesses


@simulate(seeds=3, nodes=2)
async def test_process_that_was_stalled_declares_no_other_process_dead(
    simulation: Simulation,
) -> None:
    await StalledProcesses(simulation).run()


@pytest.mark.parametrize("name", STALLS.safeguards)
def test_missing_safeguard_against_stalled_processes_is_noticed(name: str) -> None:
    assert seeds_until_noticed(STALLS, name, 0, 10) is not None
