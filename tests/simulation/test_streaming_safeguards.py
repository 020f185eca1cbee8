"""What the simulated streaming job notices when a safeguard of its checkpoints is missing."""

from __future__ import annotations

import pytest

from tests.simulation.safeguards import MASTERS, STREAMING, seeds_until_noticed

SEEDS = 12
NOTICED_SOON = {
    "alignment": 12,
    "durable before acknowledged": 0,
    "completed before committed": 0,
    "count of ids kept": 0,
    "source cut before the barrier": 15,
    "shared files counted": 0,
    "committables wait": 0,
    "checkpoints kept until the end is stored": 0,
    "savepoints are not subsumed": 0,
    "stops answered after the end": 0,
    "committed before a stop": 24,
    "drained before a stop": 36,
    "attempts matched": 0,
}
"""Safeguard -> the first of so many seeds, of which one notices that it is missing."""


@pytest.mark.parametrize("name", NOTICED_SOON)
def test_a_missing_safeguard_of_checkpoints_is_noticed(name: str) -> None:
    assert seeds_until_noticed(STREAMING, name, NOTICED_SOON[name], SEEDS) is not None


def test_a_missing_safeguard_of_masters_is_noticed() -> None:
    """*replaced JobMasters*: by a test of its own, in ``test_take_over``."""
    assert seeds_until_noticed(MASTERS, "told what is kept", 26, 1) is not None


@pytest.mark.parametrize("name", [*STREAMING.safeguards, *MASTERS.safeguards])
def test_what_is_switched_off_is_there(name: str) -> None:
    """A piece that was renamed or moved raises AttributeError, one that is called otherwise now
    TypeError."""
    safeguards = {**STREAMING.safeguards, **MASTERS.safeguards}
    with safeguards[name].switched_off() as replacement:
        assert replacement is not None
