"""The modes in which a program can run: as a stream or as a batch."""

from __future__ import annotations

from enum import Enum


class RuntimeExecutionMode(Enum):
    """The mode in which a program runs: streaming, batch, or decided by its sources."""

    STREAMING = 0
    """Every record has its effect at once."""
    BATCH = 1
    """Execution for bounded inputs.
    Keyed reductions emit only final values, and event time stands still until the end."""
    AUTOMATIC = 2
    """Batch if all sources are bounded."""
