"""The back-pressure of a vertex in the JSON of Flink's REST API (RE-44)."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from flinkray.rest.io_rates import JobLook, Measured
from flinkray.rest.json_values import milliseconds
from flinkray.scheduler.reports.job_info import VertexInfo

_LOW, _HIGH = 0.10, 0.5
"""The fractions of time up to which back-pressure counts as ok and as low (RE-44)."""
_LEVELS = ("ok", "low", "high")


def back_pressure(look: JobLook, vertex: VertexInfo) -> dict[str, Any]:
    """Return the back-pressure of a vertex's running subtasks since the previous request. Without a
    previous request, only the status "deprecated" is returned, as in Flink."""
    subtasks = [
        told
        for one in look.subtasks(vertex)
        if one.is_running and (told := _pressure_on(one)) is not None
    ]
    if not subtasks:
        return {"status": "deprecated"}
    level = max((one["backpressureLevel"] for one in subtasks), key=_LEVELS.index)
    return {
        "status": "ok",
        "backpressureLevel": level,
        "end-timestamp": milliseconds(look.taken_at),
        "subtasks": subtasks,
        "backpressure-level": level,
    }


def _pressure_on(measured: Measured) -> dict[str, Any] | None:
    """Return the back-pressure of a subtask since the previous request for the job. None: it is not
    known, as there was no such request."""
    shares: dict[str, float] = {}
    for name, field in (
        ("ratio", "back_pressured_ms"),
        ("idleRatio", "idle_ms"),
        ("busyRatio", "busy_ms"),
    ):
        speed = measured.per_second(attrgetter(field))
        if speed is None:
            return None
        shares[name] = round(speed / 1000, 3)
    level = level_of(shares["ratio"])
    return {
        "subtask": measured.subtask,
        "backpressureLevel": level,
        **shares,
        "backpressure-level": level,
    }


def level_of(share: float) -> str:
    """Return Flink's back-pressure level for the fraction of its time in which a task is
    back-pressured."""
    return _LEVELS[(share > _LOW) + (share > _HIGH)]
