"""What Ray's metrics endpoint is told of the tasks of a process."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flinkray.actors.shared.exported_metrics import TASK
from flinkray.actors.task_process.task_metrics import ShownAs, TaskMetrics, io_metrics_of
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.shared.io_metrics import total
from flinkray.streaming.functions.metrics import MetricGroup
from flinkray.streaming.records.elements import MAX_TIMESTAMP


def _task(vertex: int, name: str = "Map", subtask: int = 0) -> ShownAs:
    return ShownAs(JobVertexID(bytes([vertex] * 16)), subtask, JobID(bytes(16)), "flights", name)


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


def test_vertices_of_equal_name_share_one_metric_series() -> None:
    """Vertices share slots, and so processes. Otherwise only the vertex that began last would be
    shown."""
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


def test_busy_time_of_vertices_with_equal_names_is_that_of_the_busiest() -> None:
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


def test_is_held_metric_is_1_for_a_source_that_is_paused_until_spark_catches_up() -> None:
    metrics = TaskMetrics(lambda: 0.0)
    metrics.begun(_task(1, "Source"), _group(isHeld=1))
    metrics.begun(_task(2, "Source"), _group(isHeld=0))
    metrics.begun(_task(3, "Other source"), _group(isHeld=0))
    assert _values(metrics) == {("is_held", "Source"): 1, ("is_held", "Other source"): 0}


def test_io_metrics_count_the_sources_that_wait_for_spark() -> None:
    times = {"busyTimeMs": 30, "idleTimeMs": 70, "backPressuredTimeMs": 0}
    held = io_metrics_of(_group(isHeld=1, **times), reads=False, writes=True)
    free = io_metrics_of(_group(isHeld=0, **times), reads=False, writes=True)
    other = io_metrics_of(_group(**times), reads=False, writes=True)
    assert held is not None
    assert free is not None
    assert other is not None
    assert (held.held, free.held, other.held) == (1, 0, None)
    assert total([held, free, held, other]) == replace(held, busy_ms=120, idle_ms=280, held=2)


def test_metrics_of_a_later_attempt_replace_the_earlier_ones() -> None:
    metrics = TaskMetrics(lambda: 0.0)
    first, second = _group(numRecordsIn=5), _group(numRecordsIn=2)
    metrics.begun(_task(1), first)
    metrics.begun(_task(1), second)
    metrics.ended(_task(1), first)
    assert _values(metrics) == {("num_records_in", "Map"): 2}
    metrics.ended(_task(1), second)
    assert _values(metrics) == {}


def test_task_that_has_read_all_has_no_watermark_lag() -> None:
    """The lag behind the last watermark would be a huge negative number."""
    metrics = TaskMetrics(lambda: 10.0)
    metrics.begun(_task(1), _group(currentInputWatermark=MAX_TIMESTAMP))
    metrics.begun(_task(2, "Source"), _group(currentOutputWatermark=9000))
    metrics.begun(_task(3, "Sink"), _group(currentInputWatermark=-(1 << 63)))
    assert _values(metrics) == {
        ("current_input_watermark", "Map"): float(MAX_TIMESTAMP),
        ("current_output_watermark", "Source"): 9000,
        ("watermark_lag", "Source"): 1000,
    }


class _NoNumber:
    def __radd__(self, other: int) -> _NoNumber:
        return self


def test_user_counter_with_an_invalid_number_is_left_out_and_all_others_are_exported() -> None:
    """Ray takes Python's own numbers and raises at others. A NumPy number in one counter must not
    stop all metrics of the process."""
    group = MetricGroup()
    group.counter("of_numpy").inc(np.int64(3))
    group.meter("rate").mark_event(np.int32(4))
    group.counter("too_large").inc(10**400)
    odd: Any = _NoNumber()
    group.counter("odd").inc(odd)
    metrics = TaskMetrics(lambda: 0.0)
    metrics.begun(_task(1), group)
    found = {one.tags["metric"]: one.value for one in metrics.samples()}
    assert found == {"of_numpy": 3, "rate": 4}
    assert {type(value) for value in found.values()} == {float}


def test_busy_and_idle_time_per_second_cover_the_time_since_the_last_read() -> None:
    """The first read shows no shares, and no share is below zero."""
    times = {"busyTimeMs": 30, "idleTimeMs": 70}
    group = MetricGroup()
    for name in times:
        group.gauge(name, partial(times.__getitem__, name))
    group.gauge("numBuffersOut", lambda: 7)
    metrics = TaskMetrics(lambda: 0.0)
    metrics.begun(_task(1), group)
    totals = {"accumulate_busy_time_ms", "accumulate_idle_time_ms"}
    assert {name for name, _ in _values(metrics)} == totals
    times.update(busyTimeMs=20, idleTimeMs=180)
    values = _values(metrics)
    assert values["busy_time_ms_per_second", "Map"] == 0
    assert values["idle_time_ms_per_second", "Map"] == 1100


def test_watermark_is_reported_only_by_reading_tasks_that_have_one() -> None:
    times = {"busyTimeMs": 30, "idleTimeMs": 70, "backPressuredTimeMs": 0}
    known = _group(currentInputWatermark=9000, **times)
    unknown = _group(currentInputWatermark=-(1 << 63), **times)
    told = [
        io_metrics_of(known, reads=True, writes=True),
        io_metrics_of(known, reads=False, writes=True),
        io_metrics_of(unknown, reads=True, writes=True),
    ]
    assert [one.input_watermark for one in told if one is not None] == [9000, None, None]
