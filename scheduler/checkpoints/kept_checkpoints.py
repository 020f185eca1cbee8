"""Decides which complete checkpoints are kept, and which state can be deleted."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from flinkray.checkpoint.handles import FileState, StateLocation
from flinkray.scheduler.checkpoints.actions import (
    CheckpointAction,
    DiscardCheckpoint,
    DiscardFiles,
    ForgetCheckpoint,
)
from flinkray.scheduler.checkpoints.completed_checkpoints import (
    CompletedCheckpoint,
    CompletedCheckpoints,
)
from flinkray.scheduler.checkpoints.operators_with_state import shared_files, state_locations
from flinkray.scheduler.checkpoints.shared_state_registry import SharedStateRegistry
from flinkray.scheduler.shared.states import JobStatus

Actions = list[CheckpointAction]


class KeptCheckpoints:
    """Keeps the completed checkpoints of a job, and knows which files they share. *pending*: ids of
    checkpoints in progress.  A file that only these may refer to stays until :meth:`pending_over`
    has been called for each of them."""

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
        savepoint.
        """
        is_retained = self._completed.find(checkpoint_id) is not None
        return is_retained or checkpoint_id in self._savepoints

    def shares(self, file: FileState) -> bool:
        """Return whether a retained checkpoint refers to the file, or a pending checkpoint may do
        so.
        """
        return self._registry.knows(file.path)

    # --- completed checkpoints --------------------------------------------------------------------

    def recover(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Retain an earlier JobMaster's checkpoints, or the savepoint to start from (CP-28)."""
        self._completed.recover(checkpoints)
        for checkpoint in self._completed.retained:
            self._register(checkpoint)

    def add_savepoint(self, checkpoint_id: int) -> None:
        """Note that a savepoint is complete.  The savepoint belongs to its user."""
        self._savepoints.add(checkpoint_id)

    def add(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Retain a completed checkpoint.
        Returns the subsumed checkpoints, which the caller must pass to :meth:`let_go`."""
        self._register(checkpoint)
        return self._completed.add(checkpoint)

    def let_go(self, subsumed: Iterable[CompletedCheckpoint], pending: Collection[int]) -> Actions:
        """Delete the subsumed checkpoints that :meth:`add` returned. Savepoints are only forgotten:
        their users keep the files."""
        actions: Actions = []
        for checkpoint in subsumed:
            if checkpoint.properties.is_discarded_when_subsumed:
                actions += self._discard(checkpoint, pending)
            else:
                self._registry.unregister(checkpoint.checkpoint_id, ())
                actions.append(ForgetCheckpoint(checkpoint))
        return actions

    def job_ended(self, status: JobStatus, pending: Collection[int]) -> Actions:
        """Delete the checkpoints that are not kept when the job ends with *status*."""
        actions: Actions = []
        for checkpoint in self._completed.job_ended(status):
            actions += self._discard(checkpoint, pending)
        return actions

    def add_after_the_end(self, checkpoint: CompletedCheckpoint, status: JobStatus) -> Actions:
        """Add a checkpoint that was being stored when the job ended.
        The checkpoint is treated like the ones completed before the end.  No other checkpoint is
        pending at that time."""
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
        """Note that a pending checkpoint was aborted, or was completed and added. Returns the
        actions that delete files which no checkpoint needs any more."""
        return _discard_files(self._registry.pending_over(checkpoint_id))

    def discard_state(self, locations: Iterable[StateLocation]) -> Actions:
        """Delete state received for an incomplete checkpoint.
        Files shared with complete checkpoints stay."""
        return _discard_files(
            at
            for at in dict.fromkeys(locations)
            if isinstance(at, FileState) and not self.shares(at)
        )

    def discard_late_state(self, checkpoint_id: int, locations: Iterable[StateLocation]) -> Actions:
        """Delete state received for a checkpoint that is over.
        Files of a complete checkpoint stay."""
        retained = self._completed.find(checkpoint_id)
        used = set() if retained is None else set(state_locations(retained.metadata))
        return self.discard_state(at for at in locations if at not in used)


def _discard_files(files: Iterable[FileState]) -> Actions:
    files = tuple(files)
    return [DiscardFiles(files)] if files else []
