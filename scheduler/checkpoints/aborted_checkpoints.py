"""Tracks aborted checkpoints for which tasks may still write files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flinkray.core.ids import ExecutionAttemptID


@dataclass(slots=True)
class _Aborted:
    directory: str
    awaited: set[ExecutionAttemptID]


class AbortedCheckpoints:
    """Decides when the directory of an aborted checkpoint can be deleted.
    A directory can be deleted when each task of the checkpoint has answered or has ended."""

    def __init__(self) -> None:
        self._aborted: dict[int, _Aborted] = {}

    def add(
        self, checkpoint_id: int, directory: str, awaited: Iterable[ExecutionAttemptID]
    ) -> list[str]:
        """Add an aborted checkpoint.  Returns the directories that can be deleted now."""
        self._aborted[checkpoint_id] = _Aborted(directory, set(awaited))
        return self._unused((checkpoint_id,))

    def awaits(self, checkpoint_id: int, attempt_id: ExecutionAttemptID) -> bool:
        """Return whether the task may still write files for the checkpoint."""
        aborted = self._aborted.get(checkpoint_id)
        return aborted is not None and attempt_id in aborted.awaited

    def answered(self, checkpoint_id: int, attempt_id: ExecutionAttemptID) -> list[str]:
        """Note that a task writes no more files for the checkpoint.  Returns the directories to
        delete now."""
        if not self.awaits(checkpoint_id, attempt_id):
            return []
        self._aborted[checkpoint_id].awaited.remove(attempt_id)
        return self._unused((checkpoint_id,))

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> list[str]:
        """Note that these tasks have ended.  Returns the directories that can be deleted now."""
        attempts = frozenset(attempts)
        for aborted in self._aborted.values():
            aborted.awaited -= attempts
        return self._unused(tuple(self._aborted))

    def job_ended(self) -> list[str]:
        """Note that no task of the job runs any more.  Returns all remaining directories, to delete
        now."""
        directories = [aborted.directory for aborted in self._aborted.values()]
        self._aborted.clear()
        return directories

    def _unused(self, checkpoint_ids: Iterable[int]) -> list[str]:
        unused = [i for i in checkpoint_ids if not self._aborted[i].awaited]
        return [self._aborted.pop(i).directory for i in unused]
