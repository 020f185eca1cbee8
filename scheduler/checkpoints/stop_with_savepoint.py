"""Tracks the stop of a job with a savepoint, from the savepoint's beginning to the job's end."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import JobID
from flinkray.scheduler.checkpoints.actions import SnapshotFinished
from flinkray.scheduler.checkpoints.failures import StopWithSavepointError
from flinkray.scheduler.shared.states import JobStatus


class StopWithSavepoint:
    """Tracks the savepoint that a job is stopped with, and holds the answer to its user. The user
    is answered when the job has finished, or when it is certain that the job does not finish with
    this savepoint, although the savepoint is complete."""

    def __init__(self, job_id: JobID) -> None:
        self._job_id = job_id
        self.is_under_way = False
        """Whether the savepoint is in progress, so that no other checkpoint can be taken. The tasks
        do not run any more after the savepoint."""
        self._answer: SnapshotFinished | None = None
        """Answer for the user once the job has finished; None before the savepoint is complete."""

    def begin(self) -> None:
        self.is_under_way = True

    def over(self) -> None:
        """Set that the job is not being stopped any more, because the savepoint was aborted, or the
        tasks are restarted from it."""
        self.is_under_way = False

    def completed(self, answer: SnapshotFinished) -> None:
        """Keep *answer*, which says that the savepoint is complete, until all tasks have ended."""
        self._answer = answer

    def job_ended(self, status: JobStatus) -> list[SnapshotFinished]:
        """Return the answer to the user who stopped the job with a savepoint; empty if no user
        waits for it."""
        if status is not JobStatus.FINISHED:
            return self.failed(f"the job is {status.name}")
        answer, self._answer = self._answer, None
        return [] if answer is None else [answer]

    def failed(self, cause: str) -> list[SnapshotFinished]:
        """Return the answer that the savepoint is complete, but the job does not finish with it.
        Empty if no user waits for the answer."""
        answer, self._answer = self._answer, None
        if answer is None or answer.path is None:
            return []
        error = StopWithSavepointError(self._job_id, answer.checkpoint_id, answer.path, cause)
        return [replace(answer, path=None, error=error)]
