"""Reports of tasks, from the task process to its TaskExecutor and on to the JobMaster."""

from __future__ import annotations

from flinkray.core.error_text import sendable
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.scheduler.checkpoints.failures import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.shared.tasks import TaskExecutionState

TaskReport = TaskExecutionState | AcknowledgeCheckpoint | DeclineCheckpoint | AwaitCheckpoint
"""Reports of tasks. All kinds are sent in one stream, because their order matters.
A task that acknowledges a checkpoint and then finishes has taken part in the checkpoint.
"""

MOST_REPORTS = 200
"""Largest number of reports in one message.
With the longest texts of states, the message stays below the default frame size.
"""

_SHORT = 1024
"""Largest size of a shortened text in bytes, which fits even into a small message."""


def is_end(report: TaskReport) -> bool:
    """Return whether this is the last report of its task."""
    return isinstance(report, TaskExecutionState) and report.state.is_terminal


def not_ready(
    job_id: JobID,
    trigger: TriggerCheckpoint,
    attempt_id: ExecutionAttemptID,
    text: str,
    *,
    may_write: bool = False,
) -> DeclineCheckpoint:
    """Return a decline of a checkpoint, for a task that has not received the order to begin it.
    *may_write*: it is not certain that the task has not received the order and writes state."""
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
    return DeclineCheckpoint(job_id, trigger.checkpoint_id, attempt_id, reason, text, may_write)


def shortened(report: TaskReport) -> TaskReport:
    """Return a shorter report in place of *report*, which does not fit into any message. An
    acknowledgement of a checkpoint becomes a decline, so that the checkpoint fails at once."""
    match report:
        case TaskExecutionState():
            return report.shortened()
        case AwaitCheckpoint():
            return report
        case AcknowledgeCheckpoint(job_id, checkpoint_id, attempt_id):
            return DeclineCheckpoint(
                job_id,
                checkpoint_id,
                attempt_id,
                CheckpointFailureReason.CHECKPOINT_ASYNC_EXCEPTION,
                "what is known of its state does not fit into a message",
            )
        case DeclineCheckpoint(job_id, checkpoint_id, attempt_id, reason, text):
            return DeclineCheckpoint(
                job_id, checkpoint_id, attempt_id, reason, sendable(text, _SHORT)
            )
