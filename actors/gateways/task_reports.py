"""What is told of tasks, from their process to their TaskExecutor and on to their JobMaster."""

from __future__ import annotations

from flinkray.core.error_text import sendable
from flinkray.core.ids import ExecutionAttemptID, JobID
from flinkray.scheduler.checkpoints.errors import CheckpointFailureReason
from flinkray.scheduler.checkpoints.messages import (
    AcknowledgeCheckpoint,
    AwaitCheckpoint,
    DeclineCheckpoint,
    TriggerCheckpoint,
)
from flinkray.scheduler.shared.tasks import TaskExecutionState

TaskReport = TaskExecutionState | AcknowledgeCheckpoint | DeclineCheckpoint | AwaitCheckpoint
"""They travel together, since their order matters: a task that acknowledges a checkpoint and then
finishes has taken part in it."""

MOST_REPORTS = 200
"""Reports in one message: with the longest texts that states have, it stays below the default frame
size."""

_SHORT = 1024
"""Bytes of a text that fit into a message of any size."""


def is_end(report: TaskReport) -> bool:
    """Whether nothing follows of its task."""
    return isinstance(report, TaskExecutionState) and report.state.is_terminal


def not_ready(
    job_id: JobID, trigger: TriggerCheckpoint, attempt_id: ExecutionAttemptID, text: str
) -> DeclineCheckpoint:
    """The answer to an order that reaches no task which could take part."""
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY
    return DeclineCheckpoint(job_id, trigger.checkpoint_id, attempt_id, reason, text)


def shortened(report: TaskReport) -> TaskReport:
    """What matters most of one that is too large for a message by itself: of an acknowledgement,
    that the checkpoint is not to wait for it."""
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
