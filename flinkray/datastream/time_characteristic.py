"""The kind of time that programs for Flink 1 set for all their windows."""

from __future__ import annotations

from enum import Enum


class TimeCharacteristic(Enum):
    """The kind of time that programs for Flink 1 set for all their windows.
    The setting has no effect: the window assigners decide on the kind of time now."""

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2
