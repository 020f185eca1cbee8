"""Decides which complete checkpoints are kept, and when files of subsumed and aborted checkpoints
can be deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.core.ids import ExecutionAttemptID
from flinkray.scheduler.checkpoints.actions import (
    DiscardCheckpoint,
    DiscardFiles,
    ForgetCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import (
    CompletedCheckpoint,
    CompletedCheckpoints,
)
from flinkray.scheduler.checkpoints.events import CheckpointStep
from flinkray.scheduler.checkpoints.operators_with_state import shared_files, state_locations
from flinkray.scheduler.checkpoints.shared_state_registry import SharedStateRegistry
from flinkray.scheduler.shared.states import JobStatus

Actions = list[CheckpointStep]


class KeptCheckpoints:
    """Keeps the completed checkpoints of a job, and knows which files they share. The methods take
    *pending*: the ids of checkpoints in progress. A file that only these may refer to stays until
    :meth:`pending_over` has been called for each of them."""

    def __init__(self, max_retained: int) -> None:
        self._completed = CompletedCheckpoints(max_retained)
        self._registry = SharedStateRegistry()
        self._savepoints: set[int] = set()
        """Ids of completed savepoints, which belong to their users."""

    @property
    def latest(self) -> CompletedCheckpoint | None:
        """The checkpoint that a restore would use; None if there is none."""
        return self._completed.latest

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints, in ascending order of their ids."""
        return self._completed.retained

    def needs(self, checkpoint_id: int) -> bool:
        """Return whether this is a complete checkpoint that is retained, or a complete
        savepoint."""
        is_retained = self._completed.find(checkpoint_id) is not None
        return is_retained or checkpoint_id in self._savepoints

    def shares(self, file: FileState) -> bool:
        """Return whether the file must stay, because a retained checkpoint refers to it, a
        checkpoint in progress may do so, or it belongs to a user."""
        return self._registry.knows(file.path)

    # --- completed checkpoints --------------------------------------------------------------------

    def recover(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Retain an earlier JobMaster's checkpoints, or the savepoint from which the job starts
        (CP-28)."""
        self._completed.recover(checkpoints)
        for checkpoint in self._completed.retained:
            self._register(checkpoint)

    def add_savepoint(self, checkpoint_id: int) -> None:
        """Stop deleting files of this savepoint, because it is complete: its files belong to its
        user."""
        self._savepoints.add(checkpoint_id)

    def add(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Retain a completed checkpoint.
        Returns the subsumed checkpoints, which the caller must pass to :meth:`let_go`."""
        self._register(checkpoint)
        return self._completed.add(checkpoint)

    def let_go(self, subsumed: Iterable[CompletedCheckpoint], pending: Collection[int]) -> Actions:
        """Return the actions that delete the subsumed checkpoints, which :meth:`add` returned. For
        a savepoint only the pointer is removed: its user keeps the files. *pending*: ids of the
        checkpoints in progress."""
        actions: Actions = []
        for checkpoint in subsumed:
            if checkpoint.properties.is_discarded_when_subsumed:
                actions += self._discard(checkpoint, pending)
            else:
                self._registry.unregister(checkpoint.checkpoint_id, ())
                actions.append(ForgetCheckpoint(checkpoint))
        return actions

    def job_ended(self, status: JobStatus, pending: Collection[int]) -> Actions:
        """Return the actions that delete the checkpoints that are not kept when the job ends with
        *status*. *pending*: ids of the checkpoints in progress."""
        actions: Actions = []
        for checkpoint in self._completed.job_ended(status):
            actions += self._discard(checkpoint, pending)
        return actions

    def add_after_the_end(self, checkpoint: CompletedCheckpoint, status: JobStatus) -> Actions:
        """Add a checkpoint that was being stored when the job ended with *status*. Returns the
        actions that delete it or the checkpoints it subsumes, as if it had been completed before
        the end. No other checkpoint may be pending."""
        self._register(checkpoint)
        actions = self.pending_over(checkpoint.checkpoint_id)
        if checkpoint.properties.is_discarded_at(status):
            actions += self._discard(checkpoint, ())
        elif checkpoint.properties.is_recovered_from:
            actions += self.let_go(self._completed.add(checkpoint), ())
        return actions

    def _register(self, checkpoint: CompletedCheckpoint) -> None:
        is_foreign = checkpoint.properties.is_savepoint
        files = shared_files(checkpoint.metadata)
        self._registry.register(checkpoint.checkpoint_id, files, is_foreign=is_foreign)

    def _discard(self, checkpoint: CompletedCheckpoint, pending: Collection[int]) -> Actions:
        unused = self._registry.unregister(checkpoint.checkpoint_id, pending)
        return [DiscardCheckpoint(checkpoint), *_discard_files(unused)]

    # --- pending checkpoints and received state ---------------------------------------------------

    def pending_over(self, checkpoint_id: int) -> Actions:
        """Stop waiting for a checkpoint that was in progress: it was aborted, or completed and
        added. Returns the actions that delete files which no checkpoint needs any more."""
        return _discard_files(self._registry.pending_over(checkpoint_id))

    def discard_state(self, locations: Iterable[StateLocation]) -> Actions:
        """Return the actions that delete state received for an incomplete checkpoint. Files shared
        with complete checkpoints stay."""
        return _discard_files(
            at
            for at in dict.fromkeys(locations)
            if isinstance(at, FileState) and not self.shares(at)
        )

    def discard_late_state(self, checkpoint_id: int, locations: Iterable[StateLocation]) -> Actions:
        """Return the actions that delete state received for a checkpoint that is over. Files of a
        complete checkpoint stay."""
        retained = self._completed.find(checkpoint_id)
        used = set() if retained is None else set(state_locations(retained.metadata))
        return self.discard_state(at for at in locations if at not in used)


def _discard_files(files: Iterable[FileState]) -> Actions:
    files = tuple(files)
    return [DiscardFiles(files)] if files else []


@dataclass(slots=True)
class _Aborted:
    directory: str
    awaited: set[ExecutionAttemptID]


class AbortedCheckpoints:
    """Decides when the directory of an aborted checkpoint can be deleted: when each task of the
    checkpoint has answered that it writes no more, or has ended."""

    def __init__(self) -> None:
        self._aborted: dict[int, _Aborted] = {}

    def add(
        self, checkpoint_id: int, directory: str, awaited: Iterable[ExecutionAttemptID]
    ) -> list[str]:
        """Add an aborted checkpoint. *awaited*: the tasks that may still write to its directory.
        Returns the directories that can be deleted now."""
        self._aborted[checkpoint_id] = _Aborted(directory, set(awaited))
        return self._unused((checkpoint_id,))

    def awaits(self, checkpoint_id: int, attempt_id: ExecutionAttemptID) -> bool:
        """Return whether the task may still write files for the checkpoint."""
        aborted = self._aborted.get(checkpoint_id)
        return aborted is not None and attempt_id in aborted.awaited

    def answered(self, checkpoint_id: int, attempt_id: ExecutionAttemptID) -> list[str]:
        """Stop waiting for a task that writes no more files for the checkpoint. Returns the
        directories to delete now."""
        if not self.awaits(checkpoint_id, attempt_id):
            return []
        self._aborted[checkpoint_id].awaited.remove(attempt_id)
        return self._unused((checkpoint_id,))

    def ended(self, attempts: Iterable[ExecutionAttemptID]) -> list[str]:
        """Stop waiting for these task attempts, which have ended. Returns the directories to delete
        now."""
        attempts = frozenset(attempts)
        for aborted in self._aborted.values():
            aborted.awaited -= attempts
        return self._unused(tuple(self._aborted))

    def job_ended(self) -> list[str]:
        """Return all remaining directories, to be deleted now, because no task of the job runs any
        more."""
        directories = [aborted.directory for aborted in self._aborted.values()]
        self._aborted.clear()
        return directories

    def _unused(self, checkpoint_ids: Iterable[int]) -> list[str]:
        unused = [i for i in checkpoint_ids if not self._aborted[i].awaited]
        return [self._aborted.pop(i).directory for i in unused]
