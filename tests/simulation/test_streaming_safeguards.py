"""What the simulated streaming job notices when a safeguard of its checkpoints is missing."""

from __future__ import annotations

import pytest

from tests.simulation.safeguards import (
    MASTERS,
    STREAMING,
    TOGETHER,
    TRIPLES,
    WRITERS,
    seeds_until_noticed,
)

SEEDS = 12
NOTICED_SOON = {
    "durable before acknowledged": 0,
    "completed before committed": 0,
    "shared files counted": 0,
    "committables wait": 0,
    "checkpoints kept until the end is stored": 0,
    "credit for barriers": 0,
}
"""Safeguard -> the first of so many seeds, of which one notices that it is missing."""
NOTICED_LATER = {
    "alignment": 60,
    "count of ids kept": 12,
    "source cut before the barrier": 196,
    "savepoints are not subsumed": 19,
    "stops answered after the end": 0,
    "committed before a stop": 24,
    "drained before a stop": 36,
    "attempts matched": 39,
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
def test_a_missing_safeguard_of_checkpoints_is_noticed(name: str, first: int) -> None:
    assert seeds_until_noticed(STREAMING, name, first, SEEDS) is not None


@pytest.mark.safeguards
@pytest.mark.slow
def test_a_missing_safeguard_of_masters_is_noticed() -> None:
    """*replaced JobMasters* has a test of its own in ``test_take_over``."""
    assert seeds_until_noticed(MASTERS, "told what is kept", 32, SEEDS) is not None


@pytest.mark.safeguards
@pytest.mark.slow
def test_a_missing_fence_of_the_stores_is_noticed() -> None:
    assert seeds_until_noticed(WRITERS, "stores fenced", 24, 15) is not None


@pytest.mark.safeguards
@pytest.mark.slow
def test_a_missing_safeguard_of_masters_that_die_together_is_noticed() -> None:
    assert seeds_until_noticed(TOGETHER, "TaskExecutors asked", 40, SEEDS) is not None


@pytest.mark.safeguards
def test_missing_backup_of_the_recovery_notes_at_a_task_executor_is_noticed() -> None:
    assert seeds_until_noticed(TRIPLES, "kept at a TaskExecutor", 0, SEEDS) is not None


SAFEGUARDS = {
    name: safeguard
    for scenario in (STREAMING, MASTERS, TOGETHER, TRIPLES, WRITERS)
    for name, safeguard in scenario.safeguards.items()
}


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_every_safeguard_of_streaming_jobs_can_be_switched_off(name: str) -> None:
    """A piece that was renamed or moved raises AttributeError; a piece with a changed signature
    raises TypeError."""
    with SAFEGUARDS[name].switched_off() as replacement:
        assert replacement is not None
