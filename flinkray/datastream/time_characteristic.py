"""What programs for Flink 1 say about time."""

from __future__ import annotations

from enum import Enum


class TimeCharacteristic(Enum):
    """Of old programs: what time windows go by.  Assigners say it themselves now."""

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2
