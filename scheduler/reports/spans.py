"""What takes time in the life of a job, as spans of traces.

Names and attributes of checkpoints and of the beginning are those of Flink's traces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from flinkray.core.error_text import sendable
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointStatistics

JOB_SUBMISSION = "JobSubmission"
"""From when the Dispatcher has the job's graph until it is stored."""
JOB_INITIALIZATION = "JobInitialization"
"""From when a job begins until all tasks run that can run from the start."""
CHECKPOINT = "Checkpoint"
"""From when a checkpoint or savepoint is triggered until it is complete or has failed."""
FAILOVER = "Failover"
"""From a failure until all tasks run again that it has ended."""
RESCALE = "Rescale"
"""The same of an elastic job that goes on with another parallelism."""
TAKE_OVER = "TakeOver"
"""From when a JobMaster asks what runs of its predecessor's until it is decided what goes on."""

_KEPT = 1000
"""Spans that nobody takes; the oldest go first."""
_LONGEST_CAUSE = 1024
"""Bytes."""

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """Times are seconds since the epoch."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Attribute]
    failure: str | None = None
    """Why it did not end well."""


class SpanBook:
    """Spans that have ended, until somebody takes them."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=_KEPT)

    def add(self, span: Span) -> None:
        self._spans.append(span)

    def take(self) -> list[Span]:
        """All since the last time."""
        spans = list(self._spans)
        self._spans.clear()
        return spans


def brief(cause: str) -> str:
    """A cause as an attribute."""
    return sendable(cause, _LONGEST_CAUSE)


def checkpoint_span(checkpoint: CheckpointStatistics) -> Span:
    """Of a checkpoint that is over."""
    begin = checkpoint.timestamp / 1000
    attributes: dict[str, Attribute] = {
        "checkpointId": checkpoint.checkpoint_id,
        "checkpointStatus": checkpoint.status.name,
        "checkpointType": "Savepoint" if checkpoint.is_savepoint else "Checkpoint",
        "checkpointedSize": checkpoint.checkpointed_size,
        "fullSize": checkpoint.state_size,
        "acknowledgedSubtasks": checkpoint.acknowledged_subtasks,
        "numberOfSubtasks": checkpoint.number_of_subtasks,
    }
    failure = None if checkpoint.failure is None else brief(checkpoint.failure)
    return Span(CHECKPOINT, begin, begin + (checkpoint.duration or 0.0), attributes, failure)
