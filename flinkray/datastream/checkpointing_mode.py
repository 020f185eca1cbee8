"""What a failure may do to results."""

from __future__ import annotations

from enum import Enum


class CheckpointingMode(Enum):
    """What a failure may do to results."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
