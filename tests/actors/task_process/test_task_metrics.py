"""What Ray's metrics endpoint is told of the tasks of a process."""

from __future__ import annotations

from functools import partial

from flinkray.actors.shared.exported_metrics import TASK
from flinkray.actors.task_process.task_metrics import ShownAs, TaskMetrics
from flinkray.core.ids import JobVertexID
from flinkray.streaming.functions.metrics import MetricGroup


def _task(vertex: int, name: str = "Map", subtask: int = 0) -> ShownAs:
    return ShownAs(JobVertexID(bytes([vertex] * 16)), subtask, "flights", name)


def _group(**gauges: int) -> MetricGroup:
    group = MetricGroup()
    for name, value in gauges.items():
        group.gauge(name, partial(int, value))
    return group


def _values(metrics: TaskMetrics) -> dict[tuple[str, str], float]:
    found = list(metrics.samples())
    values = {(one.name.removeprefix(TASK), one.tags["vertex"]): one.value for one in found}
    assert len(values) == len(found), "a series is told once"
    return values


def test_vertices_of_one_name_are_one_series() -> None:
    """They share slots, and so processes; the one that began last was shown alone."""
    metrics = TaskMetrics(lambda: 10.0)
    times = {"busyTimeMs": 30, "idleTimeMs": 70, "backPressuredTimeMs": 0}
    metrics.begun(_task(1), _group(numRecordsIn=5, currentInputWatermark=9000, **times))
    metrics.begun(_task(2), _group(numRecordsIn=7, currentInputWatermark=8000, **times))
    metrics.begun(_task(3, "Sink"), _group(numRecordsIn=1))
    values = _values(metrics)
    assert values["num_records_in", "Map"] == 12
    assert values["num_records_in", "Sink"] == 1
    assert values["accumulate_busy_time_ms", "Map"] == 60
    assert values["current_input_watermark", "Map"] == 8000
    assert values["watermark_lag", "Map"] == 2000


def test_the_busiest_of_them_is_shown() -> None:
    metrics = TaskMetrics(lambda: 0.0)
    busy, idle = {1: 0, 2: 0}, {1: 0, 2: 0}
    for vertex in busy:
        group = MetricGroup()
        group.gauge("busyTimeMs", partial(busy.__getitem__, vertex))
        group.gauge("idleTimeMs", partial(idle.__getitem__, vertex))
        metrics.begun(_task(vertex), group)
    _values(metrics)
    busy.update({1: 90, 2: 20})
    idle.update({1: 10, 2: 80})
    assert _values(metrics)["busy_time_ms_per_second", "Map"] == 900


def test_a_later_attempt_takes_the_place_of_the_one_before() -> None:
    metrics = TaskMetrics(lambda: 0.0)
    first, second = _group(numRecordsIn=5), _group(numRecordsIn=2)
    metrics.begun(_task(1), first)
    metrics.begun(_task(1), second)
    metrics.ended(_task(1), first)
    assert _values(metrics) == {("num_records_in", "Map"): 2}
    metrics.ended(_task(1), second)
    assert _values(metrics) == {}
