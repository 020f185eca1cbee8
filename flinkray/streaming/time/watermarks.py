"""Watermark strategies: how a stream gets its timestamps and watermarks."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.functions.signatures import refuse_coroutines
from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.time.given_times import time_of_field
from flinkray.streaming.time.watermark_alignment import Alignment


class TimestampAssigner(ABC):
    """Interface of a user's class that returns the event time of each record."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the timestamp of a record, in milliseconds since the epoch. *record_timestamp* is
        the timestamp that the record has, or the least number if it has none."""


class WatermarkOutput(ABC):
    """Interface to which a watermark generator puts out watermarks, and whether it is idle."""

    @abstractmethod
    def emit_watermark(self, timestamp: int) -> None:
        """Put out a watermark. It is ignored unless it is later than the last one."""

    @abstractmethod
    def mark_idle(self) -> None:
        """Mark the stream as idle: its watermark is ignored until the next record or watermark."""

    @abstractmethod
    def mark_active(self) -> None:
        """Mark the stream as active again, after :meth:`mark_idle`."""


class WatermarkGenerator(ABC):
    """Interface of a user's class that makes watermarks: for each record, periodically, or both."""

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """Called for each record, with its timestamp. May put a watermark out to *output*."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called at each auto-watermark interval of processing time. May put a watermark out to
        *output*."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Makes the watermark periodically: the latest timestamp until now, less a delay and one
    millisecond."""

    def __init__(self, delay: int) -> None:
        if delay < 0:
            raise ValueError(f"a delay must not be negative, got {delay} ms")
        self._delay = delay
        # The first watermark is the least number, and not below it.
        self._max_timestamp = MIN_TIMESTAMP + delay + 1

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.on_timestamps(event_timestamp)

    def on_timestamps(self, latest: int) -> None:
        """Note the latest timestamp of a batch of records."""
        if latest > self._max_timestamp:
            self._max_timestamp = latest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self._max_timestamp - self._delay - 1)


class NoWatermarks(WatermarkGenerator):
    """Makes no watermarks. The source puts out the last watermark at the end of its input."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        return None

    def on_timestamps(self, latest: int) -> None:
        return None

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        return None


class PerElementWatermarks(WatermarkGenerator):
    """Makes a watermark after every record that is later than all records before.
    The watermark is the record's timestamp less one millisecond. Windows fire as early as possible,
    at the cost of a batch per record."""

    def __init__(self) -> None:
        self._max_timestamp = MIN_TIMESTAMP

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if event_timestamp > self._max_timestamp:
            self._max_timestamp = event_timestamp
            output.emit_watermark(event_timestamp - 1)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        return None


@dataclass(frozen=True)
class WatermarkStrategy:
    """Says how a stream gets its timestamps and watermarks. Create a strategy with a ``for_``
    method, and refine it with the ``with_`` methods. Each method returns a new strategy."""

    _make_generator: Callable[[], WatermarkGenerator]
    timestamp_assigner: Any = None
    timestamp_column: str | None = None
    idle_timeout: int | None = None
    alignment: Alignment | None = None
    waits_for_splits: bool = True

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Create a strategy for timestamps that never go back within a partition of the source."""
        return WatermarkStrategy(_Bounded(0))

    @staticmethod
    def for_bounded_out_of_orderness(
        max_out_of_orderness: Duration | Time | timedelta | int,
    ) -> WatermarkStrategy:
        """Create a strategy for records that are late by at most *max_out_of_orderness*.
        A record's lateness is the time by which it is older than the latest record so far."""
        delay = milliseconds(max_out_of_orderness)
        if delay < 0:
            raise ValueError(f"a bound of out-of-orderness must not be negative, got {delay} ms")
        return WatermarkStrategy(_Bounded(delay))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Create a strategy without watermarks before the end of the input."""
        return WatermarkStrategy(NoWatermarks)

    @staticmethod
    def for_generator(make_generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Create a strategy with your own generator. Each subtask makes a generator."""
        return WatermarkStrategy(make_generator)

    def with_timestamp_assigner(self, timestamp_assigner: Any) -> WatermarkStrategy:
        """Return a strategy that reads timestamps with a :class:`TimestampAssigner` or a function.
        A function gets the value and the timestamp that the record has."""
        if not callable(getattr(timestamp_assigner, "extract_timestamp", timestamp_assigner)):
            raise TypeError(
                "a TimestampAssigner, or a function of value and timestamp, is needed, got "
                f"{timestamp_assigner!r}"
            )
        refuse_coroutines(timestamp_assigner, "extract_timestamp")
        return replace(self, timestamp_assigner=timestamp_assigner, timestamp_column=None)

    def with_timestamp_column(self, name: str) -> WatermarkStrategy:
        """Return a strategy that reads timestamps from a column. Batches stay columnar.
        The column has Arrow timestamps, or milliseconds as integers."""
        return replace(self, timestamp_column=name, timestamp_assigner=None)

    def with_idleness(self, idle_timeout: Duration | Time | timedelta | int) -> WatermarkStrategy:
        """Return a strategy in which a stream without records for *idle_timeout* is idle.
        Operators do not wait for the watermark of an idle stream."""
        timeout = milliseconds(idle_timeout)
        if timeout <= 0:
            raise ValueError(f"an idle time-out must be positive, got {timeout} ms")
        return replace(self, idle_timeout=timeout)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: Duration | Time | timedelta | int,
        update_interval: Duration | Time | timedelta | int | None = None,
    ) -> WatermarkStrategy:
        """Return a strategy with which sources pause when they are too far ahead of their group.

        A source pauses when it is ahead of the slowest source by more than the drift. For
        ``from_source``, or directly behind a source. Watermarks are compared every
        *update_interval* (default: a second), so a source may be ahead by the records that it reads
        in that time.
        """
        drift = milliseconds(max_allowed_watermark_drift)
        interval = 1000 if update_interval is None else milliseconds(update_interval)
        return replace(self, alignment=Alignment(watermark_group, drift, interval))

    def without_waiting_for_splits(self) -> WatermarkStrategy:
        """Return a strategy whose watermarks follow the records read, not waiting for all splits.

        This matters for a bounded source of several splits (files, for example). By default it has
        no watermarks before the last split is handed out, and state grows until then. Without
        waiting, records of later splits may be late. Use this for splits that are read in the order
        of their time.
        """
        return replace(self, waits_for_splits=False)

    @property
    def passes_everything_on(self) -> bool:
        """Whether the strategy assigns no timestamps and makes no watermarks."""
        return self._make_generator is NoWatermarks and self.create_assigner() is None

    def create_generator(self) -> WatermarkGenerator:
        """Create a generator for one subtask."""
        return self._make_generator()

    def create_assigner(self) -> Callable[[Any, int], int] | None:
        """Return the function that reads timestamps; None: records keep their timestamps."""
        assigner = self.timestamp_assigner
        if assigner is not None:
            assigner = copy.copy(assigner) if hasattr(assigner, "extract_timestamp") else assigner
            return getattr(assigner, "extract_timestamp", assigner)  # type: ignore[no-any-return]
        if self.timestamp_column is not None:
            column = self.timestamp_column
            return lambda value, _: time_of_field(value[column], column)
        return None


@dataclass(frozen=True)
class _Bounded:
    delay: int

    def __call__(self) -> WatermarkGenerator:
        return BoundedOutOfOrdernessWatermarks(self.delay)
