"""Defines the configuration of a job's checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any

from flinkray.core import job_options
from flinkray.core.config import ReadableConfig
from flinkray.core.config_option import ConfigOption
from flinkray.core.message import message, register
from flinkray.core.schema import stored

LONGEST_PAUSE = 365 * 24 * 3600.0
"""Upper bound of ``min_pause`` in seconds, as in Flink."""


@stored("CheckpointRetentionPolicy")
@register
class CheckpointRetentionPolicy(Enum):
    """Determines which checkpoints are kept after their job has ended."""

    NEVER_RETAIN_AFTER_TERMINATION = "never"
    RETAIN_ON_FAILURE = "on-failure"
    RETAIN_ON_CANCELLATION = "on-cancellation"
    """Checkpoints stay if the job was canceled or has failed."""


@stored("CheckpointConfiguration")
@message
class CheckpointConfiguration:
    """Configuration of a job's checkpoints.  Times are in seconds."""

    interval: float | None = None
    """Seconds between periodic checkpoints; None: checkpoints are taken on request only."""
    timeout: float = 600.0
    min_pause: float = 0.0
    """Minimum seconds from the completion of a checkpoint to the next periodic checkpoint."""
    max_concurrent: int = 1
    max_retained: int = 1
    tolerable_failures: int = 0
    """Number of failed checkpoints in a row that the job survives; -1 means any number."""
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    is_exactly_once: bool = True
    is_unaligned: bool = False
    alignment_timeout: float = 0.0
    """Seconds for which unaligned checkpoints try to align first; 0: they begin unaligned."""
    is_incremental: bool = True
    allows_finished_tasks: bool = True
    """Whether checkpoints are taken after some tasks have reached the end of their data."""

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
        """Number of failed checkpoints in a row that do not fail the job; ENDLESS: any number."""
        return job_options.ENDLESS if self.tolerable_failures == -1 else self.tolerable_failures

    @property
    def pause(self) -> float:
        """Seconds that must pass after a checkpoint before the next one: ``min_pause``, but at most
        ``LONGEST_PAUSE``."""
        return min(self.min_pause, LONGEST_PAUSE)

    @property
    def period(self) -> float | None:
        """Seconds between periodic requests, at least the pause; None: no periodic checkpoints."""
        return None if self.interval is None else max(self.interval, self.pause)


_RETENTION = {
    "NO_EXTERNALIZED_CHECKPOINTS": CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
    "DELETE_ON_CANCELLATION": CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
    "RETAIN_ON_CANCELLATION": CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
}

_OF_OPTIONS: tuple[tuple[ConfigOption[Any], str, Callable[[Any], Any]], ...] = (
    (job_options.CHECKPOINTING_INTERVAL, "interval", lambda seconds: seconds or None),
    (job_options.CHECKPOINTING_TIMEOUT, "timeout", float),
    (job_options.CHECKPOINTING_MIN_PAUSE, "min_pause", float),
    (job_options.CHECKPOINTING_MAX_CONCURRENT, "max_concurrent", int),
    (job_options.CHECKPOINTING_NUM_RETAINED, "max_retained", int),
    (job_options.CHECKPOINTING_TOLERABLE_FAILURES, "tolerable_failures", int),
    (job_options.CHECKPOINTING_RETENTION, "retention", _RETENTION.__getitem__),
    (job_options.CHECKPOINTING_MODE, "is_exactly_once", "EXACTLY_ONCE".__eq__),
    (job_options.CHECKPOINTING_UNALIGNED, "is_unaligned", bool),
    (job_options.CHECKPOINTING_ALIGNED_TIMEOUT, "alignment_timeout", float),
    (job_options.CHECKPOINTING_INCREMENTAL, "is_incremental", bool),
    (job_options.CHECKPOINTING_AFTER_TASKS_FINISH, "allows_finished_tasks", bool),
)
"""(option, field of CheckpointConfiguration, conversion from the option to the field)"""


def checkpoints_of(
    configuration: ReadableConfig, others: CheckpointConfiguration | None = None
) -> CheckpointConfiguration:
    """Return the checkpoint configuration that the options describe. Options that are not set have
    the values of *others*; None: the defaults."""
    changes = {
        field: convert(configuration.get(option))
        for option, field, convert in _OF_OPTIONS
        if configuration.is_set(option)
    }
    others = others or CheckpointConfiguration()
    if not changes.get("is_exactly_once", others.is_exactly_once):
        changes["is_unaligned"] = False  # as in Flink: no effect in this case
    return replace(others, **changes)
