"""Channel metrics, with Flink's names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flinkray.streaming.functions.metrics import MetricGroup


@dataclass(slots=True)
class ChannelMetrics:
    """Metrics of one channel, or the sum of the metrics of many channels. The threads that move the
    data count without locks, so the numbers of one reading may not fit exactly together."""

    bytes: int = 0
    """Bytes that were sent (blocking result: written), or taken by the task.
    If both tasks are in one process: bytes in memory (estimated for Python values)."""
    records: int = 0
    buffers: int = 0
    queued_bytes: int = 0
    """Bytes that wait to be sent, or to be taken by the task."""
    queued_buffers: int = 0
    back_pressured_seconds: float = 0.0
    """Seconds for which the writer had to wait."""

    def add_buffer(self, records: int, size: int) -> None:
        self.buffers += 1
        self.records += records
        self.bytes += size

    def __iadd__(self, other: ChannelMetrics) -> ChannelMetrics:
        self.bytes += other.bytes
        self.records += other.records
        self.buffers += other.buffers
        self.queued_bytes += other.queued_bytes
        self.queued_buffers += other.queued_buffers
        self.back_pressured_seconds += other.back_pressured_seconds
        return self


Read = Callable[[], ChannelMetrics]


def register_output(group: MetricGroup, read: Read) -> None:
    """Show a partition's metrics in its task's metric group. *read*: the partition's
    ``metrics``."""
    group.gauge("numBytesOut", lambda: read().bytes)
    group.gauge("numRecordsOut", lambda: read().records)
    group.gauge("numBuffersOut", lambda: read().buffers)
    group.gauge("backPressuredTimeMs", lambda: int(read().back_pressured_seconds * 1000))
    buffers = group.add_group("buffers")
    buffers.gauge("outputQueueLength", lambda: read().queued_buffers)
    buffers.gauge("outputQueueSize", lambda: read().queued_bytes)


def register_input(group: MetricGroup, read: Read) -> None:
    """Show a gate's metrics in the metric group of its task. *read*: the gate's ``metrics``."""
    group.gauge("numBytesIn", lambda: read().bytes)
    group.gauge("numRecordsIn", lambda: read().records)
    group.gauge("numBuffersIn", lambda: read().buffers)
    buffers = group.add_group("buffers")
    buffers.gauge("inputQueueLength", lambda: read().queued_buffers)
    buffers.gauge("inputQueueSize", lambda: read().queued_bytes)
