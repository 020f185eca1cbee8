"""Processes that Ray's memory monitor kills, in a Ray of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("out_of_memory_program.py")
MONITOR = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "4000"}


@pytest.mark.ray
@pytest.mark.own_ray
@pytest.mark.kill
@pytest.mark.slow
def test_name_of_a_process_killed_by_the_memory_monitor_can_be_used_again() -> None:
    """Ray answers calls to the process with OutOfMemoryError and never reports its death."""
    done = subprocess.run(
        [sys.executable, PROGRAM],
        cwd=PROGRAM.parents[2],
        env={**os.environ, **MONITOR, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "\ngone: " in f"\n{done.stdout}"
    assert "\nagain" in done.stdout
