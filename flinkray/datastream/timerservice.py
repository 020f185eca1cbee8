"""Exports TimerService under the module name of PyFlink's ``pyflink.datastream.timerservice``."""

from __future__ import annotations

from flinkray.streaming.functions.functions import TimerService

__all__ = ["TimerService"]
