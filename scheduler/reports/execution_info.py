"""Describes one attempt of a subtask for clients."""

from __future__ import annotations

from dataclasses import field

from flinkray.core.message import message
from flinkray.core.schema import stored
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState


@stored("ExecutionInfo")
@message
class ExecutionInfo:
    """One attempt of a subtask, as clients see it.  Times are seconds since the epoch."""

    subtask_index: int
    attempt_number: int
    state: ExecutionState
    location: str | None
    """``<TaskExecutor> bundle <i> on <node ip>``; None before the attempt has a slot."""
    executor_actor_id: str | None = None
    executor_pid: int | None = None
    start_time: float | None = None
    end_time: float | None = None
    state_timestamps: dict[str, float] = field(default_factory=dict)
    """ExecutionState name -> seconds since the epoch when it was entered."""
    failure: str | None = None
    io_metrics: IOMetrics | None = None
    """I/O metrics of the attempt.
    None if the task is no stream task, has not begun, or its process no longer reports metrics."""
