"""Defines the metrics of streaming tasks: records and bytes read and written, and time spent."""

from __future__ import annotations

from collections.abc import Iterable

from flinkray.core.ids import ExecutionAttemptID
from flinkray.core.message import message
from flinkray.core.schema import stored, with_defaults


@stored("IOMetrics", version=3, migrations={1: with_defaults, 2: with_defaults})
@message
class IOMetrics:
    """Metrics of an execution attempt since the attempt began.  For a vertex: the sum over its
    current attempts. Only data exchanged between tasks is counted.  Input fields are None if the
    task reads from no other task (a source); output fields are None if it writes to no other task.
    Bytes are estimated if both tasks are in one process."""

    records_in: int | None
    records_out: int | None
    bytes_in: int | None
    bytes_out: int | None
    busy_ms: int
    back_pressured_ms: int
    """Milliseconds during which the task waited for its consumers."""
    idle_ms: int
    input_watermark: int | None = None
    """Event time in milliseconds; for a vertex the earliest of its tasks.
    None if the task reads from no other task, or has no watermark yet."""
    held: int | None = None
    """1 if reading the task's source is paused because its consumers lag behind, otherwise 0.
    For a vertex the number of paused tasks.  None if the source cannot be paused."""

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds that the metrics cover: the sum of busy, back-pressured and idle time."""
        return self.busy_ms + self.back_pressured_ms + self.idle_ms


@message
class TaskIOMetrics:
    """Pairs a running attempt with its metrics, as reported to the JobMaster."""

    attempt_id: ExecutionAttemptID
    metrics: IOMetrics


def total(metrics: Iterable[IOMetrics]) -> IOMetrics | None:
    """Add up the metrics of several attempts.  Returns None if there are none. The watermark of the
    result is the earliest one.  Fields that are None everywhere stay None."""
    every = tuple(metrics)
    if not every:
        return None
    return IOMetrics(
        _sum(one.records_in for one in every),
        _sum(one.records_out for one in every),
        _sum(one.bytes_in for one in every),
        _sum(one.bytes_out for one in every),
        sum(one.busy_ms for one in every),
        sum(one.back_pressured_ms for one in every),
        sum(one.idle_ms for one in every),
        min((at for one in every if (at := one.input_watermark) is not None), default=None),
        _sum(one.held for one in every),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
