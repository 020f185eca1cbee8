"""Counts and latencies of the calls of each gateway method, on the calling and on the called side.

Recording is cheap: two additions and an index, the number of bits of the latency in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.core.message import message

BUCKETS = 48
"""Number of buckets: below 1 us, 2 us, 4 us and so on; the last bucket ends after four years."""


@message
class LatencyHistogram:
    """Latencies in buckets, each twice as wide as the one before."""

    counts: tuple[int, ...]
    """Calls per bucket: 0 for latencies below 1 microsecond, i for those from 2**(i-1) to 2**i."""
    seconds: float
    """The sum of all latencies, in seconds."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    @staticmethod
    def upper_bounds() -> tuple[float, ...]:
        """Return the greatest latency of each bucket, in seconds."""
        return tuple(2**index / 1e6 for index in range(BUCKETS))

    def quantile(self, portion: float) -> float:
        """Return the latency in seconds below which the fraction *portion* (0 to 1) of calls lies.

        The result is the upper bound of a bucket, so at most twice the real value. It is 0.0 if no
        latency was recorded.
        """
        wanted = portion * self.count
        seen = 0
        for count, bound in zip(self.counts, self.upper_bounds(), strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0


@message
class MethodMetrics:
    """The figures of one gateway method since the service began."""

    calls: int
    """Calling side: asks and tells that were sent or refused. Called side: calls that arrived."""
    failures: int
    """How many calls failed.

    Calling side: asks that ended with an error or timed out, but not asks that the caller gave up,
    and tells that could not be sent. Called side: refused calls, and handlers that ended with an
    error, were cancelled or never began.
    """
    latency: LatencyHistogram
    """How long calls took.

    Calling side: asks that were answered, with a result or an error, until the answer. Called side:
    all calls that were not refused, from arrival to the end of the handler.
    """


@message
class RpcMetrics:
    """A snapshot of the call metrics of one process; keys are ``Gateway.method``."""

    called: dict[str, MethodMetrics] = field(default_factory=dict)
    """Calls that this process made."""
    handled: dict[str, MethodMetrics] = field(default_factory=dict)
    """Calls that the endpoints of this process handled."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The value of one metric other than the call metrics, to be exported together with them."""

    name: str
    """The name as Prometheus shows it, without prefix and suffix."""
    description: str
    value: float
    tags: dict[str, str]
    """The tags; all samples of one name have the same tag names."""


class MethodRecorder:
    """Counts the calls, failures and latencies of one method, on one side."""

    __slots__ = ("buckets", "calls", "failures", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.failures = 0
        self.buckets = [0] * BUCKETS
        """Calls per bucket; a latency belongs into bucket ``int(seconds * 1e6).bit_length()``."""
        self.seconds = 0.0

    def snapshot(self) -> MethodMetrics:
        histogram = LatencyHistogram(tuple(self.buckets), self.seconds)
        return MethodMetrics(self.calls, self.failures, histogram)


class RpcRecorder:
    """Counts the calls of one service: one recorder for each method and side."""

    def __init__(self) -> None:
        self._called: dict[str, MethodRecorder] = {}
        self._handled: dict[str, MethodRecorder] = {}

    def called(self, method: str) -> MethodRecorder:
        """Return the recorder for calls that this service makes; *method* is the full name."""
        return self._called.setdefault(method, MethodRecorder())

    def handled(self, method: str) -> MethodRecorder:
        """Return the recorder for calls that this service handles; *method* is the full name."""
        return self._handled.setdefault(method, MethodRecorder())

    def snapshot(self) -> RpcMetrics:
        """Return the figures of all methods that were called at least once."""
        return RpcMetrics(_snapshots(self._called), _snapshots(self._handled))


def _snapshots(recorders: dict[str, MethodRecorder]) -> dict[str, MethodMetrics]:
    return {name: one.snapshot() for name, one in sorted(recorders.items()) if one.calls}
