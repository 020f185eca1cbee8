"""Figures of the stream tasks of a process, as Ray's metrics endpoint shows them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from flinkray.core.error_text import summary_of
from flinkray.rpc import MetricSample
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.streaming.functions.metrics import Counter, Gauge, Meter, MetricGroup

log = logging.getLogger(__name__)

_TOTALS = {
    "numRecordsIn": ("flinkray_task_records_in", "Records that the task has read.", 1.0),
    "numRecordsOut": ("flinkray_task_records_out", "Records sent to other tasks.", 1.0),
    "numBytesIn": ("flinkray_task_bytes_in", "Bytes that the task has read.", 1.0),
    "numBytesOut": ("flinkray_task_bytes_out", "Bytes sent to other tasks.", 1.0),
    "busyTimeMs": ("flinkray_task_busy_seconds", "Time in which the task worked.", 1e-3),
    "idleTimeMs": ("flinkray_task_idle_seconds", "Time without anything to do.", 1e-3),
    "backPressuredTimeMs": (
        "flinkray_task_back_pressured_seconds",
        "Time for which consumers of the task had no room.",
        1e-3,
    ),
}
_INPUT = "currentInputWatermark"
_WATERMARKS = (_INPUT, "currentOutputWatermark")
"""Tasks that read a source have the second one."""
_NO_WATERMARK = -(1 << 63)


class TaskMetrics:
    """Lives on the process's main thread; what it reads is counted by the tasks' threads."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], MetricGroup] = {}

    def begun(self, job: str, vertex: str, subtask: int, group: MetricGroup) -> None:
        """A task has begun; a later attempt takes the place of the one before."""
        self._groups[job, vertex, str(subtask)] = group

    def ended(self, job: str, vertex: str, subtask: int, group: MetricGroup) -> None:
        """That task is not shown any more, but for its totals."""
        key = job, vertex, str(subtask)
        if self._groups.get(key) is group:
            del self._groups[key]

    def samples(self) -> Iterator[MetricSample]:
        """Of all tasks that run now."""
        for (job, vertex, subtask), group in self._groups.items():
            tags = {"job": job, "vertex": vertex, "subtask": subtask}
            for name, metric in group.all().items():
                yield from _samples(name, metric, tags)


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
    )


def _known(watermark: int) -> int | None:
    return None if watermark == _NO_WATERMARK else watermark


def _samples(name: str, metric: object, tags: dict[str, str]) -> Iterator[MetricSample]:
    value: float
    if isinstance(metric, Gauge):
        try:
            value = float(metric.get_value())
        except BaseException as error:  # noqa: BLE001 - whatever the user's gauge raised
            log.debug("%s cannot be read: %s", name, summary_of(error))
            return
    elif isinstance(metric, Counter | Meter):
        value = metric.get_count()
    else:
        return  # distributions have more than one value; the task's log has them when it ends
    if name in _TOTALS:
        shown, description, factor = _TOTALS[name]
        yield MetricSample(shown, description, value * factor, tags, is_total=True)
    elif name in _WATERMARKS:
        if value != _NO_WATERMARK:
            text = "The task's event time, in milliseconds."
            yield MetricSample("flinkray_task_watermark", text, value, tags)
    elif not name.startswith(("numBuffers", "buffers.")):
        text = "Metrics that functions have registered."
        yield MetricSample("flinkray_task_user_metric", text, value, {**tags, "metric": name})
