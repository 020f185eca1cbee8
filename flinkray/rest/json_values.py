"""Flink's JSON: times in milliseconds, counts, percentiles, and the text in which it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from flinkray.scheduler.shared.states import ExecutionState

NOT_YET = -1
"""The value for a time that has not come."""

STATES = (*(state.name for state in ExecutionState), "RECONCILING")
"""The task states of Flink; no task is ever RECONCILING here."""


def milliseconds(seconds: float | None, otherwise: int = NOT_YET) -> int:
    """Return *seconds* as whole milliseconds, or *otherwise* for None."""
    return otherwise if seconds is None else round(seconds * 1000)


def state_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the number of tasks in each execution state; 0 for states that *counts* lacks
    (RE-43)."""
    return {state: counts.get(state, 0) for state in STATES}


def distribution(values: Iterable[float]) -> dict[str, int]:
    """Return minimum, maximum, mean, sum and percentiles of *values* (a number for each subtask),
    with the names of Flink's dashboard. All are 0 if there are no values."""
    ordered = sorted(values) or [0]
    return {
        "min": round(ordered[0]),
        "max": round(ordered[-1]),
        "avg": round(fmean(ordered)),
        "sum": round(sum(ordered)),
        "median": round(quantile(ordered, 0.5)),
        "p25": round(quantile(ordered, 0.25)),
        "p75": round(quantile(ordered, 0.75)),
        "p95": round(quantile(ordered, 0.95)),
    }


def summary(values: Iterable[float]) -> dict[str, Any]:
    """Return minimum, maximum, mean and percentiles of *values* (a number for each checkpoint). If
    there are no values, the percentiles are "NaN", as in Flink, and the others 0."""
    ordered = sorted(values)
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
    if not ordered:
        return {"min": 0, "max": 0, "avg": 0, **dict.fromkeys(shares, "NaN")}
    return {
        "min": round(ordered[0]),
        "max": round(ordered[-1]),
        "avg": round(fmean(ordered)),
        **{name: float(quantile(ordered, share)) for name, share in shares.items()},
    }


def quantile(ordered: list[float], share: float) -> float:
    """Return the value below which the fraction *share* (0 to 1) of the sorted values lies, with
    linear interpolation between two values."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def to_json(value: object) -> str:
    """Return *value* as JSON. Raises ValueError: a number is not finite."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


@dataclass(frozen=True)
class JsonText:
    """JSON that is already written as text."""

    text: str


class WrittenOnce:
    """Keeps the last JSON text, so that an answer for many clients is converted to text only
    once."""

    def __init__(self) -> None:
        self._source: object = None
        self._written = JsonText("null")

    def of(self, source: object, body: Callable[[], object]) -> JsonText:
        """Return the JSON text of *body()*. *source*: the object from which *body* makes its value;
        if it is the same object as in the last call, the last text is returned, and *body* is not
        called."""
        if source is not self._source:
            self._written, self._source = JsonText(to_json(body())), source
        return self._written
