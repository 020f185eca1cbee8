"""Metrics of a process's stream tasks for Ray's metrics endpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from flinkray.actors.shared.exported_metrics import (
    DESCRIPTIONS,
    TASK,
    exported_name,
    job_tags,
    samples_of,
)
from flinkray.core.error_text import summary_of
from flinkray.core.ids import JobID, JobVertexID
from flinkray.rpc import MetricSample
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.streaming.functions.metrics import Counter, Gauge, Meter, MetricGroup
from flinkray.streaming.records.elements import MAX_TIMESTAMP

log = logging.getLogger(__name__)

_TIMES = {
    "busyTimeMs": ("accumulateBusyTimeMs", "busyTimeMsPerSecond"),
    "idleTimeMs": ("accumulateIdleTimeMs", "idleTimeMsPerSecond"),
    "backPressuredTimeMs": ("accumulateBackPressuredTimeMs", "backPressuredTimeMsPerSecond"),
}
"""Name of the task's counter -> exported names of its total and of its share of the time."""
_INPUT = "currentInputWatermark"
_WATERMARKS = (_INPUT, "currentOutputWatermark")
"""Watermark metrics of tasks. The second belongs to tasks that read a source."""
IS_HELD = "isHeld"
"""Name of the metric that says whether a source task is held."""
_NO_WATERMARK = -(1 << 63)
_MERGED: dict[str, Callable[[tuple[float, float]], float]] = {
    exported_name(TASK, name): merge
    for merge, names in (
        (min, _WATERMARKS),
        (max, ("watermarkLag", "checkpointAlignmentTime", IS_HELD)),
        (max, (share for _, share in _TIMES.values())),
    )
    for name in names
}
"""Exported name -> how the values of tasks with the same labels are merged. Default: the sum."""
_USER_METRIC = "user_metric"


@dataclass(frozen=True, slots=True)
class ShownAs:
    """Identity and labels of a subtask in exported metrics.
    Vertices of a job with the same name have the same labels.
    """

    vertex_id: JobVertexID
    subtask: int
    job_id: JobID
    job: str = field(compare=False)
    vertex: str = field(compare=False)

    @property
    def tags(self) -> dict[str, str]:
        tags = job_tags(self.job, self.job_id)
        return {**tags, "vertex": self.vertex, "subtask": str(self.subtask)}


@dataclass
class _ShownTask:
    group: MetricGroup
    times: dict[str, float] = field(default_factory=dict)
    """Values of the time counters when the metrics were last read."""


class TaskMetrics:
    """Exports the metrics of the stream tasks that run in this process.
    Lives on the process's main thread; the values are counted by the tasks' threads.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """Create the exporter of metrics, without tasks. *now* returns seconds since the epoch."""
        self._now = now
        self._tasks: dict[ShownAs, _ShownTask] = {}

    def begun(self, task: ShownAs, group: MetricGroup) -> None:
        """Begin to export a task's metrics. A later attempt replaces the earlier one."""
        self._tasks[task] = _ShownTask(group)

    def ended(self, task: ShownAs, group: MetricGroup) -> None:
        """Stop exporting the metrics *group*, unless those of a later attempt have replaced it."""
        if task in self._tasks and self._tasks[task].group is group:
            del self._tasks[task]

    def samples(self) -> Iterator[MetricSample]:
        """Yield the metrics of all tasks that run now, as samples for Ray's endpoint."""
        shown: dict[tuple[str, ...], MetricSample] = {}
        for name, task in self._tasks.items():
            for sample in self._of_task(name.tags, task):
                series = sample.name, *sample.tags.values()
                shown[series] = _merged(shown.get(series), sample)
        yield from shown.values()

    def _of_task(self, tags: dict[str, str], task: _ShownTask) -> Iterator[MetricSample]:
        values: dict[str, float] = {}
        times: dict[str, float] = {}
        for name, metric in task.group.all().items():
            value = _value_of(name, metric)
            if value is None:
                continue
            if name in _TIMES:
                times[name] = value
            elif name in _WATERMARKS:
                values |= self._watermark(name, int(value))
            elif name in DESCRIPTIONS[TASK]:
                values[name] = value
            elif not name.startswith(("numBuffers", "buffers.")):
                yield from samples_of(TASK, {_USER_METRIC: value}, {**tags, "metric": name})
        yield from samples_of(TASK, {**values, **_shares(times, task.times)}, tags)
        task.times = times

    def _watermark(self, name: str, watermark: int) -> dict[str, float]:
        if watermark == _NO_WATERMARK:
            return {}
        if watermark >= MAX_TIMESTAMP:  # no record can be late any more; floats round the value up
            return {name: watermark}
        return {name: watermark, "watermarkLag": self._now() * 1000 - watermark}


def _merged(one: MetricSample | None, other: MetricSample) -> MetricSample:
    if one is None:
        return other
    merge = _MERGED.get(other.name, sum)
    return replace(other, value=merge((one.value, other.value)))


def _shares(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """Return each time counter with its total in milliseconds, and with its share of the time since
    *before* in milliseconds per second. The shares are left out if *before* is empty."""
    values = {_TIMES[name][0]: total for name, total in now.items()}
    elapsed = sum(now.values()) - sum(before.values())
    if before and elapsed > 0:
        for name, total in now.items():
            gained = max(0.0, total - before.get(name, 0.0))
            values[_TIMES[name][1]] = round(gained * 1000 / elapsed, 3)
    return values


def io_metrics_of(group: MetricGroup, *, reads: bool, writes: bool) -> IOMetrics | None:
    """Return the I/O metrics of a task. None if the task has not begun.
    *reads* says whether the task has inputs from other tasks, *writes* whether it has outputs to
    them.
    """
    metrics = group.all()
    if "busyTimeMs" not in metrics:
        return None

    def value(name: str) -> int:
        gauge = metrics.get(name)
        return gauge.get_value() if isinstance(gauge, Gauge) else 0

    return IOMetrics(
        value("numRecordsIn") if reads else None,
        value("numRecordsOut") if writes else None,
        value("numBytesIn") if reads else None,
        value("numBytesOut") if writes else None,
        value("busyTimeMs"),
        value("backPressuredTimeMs"),
        value("idleTimeMs"),
        _known(value(_INPUT)) if reads and _INPUT in metrics else None,
        value(IS_HELD) if IS_HELD in metrics else None,
    )


def _known(watermark: int) -> int | None:
    return None if watermark == _NO_WATERMARK else watermark


def _value_of(name: str, metric: object) -> float | None:
    if isinstance(metric, Gauge):
        read = metric.get_value
    elif isinstance(metric, Counter | Meter):
        read = metric.get_count
    else:
        # distributions have more than one value; the task writes them to its log at its end
        return None
    try:
        return float(read())  # users also count with NumPy numbers, which Ray refuses
    except BaseException as error:  # noqa: BLE001 - whatever the user's gauge or number raised
        log.debug("%s cannot be read: %s", name, summary_of(error))
        return None
