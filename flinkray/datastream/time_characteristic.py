"""Time characteristic, which programs for Flink 1 set."""

from __future__ import annotations

from enum import Enum


class TimeCharacteristic(Enum):
    """Kind of time that time windows go by, for old programs.

    Window assigners decide this themselves now.
    """

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2
