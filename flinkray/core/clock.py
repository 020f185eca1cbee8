"""The clock interface.
Code that needs the time gets a clock as argument and never asks the system."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Source of time; simulated runs have a virtual one."""

    def time(self) -> float:
        """Return the seconds since the epoch: for times that are shown to people."""

    def monotonic(self) -> float:
        """Return seconds that never go back: for measuring and for deadlines."""
