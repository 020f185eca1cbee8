"""The guarantees that checkpoints can give for a program's results after a failure."""

from __future__ import annotations

from enum import Enum


class CheckpointingMode(Enum):
    """Says how often a record may affect the results if the program recovers from a failure."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
