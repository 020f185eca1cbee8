"""What calls of each gateway method have come to, on the calling and on the called side.

Recording is part of every call and therefore cheap: two additions and an index, which is the number
of bits of the latency in microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flinkray.core.message import message

BUCKETS = 48
"""Latencies below 1 us, 2 us, 4 us and so on; the last one ends after four years."""


@message
class LatencyHistogram:
    """Latencies in buckets, each twice as wide as the one before."""

    counts: tuple[int, ...]
    """The first is of latencies below 1 microsecond, number i of those from 2**(i-1) to 2**i."""
    seconds: float
    """Of all together."""

    @property
    def count(self) -> int:
        return sum(self.counts)

    @staticmethod
    def upper_bounds() -> tuple[float, ...]:
        """Of the buckets, in seconds."""
        return tuple(2**index / 1e6 for index in range(BUCKETS))

    def quantile(self, portion: float) -> float:
        """Seconds below which *portion* (0 to 1) of the latencies are: the upper bound of the
        bucket, so at most twice the real one; 0.0 when there are none."""
        wanted = portion * self.count
        seen = 0
        for count, bound in zip(self.counts, self.upper_bounds(), strict=True):
            seen += count
            if count and seen >= wanted:
                return bound
        return 0.0


@message
class MethodMetrics:
    """Of one gateway method, since the service began."""

    calls: int
    """On the calling side: asks and tells that were sent or refused to be.  On the called side:
    those that came."""
    failures: int
    """On the calling side: asks that ended with an error, time-outs too, but not those whose caller
    gave them up; tells that could not be sent.  On the called side: refused calls, and handlers
    that ended with an error, were cancelled or never begun."""
    latency: LatencyHistogram
    """On the calling side: of asks that were answered, be it by an error, until the answer.  On the
    called side: of all calls that were not refused, from arrival to the end of the handler."""


@message
class RpcMetrics:
    """A snapshot; keys are ``Gateway.method``."""

    called: dict[str, MethodMetrics] = field(default_factory=dict)
    """What this process has called."""
    handled: dict[str, MethodMetrics] = field(default_factory=dict)
    """What its endpoints have handled."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """A figure of something else than calls, which is exported with theirs."""

    name: str
    """As Prometheus has it, without prefix and suffix."""
    description: str
    value: float
    tags: dict[str, str]
    """Of the same names in all samples of a name."""


class MethodRecorder:
    """Counts the calls of one method on one side."""

    __slots__ = ("buckets", "calls", "failures", "seconds")

    def __init__(self) -> None:
        self.calls = 0
        self.failures = 0
        self.buckets = [0] * BUCKETS
        """A latency belongs into number ``int(seconds * 1e6).bit_length()``."""
        self.seconds = 0.0

    def snapshot(self) -> MethodMetrics:
        histogram = LatencyHistogram(tuple(self.buckets), self.seconds)
        return MethodMetrics(self.calls, self.failures, histogram)


class RpcRecorder:
    """The recorders of one service."""

    def __init__(self) -> None:
        self._called: dict[str, MethodRecorder] = {}
        self._handled: dict[str, MethodRecorder] = {}

    def called(self, method: str) -> MethodRecorder:
        """For calls from here; *method* is the full name."""
        return self._called.setdefault(method, MethodRecorder())

    def handled(self, method: str) -> MethodRecorder:
        """For handlers here."""
        return self._handled.setdefault(method, MethodRecorder())

    def snapshot(self) -> RpcMetrics:
        """All methods that were called."""
        return RpcMetrics(_snapshots(self._called), _snapshots(self._handled))


def _snapshots(recorders: dict[str, MethodRecorder]) -> dict[str, MethodMetrics]:
    return {name: one.snapshot() for name, one in sorted(recorders.items()) if one.calls}
