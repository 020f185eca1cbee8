"""Figures of a service's calls, for Ray's metrics endpoint (Prometheus) and its dashboards.

They are brought there every few seconds, from what the service has counted meanwhile; a call itself
does nothing for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ray.util.metrics import Counter, Gauge

from flinkray.rpc.calls.metrics import (
    BUCKETS,
    LatencyHistogram,
    MethodMetrics,
    MetricSample,
    RpcMetrics,
)

QUANTILES = (0.5, 0.99)

NO_VALUE = float("nan")
"""Of gauges of what is gone: Ray shows a series, with its last value, until it is told this."""

_TAGS = ("process", "method", "side")
_NOTHING = MethodMetrics(0, 0, LatencyHistogram((0,) * BUCKETS, 0.0))


class MetricsExporter:
    """Of one service.  ``export`` is to be called by one thread at a time.

    Ray puts ``ray_`` before the names, and ``_total`` behind those of counters.
    """

    def __init__(self, process_name: str) -> None:
        self._process = process_name
        self._last = RpcMetrics()
        self._last_refused = 0
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._totals: dict[tuple[str, ...], float] = {}
        """Of samples, what was exported last."""
        self._shown: dict[tuple[str, ...], dict[str, str]] = {}
        """Of samples that are no totals, the series that have a value -> their tags."""
        self._calls = Counter("flinkray_rpc_calls", "Calls of gateway methods.", _TAGS)
        self._failures = Counter("flinkray_rpc_failures", "Calls that failed.", _TAGS)
        self._latency = Gauge(
            "flinkray_rpc_latency_seconds",
            "Latency of the calls since the last export, to a factor of two: on the calling side "
            "until the answer, on the called side from arrival to the handler's end.",
            (*_TAGS, "quantile"),
        )
        self._refused = Counter(
            "flinkray_rpc_refused_frames", "Frames and peers that were refused.", ("process",)
        )
        self._connections = Gauge(
            "flinkray_rpc_connections", "Connections to other processes.", ("process",)
        )

    def export(
        self,
        metrics: RpcMetrics,
        refused_frames: int,
        connections: int,
        samples: Sequence[MetricSample] = (),
    ) -> None:
        """All are totals of now."""
        shown, self._shown = self._shown, {}
        totals, self._totals = self._totals, {}
        for sample in samples:
            self._export_sample(sample, totals)
        for series in shown.keys() - self._shown.keys():
            self._gauges[series[0]].set(NO_VALUE, shown[series])
        for tags, now, before in self._pairs(metrics):
            if now.calls > before.calls:
                self._calls.inc(now.calls - before.calls, tags)
            if now.failures > before.failures:
                self._failures.inc(now.failures - before.failures, tags)
            latency = since(now.latency, before.latency)
            if latency.count:
                for quantile in QUANTILES:
                    self._latency.set(
                        latency.quantile(quantile), tags | {"quantile": f"{quantile:g}"}
                    )
        self._last = metrics
        if refused_frames > self._last_refused:
            self._refused.inc(refused_frames - self._last_refused, {"process": self._process})
        self._last_refused = refused_frames
        self._connections.set(connections, {"process": self._process})

    def _export_sample(self, sample: MetricSample, totals: dict[tuple[str, ...], float]) -> None:
        """*totals*: what was exported before; what has no sample any more is gone for good."""
        tags = {"process": self._process, **sample.tags}
        names = tuple(tags)
        if not sample.is_total:
            gauge = self._gauges.get(sample.name)
            if gauge is None:
                gauge = self._gauges[sample.name] = Gauge(sample.name, sample.description, names)
            gauge.set(sample.value, tags)
            series = (sample.name, *tags.values())
            self._shown[series] = tags
            return
        counter = self._counters.get(sample.name)
        if counter is None:
            counter = self._counters[sample.name] = Counter(sample.name, sample.description, names)
        series = sample.name, *tags.values()
        before = totals.get(series, 0.0)
        gained = sample.value - before if sample.value >= before else sample.value  # begun anew
        self._totals[series] = sample.value
        if gained > 0:
            counter.inc(gained, tags)

    def _pairs(
        self, metrics: RpcMetrics
    ) -> Iterator[tuple[dict[str, str], MethodMetrics, MethodMetrics]]:
        for side, current, last in (
            ("calling", metrics.called, self._last.called),
            ("called", metrics.handled, self._last.handled),
        ):
            for method, now in current.items():
                tags = {"process": self._process, "method": method, "side": side}
                yield tags, now, last.get(method, _NOTHING)


def since(now: LatencyHistogram, before: LatencyHistogram) -> LatencyHistogram:
    """What has come to a histogram since it was *before*."""
    counts = tuple(one - other for one, other in zip(now.counts, before.counts, strict=True))
    return LatencyHistogram(counts, now.seconds - before.seconds)
