"""The delivery guarantees of sinks that offer a choice."""

from __future__ import annotations

from enum import Enum


class DeliveryGuarantee(Enum):
    """Says whether a sink may lose or repeat records when a job fails and is restarted."""

    EXACTLY_ONCE = 0
    """Each record is delivered exactly once."""
    AT_LEAST_ONCE = 1
    """Each record is delivered, perhaps several times."""
    NONE = 2
    """Records may be lost or duplicated."""
