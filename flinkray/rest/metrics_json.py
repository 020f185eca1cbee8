"""Metrics in the JSON of Flink's REST API: arrays (RE-40), with Flink's metric names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from typing import Any

from flinkray.rest.io_rates import Measured
from flinkray.rest.json_values import milliseconds
from flinkray.scheduler.reports.job_info import ClusterNumbers, JobDetails, JobOverview
from flinkray.scheduler.shared.states import JobStatus

Values = Mapping[str, float | str]
"""Values by metric name."""

_TOTALS = (
    ("records_in", "numRecordsIn", "numRecordsInPerSecond"),
    ("records_out", "numRecordsOut", "numRecordsOutPerSecond"),
    ("bytes_in", "numBytesIn", "numBytesInPerSecond"),
    ("bytes_out", "numBytesOut", "numBytesOutPerSecond"),
    ("busy_ms", "accumulateBusyTimeMs", "busyTimeMsPerSecond"),
    ("idle_ms", "accumulateIdleTimeMs", "idleTimeMsPerSecond"),
    ("back_pressured_ms", "accumulateBackPressuredTimeMs", "backPressuredTimeMsPerSecond"),
)
"""The field of IOMetrics, and Flink's names of its total and its rate."""
_WATERMARK = "currentInputWatermark"


def skew(values: Sequence[float]) -> float:
    """Return the mean absolute deviation of the values, in percent of their mean."""
    mean = fmean(values)
    return 100 * fmean(abs(value - mean) for value in values) / mean if mean else 0.0


AGGREGATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "avg": fmean,
    "sum": sum,
    "skew": skew,
}


def listed(values: Values, wanted: Iterable[str] | None) -> list[dict[str, str]]:
    """Return names and values of those metrics in *values* that *wanted* names. *wanted* None:
    return the names of all metrics, without values."""
    if wanted is None:
        return [{"id": name} for name in values]
    return [{"id": name, "value": str(values[name])} for name in wanted if name in values]


def aggregated(
    rows: Sequence[Values], wanted: Iterable[str] | None, aggregations: Collection[str]
) -> list[dict[str, Any]]:
    """Return, for each metric in *wanted*, aggregates over *rows* (the metrics of one subtask or
    job each). *wanted* None: return the names of all metrics that are numbers, without
    aggregates."""
    numbers: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            if not isinstance(value, str):
                numbers.setdefault(name, []).append(value)
    if wanted is None:
        return [{"id": name} for name in numbers]
    return [
        {
            "id": name,
            **{kind: float(AGGREGATIONS[kind](numbers[name])) for kind in aggregations},
        }
        for name in wanted
        if name in numbers
    ]


def of_subtask(measured: Measured) -> dict[str, float]:
    values: dict[str, float] = {}
    for field, total, rate in _TOTALS:
        known = getattr(measured.now, field)
        if known is not None:
            values[total] = known
        speed = measured.per_second(attrgetter(field))
        if speed is not None:
            values[rate] = round(speed, 3)
    if measured.now.input_watermark is not None:
        values[_WATERMARK] = measured.now.input_watermark
    if measured.now.held is not None:
        values["isHeld"] = measured.now.held
    return values


def of_vertex(subtasks: Iterable[Measured]) -> dict[str, float]:
    """Return the metrics of all subtasks of a vertex. The name of a metric begins with the number
    of its subtask."""
    return {
        f"{one.subtask}.{name}": value
        for one in subtasks
        for name, value in of_subtask(one).items()
    }


def watermarks(subtasks: Iterable[Measured]) -> list[dict[str, str]]:
    """Return the input watermark of each subtask that reports one (RE-42)."""
    return [
        {"id": f"{one.subtask}.{_WATERMARK}", "value": str(one.now.input_watermark)}
        for one in subtasks
        if one.now.input_watermark is not None
    ]


def of_job(job: JobDetails, now: float) -> dict[str, float | str]:
    """Return the metrics of a job; *now* is in seconds since the epoch."""
    running_since = job.status_timestamps.get(JobStatus.RUNNING.name, now)
    values: dict[str, float | str] = {
        "uptime": milliseconds(now - running_since) if job.status is JobStatus.RUNNING else 0,
        "numRestarts": job.restarts,
    }
    checkpoints = job.checkpoints
    if checkpoints is None:
        return values
    values |= checkpoints.flink_metrics()
    last = checkpoints.latest_completed
    if last is not None and last.path is not None:
        values["lastCheckpointExternalPath"] = last.path
    return values


def of_masters(cluster: ClusterNumbers, jobs: Iterable[JobOverview]) -> dict[str, float]:
    return {
        "numRegisteredTaskManagers": cluster.task_executors,
        "numRunningJobs": sum(not job.status.is_globally_terminal for job in jobs),
        "taskSlotsAvailable": cluster.slots_available,
        "taskSlotsTotal": cluster.slots_total,
    }
