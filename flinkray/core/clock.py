"""The clock interface.  Code that needs the time is given a clock and never asks the system."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Where time comes from; simulated runs have a virtual one."""

    def time(self) -> float:
        """Seconds since the epoch: for what is shown to people."""

    def monotonic(self) -> float:
        """Seconds that never go back: for measuring and for deadlines."""
