"""Whether a program runs as a stream or as a batch."""

from __future__ import annotations

from enum import Enum


class RuntimeExecutionMode(Enum):
    """How a program runs."""

    STREAMING = 0
    """Every record has its effect at once."""
    BATCH = 1
    """Of bounded inputs: keyed reductions put out final values, and time stands until the end."""
    AUTOMATIC = 2
    """Batch if all sources are bounded."""
