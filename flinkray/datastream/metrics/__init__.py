"""Metrics that user functions register (PyFlink's ``pyflink.metrics``)."""

from __future__ import annotations

from flinkray.datastream.metrics.metricbase import (
    Counter,
    Distribution,
    Gauge,
    Meter,
    Metric,
    MetricGroup,
)

__all__ = ["Counter", "Distribution", "Gauge", "Meter", "Metric", "MetricGroup"]
