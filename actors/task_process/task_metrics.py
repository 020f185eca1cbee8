"""Figures of the stream tasks of a process, as Ray's metrics endpoint shows them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from flinkray.actors.shared.exported_metrics import (
    DESCRIPTIONS,
    TASK,
    exported_name,
    samples_of,
)
from flinkray.core.error_text import summary_of
from flinkray.core.ids import JobVertexID
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
"""What the task counts, and what its total and its share of the time are called."""
_INPUT = "currentInputWatermark"
_WATERMARKS = (_INPUT, "currentOutputWatermark")
"""Tasks that read a source have the second one."""
IS_HELD = "isHeld"
"""Of tasks that read a source, where others can hold it."""
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
"""How what is no total of several tasks becomes one figure."""
_USER_METRIC = "user_metric"


@dataclass(frozen=True, slots=True)
class ShownAs:
    """A subtask, and what it is called: vertices of one name, also of jobs of one name, are shown
    as one, since ids would be other ones in each run."""

    vertex_id: JobVertexID
    subtask: int
    job: str = field(compare=False)
    vertex: str = field(compare=False)

    @property
    def tags(self) -> dict[str, str]:
        return {"job": self.job, "vertex": self.vertex, "subtask": str(self.subtask)}


@dataclass
class _ShownTask:
    group: MetricGroup
    times: dict[str, float] = field(default_factory=dict)
    """When it was looked at last."""


class TaskMetrics:
    """Lives on the process's main thread; what it reads is counted by the tasks' threads."""

    def __init__(self, now: Callable[[], float]) -> None:
        """*now*: seconds since the epoch."""
        self._now = now
        self._tasks: dict[ShownAs, _ShownTask] = {}

    def begun(self, task: ShownAs, group: MetricGroup) -> None:
        """A task has begun; a later attempt takes the place of the one before."""
        self._tasks[task] = _ShownTask(group)

    def ended(self, task: ShownAs, group: MetricGroup) -> None:
        """That task is not shown any more."""
        if task in self._tasks and self._tasks[task].group is group:
            del self._tasks[task]

    def samples(self) -> Iterator[MetricSample]:
        """Of all tasks that run now."""
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
        if watermark >= MAX_TIMESTAMP:  # nothing is to come that could be late; floats round it up
            return {name: watermark}
        return {name: watermark, "watermarkLag": self._now() * 1000 - watermark}


def _merged(one: MetricSample | None, other: MetricSample) -> MetricSample:
    """Of two tasks that are shown as one."""
    if one is None:
        return other
    merge = _MERGED.get(other.name, sum)
    return replace(other, value=merge((one.value, other.value)))


def _shares(now: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    """Totals, and from the second look on how much of the time in between each was."""
    values = {_TIMES[name][0]: total for name, total in now.items()}
    elapsed = sum(now.values()) - sum(before.values())
    if before and elapsed > 0:
        for name, total in now.items():
            gained = max(0.0, total - before.get(name, 0.0))
            values[_TIMES[name][1]] = round(gained * 1000 / elapsed, 3)
    return values


def io_metrics_of(group: MetricGroup, *, reads: bool, writes: bool) -> IOMetrics | None:
    """The totals of a task that reads other tasks, or writes to some; None: it has not begun."""
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
    """None: it has none."""
    if isinstance(metric, Gauge):
        read = metric.get_value
    elif isinstance(metric, Counter | Meter):
        read = metric.get_count
    else:
        return None  # distributions have more than one value; the task's log has them at its end
    try:
        return float(read())  # users count with numbers of NumPy, too, which Ray refuses
    except BaseException as error:  # noqa: BLE001 - whatever the user's gauge or number raised
        log.debug("%s cannot be read: %s", name, summary_of(error))
        return None
