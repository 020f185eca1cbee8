"""A scenario under all faults, and what the faults find when a safeguard is taken away."""

from __future__ import annotations

import pytest

from flinkray.testing.simulation import Simulation, simulate
from tests.simulation.ledger import FAULTS, LedgerSettings, play


@simulate(seeds=100, faults=FAULTS, nodes=3)
async def test_each_booking_is_made_once_and_no_confirmed_booking_is_lost(
    simulation: Simulation,
) -> None:
    await play(simulation)


@pytest.mark.safeguards
@pytest.mark.parametrize(
    ("settings", "first", "message"),
    [
        (LedgerSettings(ignores_duplicates=False), 0, "something was booked twice"),
        (LedgerSettings(writes_before_it_answers=False), 0, "a confirmed booking is lost"),
        # since a renaming is there as a whole or not at all, two of 3,000 seeds notice it
        (LedgerSettings(writes_one_after_the_other=False), 3800, "a confirmed booking is lost"),
    ],
    ids=["no de-duplication", "answers before it is durable", "writes beside each other"],
)
def test_some_seed_fails_if_a_safeguard_of_the_ledger_is_missing(
    settings: LedgerSettings, first: int, message: str
) -> None:
    for seed in range(first, first + 300):
        simulation = Simulation(seed, faults=FAULTS, nodes=3)
        try:
            simulation.run(play(simulation, settings))
        except AssertionError as error:
            if message in str(error):
                return
    pytest.fail("no seed has found it")
