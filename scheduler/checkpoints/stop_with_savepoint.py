"""A job that is stopped with a savepoint: from the savepoint's beginning to the job's end."""

from __future__ import annotations

from dataclasses import replace

from flinkray.core.ids import JobID
from flinkray.scheduler.checkpoints.actions import SnapshotFinished
from flinkray.scheduler.checkpoints.errors import StopWithSavepointError
from flinkray.scheduler.shared.states import JobStatus


class StopWithSavepoint:
    """Who has asked is answered when the job has finished; or when it is certain that it does not
    finish because of this savepoint, which is then complete nevertheless."""

    def __init__(self, job_id: JobID) -> None:
        self._job_id = job_id
        self.is_under_way = False
        """Tasks do not go on after it, so that nothing else can be taken."""
        self._answer: SnapshotFinished | None = None
        """To be given when the job has finished: the savepoint is complete."""

    def begin(self) -> None:
        """Such a savepoint is going to be taken."""
        self.is_under_way = True

    def over(self) -> None:
        """It is given up, or tasks go on from it."""
        self.is_under_way = False

    def completed(self, answer: SnapshotFinished) -> None:
        """Its tasks are told to end; *answer* is for when they all have."""
        self._answer = answer

    def job_ended(self, status: JobStatus) -> list[SnapshotFinished]:
        """The answer, if there is somebody to be answered."""
        if status is not JobStatus.FINISHED:
            return self.failed(f"the job is {status.name}")
        answer, self._answer = self._answer, None
        return [] if answer is None else [answer]

    def failed(self, cause: str) -> list[SnapshotFinished]:
        """The same, when the job does not finish because of the savepoint."""
        answer, self._answer = self._answer, None
        if answer is None or answer.path is None:
            return []
        error = StopWithSavepointError(self._job_id, answer.checkpoint_id, answer.path, cause)
        return [replace(answer, path=None, error=error)]
