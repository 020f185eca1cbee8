"""Groups of metrics, as functions see them."""

from __future__ import annotations

from typing import Any

import pytest

from flinkray.streaming.functions.metrics import Counter, Distribution, Gauge, Meter, MetricGroup


def test_full_name_of_a_metric_contains_the_names_of_its_groups() -> None:
    group = MetricGroup()
    group.counter("records").inc(2)
    inner = group.add_group("Map.0").add_group("table", "flights")
    inner.gauge("depth", lambda: 7)
    found = group.all()
    assert list(found) == ["records", "Map.0.table.flights.depth"]
    assert found["records"].get_count() == 2
    assert found["Map.0.table.flights.depth"].get_value() == 7


def test_metric_registered_twice_under_a_name_is_the_same_object() -> None:
    group = MetricGroup()
    assert group.counter("records") is group.counter("records")
    assert group.meter("rate") is group.meter("rate")
    assert group.distribution("size") is group.distribution("size")
    assert group.add_group("a") is group.add_group("a")
    assert group.add_group("a", "b") is not group.add_group("a")


def test_metric_with_the_name_of_another_kind_of_metric_counts_but_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The function got the other metric, and failed at its first record."""
    group = MetricGroup().add_group("Map.0")
    group.gauge("numRecordsIn", lambda: 7)
    counter = group.counter("numRecordsIn")
    counter.inc()
    assert type(counter) is Counter
    assert type(group.meter("numRecordsIn")) is Meter
    assert type(group.distribution("numRecordsIn")) is Distribution
    counter = group.counter("errors")
    group.gauge("errors", lambda: 7)
    shown = group.all()
    assert type(shown["Map.0.numRecordsIn"]) is Gauge
    assert shown["Map.0.errors"] is counter
    assert caplog.messages == [
        "the counter Map.0.numRecordsIn is not shown: there is a gauge of that name",
        "the meter Map.0.numRecordsIn is not shown: there is a gauge of that name",
        "the distribution Map.0.numRecordsIn is not shown: there is a gauge of that name",
        "the gauge Map.0.errors is not shown: there is a counter of that name",
    ]


def test_metric_name_that_is_no_str_is_refused_at_registration() -> None:
    """Later, any reader of the metrics of the task failed."""
    group = MetricGroup()
    odd: Any = 5
    for register in (group.counter, group.meter, group.distribution, group.add_group):
        with pytest.raises(TypeError, match="the name of a metric or of a group is a str, not 5"):
            register(odd)
    with pytest.raises(TypeError, match="not 5"):
        group.add_group("table", odd)
    with pytest.raises(TypeError, match="not 5"):
        group.gauge(odd, lambda: 1)
    assert group.all() == {}
