"""What is kept between two exports of figures."""

from __future__ import annotations

import math

import pytest
from ray.util.metrics import Gauge

from flinkray.rpc import MetricSample
from flinkray.rpc.calls.metrics import BUCKETS, LatencyHistogram, MethodMetrics, RpcMetrics
from flinkray.rpc.ray.metrics import MetricsExporter
from tests.held_entries import held_entries


def of_task(number: int, value: float) -> MetricSample:
    tags = {"job": f"job {number}"}
    return MetricSample("flinkray_taskmanager_job_task_numRecordsIn", "Records.", value, tags)


def test_metrics_exporter_keeps_no_data_of_tasks_that_have_ended() -> None:
    """The number of tasks of a process has no limit."""
    exporter = MetricsExporter("flinkray-default", "process")
    sizes = []
    for number in range(50):
        exporter.export(RpcMetrics(), 0, 0, [of_task(number, 7.0)])
        sizes.append(held_entries(exporter))
    assert len(set(sizes)) == 1


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, dict[str, str]]]:
    """What Ray is told: the name, the value, the tags."""
    told: list[tuple[str, float, dict[str, str]]] = []
    monkeypatch.setattr(
        Gauge, "set", lambda self, value, tags: told.append((self.info["name"], value, tags))
    )
    return told


def test_metric_of_an_ended_task_is_exported_once_as_nan_and_then_dropped(
    told: list[tuple[str, float, dict[str, str]]],
) -> None:
    exporter = MetricsExporter("flinkray-default", "process")
    exporter.export(RpcMetrics(), 0, 0, [of_task(1, 5.0), of_task(2, 1.0)])
    told.clear()
    exporter.export(RpcMetrics(), 0, 0, [of_task(2, 2.0)])
    exporter.export(RpcMetrics(), 0, 0, [of_task(2, 3.0)])
    of_tasks = {
        job: [value for _, value, tags in told if tags.get("job") == job]
        for job in ("job 1", "job 2")
    }
    (gone,) = of_tasks["job 1"]
    assert math.isnan(gone), "told once"
    assert of_tasks["job 2"] == [2.0, 3.0]


def test_each_exported_metric_has_labels_for_its_cluster_and_process(
    told: list[tuple[str, float, dict[str, str]]],
) -> None:
    """Two clusters on one Ray have processes with equal names."""
    histogram = LatencyHistogram((0, 1, *[0] * (BUCKETS - 2)), 1e-6)
    calls = RpcMetrics({"EchoGateway.echo": MethodMetrics(1, 1, histogram)})
    exporter = MetricsExporter("flinkray-blue", "Dispatcher")
    exporter.export(calls, 0, 0, [of_task(1, 5.0)])
    assert len({name for name, _, _ in told}) == 6
    assert {(tags["cluster_id"], tags["process"]) for _, _, tags in told} == {
        ("blue", "Dispatcher")
    }


def test_latency_of_a_method_without_new_calls_is_not_exported_again(
    told: list[tuple[str, float, dict[str, str]]],
) -> None:
    histogram = LatencyHistogram((0, 1, *[0] * (BUCKETS - 2)), 1e-6)
    calls = RpcMetrics({"EchoGateway.echo": MethodMetrics(1, 0, histogram)})
    exporter = MetricsExporter("flinkray-blue", "Dispatcher")
    for _ in range(3):
        exporter.export(calls, 0, 0)
    assert [value for name, value, _ in told if "latency" in name] == [2e-6, 2e-6]


def test_label_values_with_other_characters_than_ascii_are_escaped(
    told: list[tuple[str, float, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises an error for other labels, and then exports nothing of the process."""
    exporter = MetricsExporter("flinkray-default", "process")
    tags = {"job": "Flüge \udc80", "vertex": "Map"}
    samples = [MetricSample("flinkray_depth_of_names", "Of a queue.", 7.0, tags)]
    exporter.export(RpcMetrics(), 0, 0, samples)
    (shown,) = (of for name, _, of in told if name == "flinkray_depth_of_names")
    assert (shown["job"], shown["vertex"]) == ("Fl\\xfcge \\udc80", "Map")
    monkeypatch.undo()
    exporter.export(RpcMetrics(), 0, 0, samples)  # by Ray's own gauge


def test_ended_exporter_tells_nan_for_all_metrics_and_then_nothing(
    told: list[tuple[str, float, dict[str, str]]],
) -> None:
    exporter = MetricsExporter("flinkray-default", "process")
    exporter.export(RpcMetrics(), 1, 2, [of_task(1, 5.0)])
    shown = {(name, tuple(tags.items())) for name, _, tags in told}
    told.clear()
    exporter.end()
    assert {(name, tuple(tags.items())) for name, _, tags in told} == shown
    assert all(math.isnan(value) for _, value, _ in told)
    told.clear()
    exporter.export(RpcMetrics(), 1, 2, [of_task(1, 6.0)])
    assert told == []
