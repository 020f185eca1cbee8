"""Exports the call metrics of a service to Ray's metrics endpoint (Prometheus) and dashboards.

The metrics are exported every few seconds, from the service's own counters; a call itself does
nothing for the export.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import chain

from ray.util.metrics import Gauge

from flinkray.rpc.calls.metrics import (
    BUCKETS,
    LatencyHistogram,
    MethodMetrics,
    MetricSample,
    RpcMetrics,
)

QUANTILES = (0.5, 0.99)

NO_VALUE = float("nan")
"""The value of gauges whose subject is gone: otherwise Ray shows their last value forever."""

_NAMESPACE_PREFIX = "flinkray-"
_NOTHING = MethodMetrics(0, 0, LatencyHistogram((0,) * BUCKETS, 0.0))

_CALLS = "flinkray_rpc_calls_total", "Calls of gateway methods."
_FAILURES = "flinkray_rpc_failures_total", "Calls that failed."
_LATENCY = (
    "flinkray_rpc_latency_seconds",
    "Latency of the last calls that were exported, to a factor of two: on the calling side until "
    "the answer, on the called side from arrival to the handler's end.",
)
_REFUSED = "flinkray_rpc_refused_frames_total", "Frames and peers that were refused."
_CONNECTIONS = "flinkray_rpc_connections", "Connections to other processes."


class MetricsExporter:
    """Exports the metrics of one service.

    Ray puts ``ray_`` before the names. All metrics are gauges, even totals: Ray shows a counter for
    as long as the node lives, even if the process ended long ago.
    """

    def __init__(self, namespace: str, process_name: str) -> None:
        self._tags = {
            "cluster_id": namespace.removeprefix(_NAMESPACE_PREFIX),
            "process": process_name,
        }
        self._last = RpcMetrics()
        self._gauges: dict[str, Gauge] = {}
        self._shown: dict[tuple[str, ...], dict[str, str]] = {}
        self._lock = threading.Lock()
        self._has_ended = False

    def end(self) -> None:
        """Give all metrics NO_VALUE, because the service has ended and its process may go on."""
        with self._lock:
            self._has_ended = True
            for (name, *_), tags in self._shown.items():
                self._gauges[name].set(NO_VALUE, tags)

    def export(
        self,
        metrics: RpcMetrics,
        refused_frames: int,
        connections: int,
        samples: Iterable[MetricSample] = (),
    ) -> None:
        """Export the current values of all metrics of the service; those that are gone get
        NO_VALUE."""
        with self._lock:
            if not self._has_ended:
                self._export(metrics, refused_frames, connections, samples)

    def _export(
        self,
        metrics: RpcMetrics,
        refused_frames: int,
        connections: int,
        samples: Iterable[MetricSample],
    ) -> None:
        shown: dict[tuple[str, ...], dict[str, str]] = {}
        own = (
            MetricSample(*_REFUSED, refused_frames, {}),
            MetricSample(*_CONNECTIONS, connections, {}),
        )
        for sample in chain(samples, self._of_calls(metrics), own):
            tags = {name: _label(of) for name, of in {**self._tags, **sample.tags}.items()}
            self._gauge(sample, tags).set(sample.value, tags)
            series = sample.name, *tags.values()
            shown[series] = tags
        self._last = metrics
        for series, tags in self._shown.items():
            if series not in shown:
                if series[0] == _LATENCY[0]:
                    shown[series] = tags  # the latency of the last calls stays
                else:
                    self._gauges[series[0]].set(NO_VALUE, tags)
        self._shown = shown

    def _gauge(self, sample: MetricSample, tags: dict[str, str]) -> Gauge:
        gauge = self._gauges.get(sample.name)
        if gauge is None:
            gauge = Gauge(sample.name, sample.description, tuple(tags))
            self._gauges[sample.name] = gauge
        return gauge

    def _of_calls(self, metrics: RpcMetrics) -> Iterator[MetricSample]:
        for side, current, last in (
            ("calling", metrics.called, self._last.called),
            ("called", metrics.handled, self._last.handled),
        ):
            for method, now in current.items():
                tags = {"method": method, "side": side}
                yield MetricSample(*_CALLS, now.calls, tags)
                if now.failures:
                    yield MetricSample(*_FAILURES, now.failures, tags)
                latency = since(now.latency, last.get(method, _NOTHING).latency)
                if latency.count:
                    for quantile in QUANTILES:
                        of_quantile = {**tags, "quantile": f"{quantile:g}"}
                        yield MetricSample(*_LATENCY, latency.quantile(quantile), of_quantile)


def _label(text: str) -> str:
    """Return *text* as a Ray label: Ray raises at non-ASCII labels, so those are escaped."""
    return text if text.isascii() else text.encode("ascii", "backslashreplace").decode()


def since(now: LatencyHistogram, before: LatencyHistogram) -> LatencyHistogram:
    """Return the latencies that were recorded between two states of one histogram."""
    counts = tuple(one - other for one, other in zip(now.counts, before.counts, strict=True))
    return LatencyHistogram(counts, now.seconds - before.seconds)
