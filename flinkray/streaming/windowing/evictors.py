"""Evictors remove records from a window before or after the window function is called."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from flinkray.core.durations import Duration, Time, milliseconds


class TimestampedValue(NamedTuple):
    """A record in a window. The timestamp is None if the record has no timestamp."""

    value: Any
    timestamp: int | None


class Evictor(ABC):
    """Removes records from a window before or after the window function sees them."""

    @abstractmethod
    def evict_before(self, elements: list[TimestampedValue], window: Any) -> list[TimestampedValue]:
        """Return those of *elements* that stay in the window. Called before the window function,
        which gets only these records."""

    @abstractmethod
    def evict_after(self, elements: list[TimestampedValue], window: Any) -> list[TimestampedValue]:
        """Return those of *elements* that stay in the window. Called after the window function."""


class _OnOneSide(Evictor):
    def __init__(self, do_evict_after: bool = False) -> None:
        self._after = do_evict_after

    def evict_before(self, elements: list[TimestampedValue], window: Any) -> list[TimestampedValue]:
        return elements if self._after else self.keep(elements)

    def evict_after(self, elements: list[TimestampedValue], window: Any) -> list[TimestampedValue]:
        return self.keep(elements) if self._after else elements

    @abstractmethod
    def keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        """Return those of *elements* that stay in the window."""


class CountEvictor(_OnOneSide):
    """Keeps the last *max_count* records."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._max_count = max_count

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        return CountEvictor(max_count, do_evict_after)

    def keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        return elements[max(0, len(elements) - self._max_count) :]


class TimeEvictor(_OnOneSide):
    """Keeps the records that are less than *window_size* older than the latest record."""

    def __init__(self, window_size: Time | Duration | int, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self._size = milliseconds(window_size)

    @staticmethod
    def of(window_size: Time | Duration | int, do_evict_after: bool = False) -> TimeEvictor:
        return TimeEvictor(window_size, do_evict_after)

    def keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        times = [element.timestamp for element in elements if element.timestamp is not None]
        if not times:
            return elements
        cutoff = max(times) - self._size
        return [e for e in elements if e.timestamp is None or e.timestamp > cutoff]


class DeltaEvictor(_OnOneSide):
    """Keeps the records whose difference from the last record is less than *threshold*."""

    def __init__(
        self,
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        do_evict_after: bool = False,
    ) -> None:
        super().__init__(do_evict_after)
        self._threshold = threshold
        self._delta = delta_function

    @staticmethod
    def of(
        threshold: float,
        delta_function: Callable[[Any, Any], float],
        do_evict_after: bool = False,
    ) -> DeltaEvictor:
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def keep(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        differences = [self._delta(element.value, last) for element in elements]
        pairs = zip(elements, differences, strict=True)
        return [e for e, by in pairs if by < self._threshold or by != by]
