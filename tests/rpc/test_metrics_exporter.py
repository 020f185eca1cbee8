"""What is kept between two exports of figures."""

from __future__ import annotations

import pytest
from ray.util.metrics import Counter

from flinkray.rpc import MetricSample
from flinkray.rpc.calls.metrics import RpcMetrics
from flinkray.rpc.ray.metrics import MetricsExporter
from tests.held_entries import held_entries


def of_task(number: int, value: float) -> MetricSample:
    tags = {"job": f"job {number}"}
    return MetricSample("flinkray_task_records_in", "Records.", value, tags, is_total=True)


def test_exporter_holds_no_more_after_many_tasks_than_after_one() -> None:
    """It kept the total of every task that had ever run in its process."""
    exporter = MetricsExporter("process")
    sizes = []
    for number in range(50):
        exporter.export(RpcMetrics(), 0, 0, [of_task(number, 7.0)])
        sizes.append(held_entries(exporter))
    assert len(set(sizes)) == 1


def test_total_of_a_task_is_exported_by_what_it_has_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    gained: list[float] = []
    monkeypatch.setattr(Counter, "inc", lambda _self, value, _tags: gained.append(value))
    exporter = MetricsExporter("process")
    for value in (5.0, 5.0, 8.0, 2.0):  # in the end another attempt of the task
        exporter.export(RpcMetrics(), 0, 0, [of_task(1, value), of_task(2, 1.0)])
    assert gained == [5.0, 1.0, 3.0, 2.0]
    exporter.export(RpcMetrics(), 0, 0)
    exporter.export(RpcMetrics(), 0, 0, [of_task(1, 3.0)])
    assert gained[4:] == [3.0], "one that has begun after the last one had ended"
