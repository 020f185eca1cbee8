"""What a sink that offers a choice promises."""

from __future__ import annotations

from enum import Enum


class DeliveryGuarantee(Enum):
    """What becomes of records when a job fails and is restarted (Flink's)."""

    EXACTLY_ONCE = 0
    """Each is there once."""
    AT_LEAST_ONCE = 1
    """Each is there, maybe several times."""
    NONE = 2
    """Records may be lost or doubled."""
