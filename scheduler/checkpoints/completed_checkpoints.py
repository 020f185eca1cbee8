"""The checkpoints that a job can go on from."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from flinkray.checkpoint.metadata import CheckpointMetadata
from flinkray.scheduler.checkpoints.properties import CheckpointProperties
from flinkray.scheduler.shared.states import JobStatus


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """Everything of it is durable."""

    metadata: CheckpointMetadata
    properties: CheckpointProperties
    path: str
    """Of its metadata."""

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id


class CompletedCheckpoints:
    """The newest few.  The one with the highest id is the one to go on from."""

    def __init__(self, max_retained: int) -> None:
        self._max_retained = max_retained
        self._retained: list[CompletedCheckpoint] = []

    @property
    def retained(self) -> tuple[CompletedCheckpoint, ...]:
        """By rising id."""
        return tuple(self._retained)

    @property
    def latest(self) -> CompletedCheckpoint | None:
        return self._retained[-1] if self._retained else None

    def find(self, checkpoint_id: int) -> CompletedCheckpoint | None:
        """None: it is not retained."""
        return next((c for c in self._retained if c.checkpoint_id == checkpoint_id), None)

    def recover(self, checkpoints: Iterable[CompletedCheckpoint]) -> None:
        """What an earlier JobMaster has left, in any order; nothing is cleaned up (CP-28)."""
        self._retained = sorted(checkpoints, key=lambda each: each.checkpoint_id)

    def add(self, checkpoint: CompletedCheckpoint) -> tuple[CompletedCheckpoint, ...]:
        """Those that are subsumed by it, and so are not retained any more."""
        insort(self._retained, checkpoint, key=lambda each: each.checkpoint_id)
        surplus = max(len(self._retained) - self._max_retained, 0)
        subsumed, self._retained = self._retained[:surplus], self._retained[surplus:]
        return tuple(subsumed)

    def job_ended(self, status: JobStatus) -> tuple[CompletedCheckpoint, ...]:
        """Those that go with the job; the others stay where they are."""
        retained, self._retained = self._retained, []
        for checkpoint in retained:
            if not checkpoint.properties.is_discarded_at(status):
                self._retained.append(checkpoint)
        return tuple(c for c in retained if c.properties.is_discarded_at(status))
