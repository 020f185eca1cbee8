"""Collects statistics of a job's checkpoints, for users."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from flinkray.checkpoint.handles import FileState
from flinkray.core.error_text import sendable
from flinkray.core.locations import without_secrets
from flinkray.scheduler.checkpoints.completed_checkpoints import CompletedCheckpoint
from flinkray.scheduler.checkpoints.kept_checkpoints import KeptCheckpoints
from flinkray.scheduler.checkpoints.operators_with_state import state_locations
from flinkray.scheduler.checkpoints.pending_checkpoint import PendingCheckpoint
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.spans import SpanBook, checkpoint_span

HISTORY = 10
"""Number of ended checkpoints that are shown; as Flink's ``web.checkpoints.history``."""
_LONGEST = 1024
"""Longest failure text in bytes, because many such texts are sent together."""


class CheckpointStatsTracker:
    """Counts completed and failed checkpoints, and keeps statistics of the newest ones."""

    def __init__(self, spans: SpanBook | None = None) -> None:
        """Make a tracker without checkpoints. *spans* receives a span for each checkpoint that has
        an id and is over.
        """
        self._spans = SpanBook() if spans is None else spans
        self._completed = self._failed = self._restored = 0
        self._latest_completed: CheckpointStatistics | None = None
        self._latest_savepoint: CheckpointStatistics | None = None
        self._latest_failed: CheckpointStatistics | None = None
        self._latest_restored: int | None = None
        self._history: deque[CheckpointStatistics] = deque(maxlen=HISTORY)

    def completed(
        self,
        pending: PendingCheckpoint,
        checkpoint: CompletedCheckpoint,
        kept: KeptCheckpoints,
        now: float,
    ) -> None:
        """Count a completed checkpoint. Called before the checkpoint is added to *kept*, so that
        *kept* still tells which of its files belong to earlier checkpoints and which are new."""
        locations = state_locations(checkpoint.metadata)
        sizes = {location: location.size for location in locations}
        old = sum(s for at, s in sizes.items() if isinstance(at, FileState) and kept.shares(at))
        size = sum(sizes.values())
        path = without_secrets(checkpoint.path)
        statistics = _statistics(pending, CheckpointStatus.COMPLETED, now, size, size - old, path)
        self._completed += 1
        if pending.properties.is_savepoint:
            self._latest_savepoint = statistics
        else:
            self._latest_completed = statistics
        self._over(statistics)

    def discarded(self, checkpoint_id: int) -> None:
        """Remove the path from the statistics of a checkpoint that is being deleted."""
        latest = self._latest_completed
        if latest is not None and latest.checkpoint_id == checkpoint_id:
            self._latest_completed = replace(latest, path=None)
        self._history = deque(
            (
                replace(each, path=None) if each.checkpoint_id == checkpoint_id else each
                for each in self._history
            ),
            HISTORY,
        )

    def failed(self, pending: PendingCheckpoint, failure: str, now: float) -> None:
        """Count a failed checkpoint that had an id. Use :meth:`failed_without_id` for others."""
        self._failed += 1
        statistics = _statistics(
            pending, CheckpointStatus.FAILED, now, failure=sendable(failure, _LONGEST)
        )
        self._latest_failed = statistics
        self._over(statistics)

    def _over(self, statistics: CheckpointStatistics) -> None:
        self._history.appendleft(statistics)
        self._spans.add(checkpoint_span(statistics))

    def failed_without_id(self) -> None:
        self._failed += 1

    def restored(self, checkpoint_id: int) -> None:
        self._restored += 1
        self._latest_restored = checkpoint_id

    def overview(self, pending: list[PendingCheckpoint]) -> CheckpointsOverview:
        running = [_statistics(each, CheckpointStatus.IN_PROGRESS) for each in pending]
        return CheckpointsOverview(
            len(running),
            self._completed,
            self._failed,
            self._restored,
            self._latest_completed,
            self._latest_savepoint,
            self._latest_failed,
            self._latest_restored,
            (*reversed(running), *self._history),
        )


def _statistics(
    pending: PendingCheckpoint,
    status: CheckpointStatus,
    over_at: float | None = None,
    state_size: int = 0,
    checkpointed_size: int = 0,
    path: str | None = None,
    failure: str | None = None,
) -> CheckpointStatistics:
    return CheckpointStatistics(
        pending.checkpoint_id,
        status,
        pending.properties.is_savepoint,
        pending.timestamp,
        None if over_at is None else over_at - pending.begun_at,
        len(pending.plan.running),
        pending.number_acknowledged,
        state_size,
        checkpointed_size,
        path,
        failure,
    )
