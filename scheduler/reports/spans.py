"""Defines trace spans for the phases of a job that take time. Names and attributes of checkpoint
spans and of the initialisation span are those of Flink's traces."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from flinkray.core.error_text import sendable
from flinkray.scheduler.reports.checkpoint_statistics import CheckpointStatistics

JOB_SUBMISSION = "JobSubmission"
"""From when the Dispatcher has the job graph until the graph is stored."""
JOB_INITIALIZATION = "JobInitialization"
"""From when a job begins until all tasks that can run from the start run."""
CHECKPOINT = "Checkpoint"
"""From when a checkpoint or savepoint is triggered until it is complete or has failed."""
FAILOVER = "Failover"
"""From a failure until all tasks that it ended run again."""
RESCALE = "Rescale"
"""From the stop of an elastic job until it runs with another parallelism."""
TAKE_OVER = "TakeOver"
"""From when a JobMaster asks for its predecessor's tasks until it decides which keep running."""

_KEPT = 1000
"""Largest number of spans that are kept until they are taken; the oldest are dropped first."""
_LONGEST_CAUSE = 1024
"""Largest size in bytes of a cause."""

Attribute = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Span:
    """A named period of time.  Times are seconds since the epoch."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Attribute]
    failure: str | None = None
    """The failure that ended the period; None if there was none."""


class SpanBook:
    """Keeps ended spans until they are taken."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=_KEPT)

    def add(self, span: Span) -> None:
        self._spans.append(span)

    def take(self) -> list[Span]:
        """Return and remove all spans."""
        spans = list(self._spans)
        self._spans.clear()
        return spans


def brief(cause: str) -> str:
    """Shorten the cause so that it fits into an attribute of a span."""
    return sendable(cause, _LONGEST_CAUSE)


def checkpoint_span(checkpoint: CheckpointStatistics) -> Span:
    """Create the trace span of a checkpoint that is complete or has failed."""
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
