"""Time that stands still until the test moves it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import flinkray.testing
from flinkray.core.clock import Clock
from flinkray.testing import ManualClock


def test_time_of_a_manual_clock_passes_only_when_it_is_advanced() -> None:
    clock = ManualClock(epoch=1000.0)
    as_clock: Clock = clock
    assert (as_clock.time(), as_clock.monotonic()) == (1000.0, 0.0)
    clock.advance(2.5)
    assert (clock.time(), clock.monotonic()) == (1002.5, 2.5)
    with pytest.raises(ValueError, match="-1 s"):
        clock.advance(-1)


def test_correction_of_the_wall_clock_does_not_move_the_monotonic_clock() -> None:
    clock = ManualClock(epoch=1000.0)
    clock.advance(1.0)
    clock.set_wall_clock(500.0)
    clock.advance(1.0)
    assert (clock.time(), clock.monotonic()) == (501.0, 2.0)


def test_public_names_of_the_testing_package_exist_and_most_do_not_import_ray() -> None:
    clusters = ("MiniCluster", "SimulatedCluster", "scripted_job")
    names = [name for name in flinkray.testing.__all__ if name not in clusters]
    program = (
        f"import sys; from flinkray.testing import {', '.join(names)}; "
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    for name in flinkray.testing.__all__:
        assert getattr(flinkray.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = flinkray.testing.nothing  # type: ignore[attr-defined]
