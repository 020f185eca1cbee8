"""Defines the interface through which code reads the time.

Code that needs the time gets a clock as argument and never asks the system, so that simulated runs
can use virtual time.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Tells the time; simulated runs have a clock with virtual time."""

    def time(self) -> float:
        """Return the seconds since the epoch. Use this for times that are shown to people."""

    def monotonic(self) -> float:
        """Return seconds that never decrease. Use this to measure durations and for deadlines."""
