"""Keeps the completed checkpoints from which a job can be restored."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.shared.states import JobStatus


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint whose state and metadata are durable."""

    metadata: CheckpointMetadata
    properties: CheckpointProperties
    path: str
    """Path of the metadata."""

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id


class CompletedCheckpoints:
    """Retains the newest *max_retained* completed checkpoints. A restore uses the checkpoint with
    the highest id."""

    def __init__(self, max_retained: int) -> None:
        self._max_retained = max_retained
        self._retained: list[CompletedCheckpoint] = []

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """The retained checkpoints, in ascending order of their ids."""
        return tuple(self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        return self._retained[-1] if self._retained else None

    def find(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        """Return the retained checkpoint with this id; None if it is not retained."""
        return next((c for c in self._retained if c.checkpoint_id == checkpoint_id), None)

    def recover(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """Retain an earlier JobMaster's checkpoints, given in any order. All of them stay retained,
        even if they are more than *max_retained* (CP-28)."""
        self._retained = sorted(checkpoints, key=lambda each: each.checkpoint_id)

    def add(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Retain a checkpoint. Returns the oldest checkpoints, which are no longer retained because
        of it (subsumed checkpoints)."""
        insort(self._retained, checkpoint, key=lambda each: each.checkpoint_id)
        surplus = max(len(self._retained) - self._max_retained, 0)
        subsumed, self._retained = self._retained[:surplus], self._retained[surplus:]
        return tuple(subsumed)

    def job_ended(self, status: JobStatus) -> tuple[CompletedCheckpoint, ...]:
        """Stop retaining the checkpoints that are discarded when the job ends with *status*.
        Returns these checkpoints; the others stay retained."""
        retained, self._retained = self._retained, []
        for checkpoint in retained:
            if not checkpoint.properties.is_discarded_at(status):
                self._retained.append(checkpoint)
        return tuple(c for c in retained if c.properties.is_discarded_at(status))
