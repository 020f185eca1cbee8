"""Metrics that user functions register in their runtime context."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any


class Metric:
    """What a group has under a name."""


class Counter(Metric):
    """A number that is counted up and down."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Count up."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Count down."""
        self._count -= n

    def get_count(self) -> int:
        """Where it stands."""
        return self._count


class Meter(Metric):
    """How many events there were, and how many per second in the last *time_span* seconds.

    The rate is that between two readings, at least five seconds apart, as of Flink's MeterView.
    """

    def __init__(self, time_span_in_seconds: int = 60) -> None:
        self.time_span_in_seconds = time_span_in_seconds
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """So many events happened."""
        self._count += value

    def get_count(self) -> int:
        """All events so far."""
        return self._count


class Distribution(Metric):
    """Count, sum, least and greatest of the values it was updated with."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.min: int | None = None
        self.max: int | None = None

    def update(self, value: int) -> None:
        """One more value."""
        self.count += 1
        self.sum += value
        self.min = value if self.min is None else min(self.min, value)
        self.max = value if self.max is None else max(self.max, value)


class Gauge(Metric):
    """A number that is read when somebody looks."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def get_value(self) -> int:
        """What the function says now."""
        return self._read()


class MetricGroup:
    """Metrics under a name; groups nest."""

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path
        self._groups: dict[tuple[str, ...], MetricGroup] = {}
        self._metrics: dict[str, Any] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group inside this one; with *extra*, a key and its value."""
        path = (name,) if extra is None else (name, extra)
        return self._groups.setdefault(path, MetricGroup((*self._path, *path)))

    def counter(self, name: str) -> Counter:
        return self._register(name, Counter)  # type: ignore[no-any-return]

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        self._register(name, lambda: Gauge(obj))

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        make = partial(Meter, time_span_in_seconds)
        return self._register(name, make)  # type: ignore[no-any-return]

    def distribution(self, name: str) -> Distribution:
        return self._register(name, Distribution)  # type: ignore[no-any-return]

    def _register(self, name: str, make: Callable[[], Any]) -> Any:
        if name not in self._metrics:
            self._metrics[name] = make()
        return self._metrics[name]

    def all(self) -> dict[str, Any]:
        """Every metric below this group by its full name; from any thread."""
        metrics, groups = tuple(self._metrics.items()), tuple(self._groups.values())
        found = {".".join((*self._path, name)): metric for name, metric in metrics}
        for group in groups:
            found.update(group.all())
        return found
