"""Guarantees for results after a failure."""

from __future__ import annotations

from enum import Enum


class CheckpointingMode(Enum):
    """Guarantee for results after a failure."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
