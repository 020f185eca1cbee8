"""The same seed is the same run, in every process."""

from __future__ import annotations

import os
import subprocess
import sys

from flinkray.testing.simulation import Simulation
from tests.simulation.ledger import FAULTS, play

_PROGRAM = "from tests.simulation.test_determinism import traces; print(*traces(5))"


def traces(seeds: int) -> list[str]:
    """Hash, steps and time of each seed's run."""
    found = []
    for seed in range(seeds):
        simulation = Simulation(seed, faults=FAULTS, nodes=3)
        simulation.run(play(simulation))
        found.append(f"{simulation.trace_hash}:{simulation.scheduler.steps}:{simulation.now:.6f}")
    return found


def test_same_seed_gives_the_same_trace_and_different_seeds_different_ones() -> None:
    first = traces(5)
    assert first == traces(5)
    assert len(set(first)) == 5


def test_seed_gives_the_same_trace_in_every_process_and_with_every_hash_seed() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env={
                **os.environ,
                "PYTHONHASHSEED": hash_seed,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        == traces(5)
        for hash_seed in ("0", "1", "random")
    }
    assert outputs == {True}


def test_length_of_the_event_log_does_not_change_the_trace_of_a_run_with_faults() -> None:
    quiet, talkative = (
        Simulation(3, faults=FAULTS, nodes=3, story_length=length) for length in (1, 10_000)
    )
    quiet.run(play(quiet))
    talkative.run(play(talkative))
    assert quiet.trace_hash == talkative.trace_hash
    assert len(list(quiet.story.lines())) == 2  # the last, and how many there were before
