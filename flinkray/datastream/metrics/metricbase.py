"""Exports the kinds of metrics, like PyFlink's ``pyflink.metrics.metricbase``."""

from __future__ import annotations

from flinkray.streaming.functions.metrics import (
    Counter,
    Distribution,
    Gauge,
    Meter,
    Metric,
    MetricGroup,
)

__all__ = ["Counter", "Distribution", "Gauge", "Meter", "Metric", "MetricGroup"]
