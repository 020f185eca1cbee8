"""Metrics that user functions register in their runtime context."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

log = logging.getLogger(__name__)


class Metric:
    """Base class of the metrics that a :class:`MetricGroup` holds by name."""


M = TypeVar("M", bound=Metric)


class Counter(Metric):
    """A metric that the function counts up and down."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add *n* to the count of this counter."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Subtract *n* from the count of this counter."""
        self._count -= n

    def get_count(self) -> int:
        """Return the current count of this counter."""
        return self._count


class Meter(Metric):
    """Counts events and their rate per second over the last *time_span_in_seconds* seconds.
    The rate is computed between two readings that are at least five seconds apart, as in Flink's
    MeterView."""

    def __init__(self, time_span_in_seconds: int = 60) -> None:
        self.time_span_in_seconds = time_span_in_seconds
        self._count = 0

    def mark_event(self, value: int = 1) -> None:
        """Count *value* events."""
        self._count += value

    def get_count(self) -> int:
        """Return the number of events so far."""
        return self._count


class Distribution(Metric):
    """A metric with count, sum, minimum and maximum of the values given to :meth:`update`."""

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.min: int | None = None
        self.max: int | None = None

    def update(self, value: int) -> None:
        """Add *value* to the distribution."""
        self.count += 1
        self.sum += value
        self.min = value if self.min is None else min(self.min, value)
        self.max = value if self.max is None else max(self.max, value)


class Gauge(Metric):
    """A metric whose value is read from a function of the user when the metric is shown."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read

    def get_value(self) -> int:
        """Return the gauge's present value, by calling the user's function."""
        return self._read()


class MetricGroup:
    """Metrics by name, and groups inside this group. If a name is already used by another kind of
    metric, a new metric is returned but not shown (as in Flink)."""

    def __init__(self, path: tuple[str, ...] = ()) -> None:
        self._path = path
        self._groups: dict[tuple[str, ...], MetricGroup] = {}
        self._metrics: dict[str, Any] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return the group *name* inside this group, which is created at its first use.
        With *extra*, the group is named by a key and a value: *name* and *extra*."""
        path = (name,) if extra is None else (name, extra)
        for part in path:
            _check(part)
        return self._groups.setdefault(path, MetricGroup((*self._path, *path)))

    def counter(self, name: str) -> Counter:
        return self._register(name, Counter, Counter)

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        self._register(name, Gauge, partial(Gauge, obj))

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        return self._register(name, Meter, partial(Meter, time_span_in_seconds))

    def distribution(self, name: str) -> Distribution:
        return self._register(name, Distribution, Distribution)

    def _register(self, name: str, kind: type[M], make: Callable[[], M]) -> M:
        _check(name)
        known = self._metrics.get(name)
        if isinstance(known, kind):
            return known
        made = make()
        if known is None:
            self._metrics[name] = made
        else:
            log.warning(
                "the %s %s is not shown: there is a %s of that name",
                kind.__name__.lower(),
                ".".join((*self._path, name)),
                type(known).__name__.lower(),
            )
        return made

    def all(self) -> dict[str, Any]:
        """Return the metrics of this group and the groups inside, by dotted name. Thread-safe."""
        metrics, groups = tuple(self._metrics.items()), tuple(self._groups.values())
        found = {".".join((*self._path, name)): metric for name, metric in metrics}
        for group in groups:
            found.update(group.all())
        return found


def _check(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"the name of a metric or of a group is a str, not {name!r}")
