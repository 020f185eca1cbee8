"""When and how a job's checkpoints are taken."""

from __future__ import annotations

from flinkray.checkpoint.metadata import SnapshotKind
from flinkray.core.job_options import ENDLESS
from flinkray.core.message import message
from flinkray.scheduler.checkpoints.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
)

LONGEST_PAUSE = 365 * 24 * 3600.0
"""Seconds: Flink's bound of ``min_pause``."""


@message
class CheckpointConfiguration:
    """Times are in seconds."""

    interval: float | None = None
    """None: checkpoints are taken on request only."""
    timeout: float = 600.0
    min_pause: float = 0.0
    """From the end of one to the beginning of the next."""
    max_concurrent: int = 1
    max_retained: int = 1
    tolerable_failures: int = 0
    """So many in a row the job survives; -1: any number."""
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    is_exactly_once: bool = True
    is_unaligned: bool = False
    alignment_timeout: float = 0.0
    """Unaligned checkpoints begin aligned, and have so much time for it."""
    is_incremental: bool = True
    allows_finished_tasks: bool = True
    """Checkpoints go on when some tasks have come to the end of their data."""

    def __post_init__(self) -> None:
        if self.interval is not None and self.interval <= 0:
            raise ValueError(f"a checkpoint interval must be above 0, got {self.interval} s")
        if self.timeout <= 0 or self.min_pause < 0 or self.alignment_timeout < 0:
            raise ValueError(f"times of checkpoints must not be negative: {self}")
        if self.max_concurrent < 1 or self.max_retained < 1:
            raise ValueError(f"at least one checkpoint must be taken and retained: {self}")
        if self.tolerable_failures < -1:
            raise ValueError(f"tolerable failures are -1 (any number) or more: {self}")
        if self.is_unaligned and not self.is_exactly_once:
            raise ValueError("only checkpoints that are exactly once can be unaligned")

    @property
    def tolerated(self) -> int:
        """How many failures in a row do not fail the job."""
        return ENDLESS if self.tolerable_failures == -1 else self.tolerable_failures

    @property
    def pause(self) -> float:
        """The pause, which is bounded."""
        return min(self.min_pause, LONGEST_PAUSE)

    @property
    def period(self) -> float | None:
        """From one periodic request to the next: not shorter than the pause."""
        return None if self.interval is None else max(self.interval, self.pause)

    @property
    def properties(self) -> CheckpointProperties:
        """Of its checkpoints."""
        return CheckpointProperties(SnapshotKind.CHECKPOINT, retention=self.retention)
