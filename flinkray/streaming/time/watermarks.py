"""How a stream gets its timestamps and watermarks."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.functions.coroutines import refuse_coroutines
from flinkray.streaming.records.elements import MIN_TIMESTAMP
from flinkray.streaming.time.given_times import time_of_field
from flinkray.streaming.time.watermark_alignment import Alignment


class TimestampAssigner(ABC):
    """Reads a record's event time."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since the epoch; *record_timestamp* is what the record had before, the
        smallest number there is if nothing."""


class WatermarkOutput(ABC):
    """Where a generator puts its watermarks."""

    @abstractmethod
    def emit_watermark(self, timestamp: int) -> None:
        """A watermark; ignored unless it is later than the last one."""

    @abstractmethod
    def mark_idle(self) -> None:
        """Time of this stream waits for nobody until the next record or watermark."""

    @abstractmethod
    def mark_active(self) -> None:
        """The opposite."""


class WatermarkGenerator(ABC):
    """Makes watermarks, on records or from time to time."""

    @abstractmethod
    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        """A record with its timestamp."""

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Called every auto-watermark interval of processing time."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """The latest timestamp so far, less a delay and one millisecond."""

    def __init__(self, delay: int) -> None:
        if delay < 0:
            raise ValueError(f"a delay must not be negative, got {delay} ms")
        self._delay = delay
        # So that the first watermark is the smallest number, and not below it.
        self._max_timestamp = MIN_TIMESTAMP + delay + 1

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.on_timestamps(event_timestamp)

    def on_timestamps(self, latest: int) -> None:
        """A batch of records, of which *latest* is the latest timestamp."""
        if latest > self._max_timestamp:
            self._max_timestamp = latest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self._max_timestamp - self._delay - 1)


class NoWatermarks(WatermarkGenerator):
    """No watermark but the last one, at the end of the input."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        return None

    def on_timestamps(self, latest: int) -> None:
        return None

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        return None


class PerElementWatermarks(WatermarkGenerator):
    """A watermark after every record: its timestamp less one millisecond... of the latest so far.

    Windows fire as early as they can; costs a batch per record.
    """

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
    """Timestamps and watermarks of a stream; made by the ``for_`` methods, refined by ``with_``.

    Each method returns a new strategy.
    """

    _make_generator: Callable[[], WatermarkGenerator]
    timestamp_assigner: Any = None
    timestamp_column: str | None = None
    idle_timeout: int | None = None
    alignment: Alignment | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Timestamps of a source's partition never go back."""
        return WatermarkStrategy(_Bounded(0))

    @staticmethod
    def for_bounded_out_of_orderness(
        max_out_of_orderness: Duration | Time | timedelta | int,
    ) -> WatermarkStrategy:
        """No record is older than the latest one by more than that."""
        delay = milliseconds(max_out_of_orderness)
        if delay < 0:
            raise ValueError(f"a bound of out-of-orderness must not be negative, got {delay} ms")
        return WatermarkStrategy(_Bounded(delay))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """No progress of event time before the end of the input."""
        return WatermarkStrategy(NoWatermarks)

    @staticmethod
    def for_generator(make_generator: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Watermarks of a generator of your own; each subtask makes one."""
        return WatermarkStrategy(make_generator)

    def with_timestamp_assigner(self, timestamp_assigner: Any) -> WatermarkStrategy:
        """Timestamps from a :class:`TimestampAssigner`, or a function of value and timestamp."""
        if not callable(getattr(timestamp_assigner, "extract_timestamp", timestamp_assigner)):
            raise TypeError(
                "a TimestampAssigner, or a function of value and timestamp, is needed, got "
                f"{timestamp_assigner!r}"
            )
        refuse_coroutines(timestamp_assigner, "extract_timestamp")
        return replace(self, timestamp_assigner=timestamp_assigner, timestamp_column=None)

    def with_timestamp_column(self, name: str) -> WatermarkStrategy:
        """Timestamps from a column (an Arrow timestamp, or milliseconds); stays columnar."""
        return replace(self, timestamp_column=name, timestamp_assigner=None)

    def with_idleness(self, idle_timeout: Duration | Time | timedelta | int) -> WatermarkStrategy:
        """A stream without records for so long holds nobody back."""
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
        """Sources of the group that are ahead of the slowest by more than the drift pause.

        For ``from_source``, or directly behind a source.  Watermarks are compared every
        *update_interval* (a second), so a source may be ahead by what it reads in that time.
        """
        drift = milliseconds(max_allowed_watermark_drift)
        interval = 1000 if update_interval is None else milliseconds(update_interval)
        return replace(self, alignment=Alignment(watermark_group, drift, interval))

    @property
    def passes_everything_on(self) -> bool:
        """No timestamps and no watermarks: the strategy does nothing at all."""
        return self._make_generator is NoWatermarks and self.create_assigner() is None

    def create_generator(self) -> WatermarkGenerator:
        """A generator for one subtask."""
        return self._make_generator()

    def create_assigner(self) -> Callable[[Any, int], int] | None:
        """The function that reads timestamps; None keeps the ones that records have."""
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
