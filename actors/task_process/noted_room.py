"""Where the task of a look-up tells that too many records wait."""

from __future__ import annotations

from flinkray.file_results import LookUpNotes
from flinkray.streaming.operators.look_up import LookUpRoom


class NotedRoom(LookUpRoom):
    """For the job's coordinator, which reads the notes and has sources wait.

    Args:
        execution: of the streams.
        attempt: of the subtask, counted in that.
    """

    def __init__(
        self, notes: LookUpNotes, execution: str, subtask: int, attempt: int, most: int
    ) -> None:
        self._notes = notes
        self._execution = execution
        self._subtask = subtask
        self._attempt = attempt
        self.most = most
        self._may_be_full = attempt > 0
        """By a note of this attempt, or of one before it."""

    def full(self) -> None:
        self._note(is_full=True)
        self._may_be_full = True

    def free(self) -> None:
        if self._may_be_full:
            self._note(is_full=False)

    def _note(self, *, is_full: bool) -> None:
        self._notes.note(self._execution, self._subtask, self._attempt, is_full=is_full)
