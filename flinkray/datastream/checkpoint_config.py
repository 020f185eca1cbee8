"""Settings that say when and how a program takes checkpoints."""

from __future__ import annotations

from typing import Any

from flinkray.core import job_options
from flinkray.core.arguments import whole_number
from flinkray.core.config_option import ConfigOption
from flinkray.core.durations import Duration, milliseconds
from flinkray.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention


class CheckpointConfig:
    """Settings that say when and how a program takes checkpoints. Times are milliseconds.
    Without a cluster, batch programs and programs with a clock of their own (the environment's
    argument *clock*) take no checkpoints."""

    DEFAULT_MODE = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT = 600_000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    def __init__(self) -> None:
        self._mode = self.DEFAULT_MODE
        self._interval = -1
        self._timeout = self.DEFAULT_TIMEOUT
        self._min_pause = self.DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS
        self._max_concurrent = self.DEFAULT_MAX_CONCURRENT_CHECKPOINTS
        self._tolerable_failures = 0
        self._retention = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        self._unaligned = False
        self._force_unaligned = False
        self._alignment_timeout = 0
        self._storage: CheckpointStorage | None = None
        self._set: dict[str, str] = {}

    def job_settings(self) -> dict[str, str]:
        """Return the values that the program has set, by the keys of the job's options. Options
        that are missing here have the values of the cluster."""
        return dict(self._set)

    def _note(self, option: ConfigOption[Any], value: str) -> CheckpointConfig:
        self._set[option.key] = value
        return self

    def is_checkpointing_enabled(self) -> bool:
        return self._interval > 0

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self._mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        if not isinstance(checkpointing_mode, CheckpointingMode):
            raise TypeError(
                "a CheckpointingMode is needed, such as CheckpointingMode.EXACTLY_ONCE, got "
                f"{checkpointing_mode!r}"
            )
        self._mode = checkpointing_mode
        return self._note(job_options.CHECKPOINTING_MODE, checkpointing_mode.name)

    def get_checkpoint_interval(self) -> int:
        """Return the interval in milliseconds. -1: no checkpoints."""
        return self._interval

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        self._interval = _at_least(10, checkpoint_interval, "a checkpoint interval in milliseconds")
        return self._note(job_options.CHECKPOINTING_INTERVAL, f"{checkpoint_interval} ms")

    def get_checkpoint_timeout(self) -> int:
        return self._timeout

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        self._timeout = _at_least(10, checkpoint_timeout, "a checkpoint time-out in milliseconds")
        return self._note(job_options.CHECKPOINTING_TIMEOUT, f"{checkpoint_timeout} ms")

    def get_min_pause_between_checkpoints(self) -> int:
        return self._min_pause

    def set_min_pause_between_checkpoints(
        self, min_pause_between_checkpoints: int
    ) -> CheckpointConfig:
        self._min_pause = _at_least(
            0, min_pause_between_checkpoints, "a pause between checkpoints in milliseconds"
        )
        return self._note(
            job_options.CHECKPOINTING_MIN_PAUSE, f"{min_pause_between_checkpoints} ms"
        )

    def get_max_concurrent_checkpoints(self) -> int:
        return self._max_concurrent

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        self._max_concurrent = _at_least(1, max_concurrent_checkpoints, "a number of checkpoints")
        return self._note(job_options.CHECKPOINTING_MAX_CONCURRENT, str(max_concurrent_checkpoints))

    def is_fail_on_checkpointing_errors(self) -> bool:
        return self._tolerable_failures == 0

    def set_fail_on_checkpointing_errors(
        self, fail_on_checkpointing_errors: bool
    ) -> CheckpointConfig:
        number = 0 if fail_on_checkpointing_errors else job_options.ENDLESS
        return self.set_tolerable_checkpoint_failure_number(number)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        return self._tolerable_failures

    def set_tolerable_checkpoint_failure_number(
        self, tolerable_checkpoint_failure_number: int
    ) -> CheckpointConfig:
        """Set how many checkpoints in a row may fail; one more failure fails the job. -1: any
        number."""
        number = tolerable_checkpoint_failure_number
        if number == -1:
            number = job_options.ENDLESS
        self._tolerable_failures = _at_least(0, number, "a number of failures")
        return self._note(job_options.CHECKPOINTING_TOLERABLE_FAILURES, str(number))

    def enable_externalized_checkpoints(
        self, cleanup_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        self._retention = retention_mode
        return self._note(job_options.CHECKPOINTING_RETENTION, retention_mode.name)

    def is_externalized_checkpoints_enabled(self) -> bool:
        return self._retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        return self._retention

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._unaligned

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        self._unaligned = enabled
        return self._note(job_options.CHECKPOINTING_UNALIGNED, str(enabled).lower())

    def is_force_unaligned_checkpoints(self) -> bool:
        return self._force_unaligned

    def set_force_unaligned_checkpoints(
        self, force_unaligned_checkpoints: bool = True
    ) -> CheckpointConfig:
        self._force_unaligned = force_unaligned_checkpoints
        return self

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        return self.enable_unaligned_checkpoints(False)

    def set_alignment_timeout(self, alignment_timeout: Duration | int) -> CheckpointConfig:
        self._alignment_timeout = milliseconds(alignment_timeout)
        return self._note(
            job_options.CHECKPOINTING_ALIGNED_TIMEOUT, f"{self._alignment_timeout} ms"
        )

    def get_alignment_timeout(self) -> Duration:
        return Duration.of_millis(self._alignment_timeout)

    set_aligned_checkpoint_timeout = set_alignment_timeout
    get_aligned_checkpoint_timeout = get_alignment_timeout

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        if not isinstance(storage, CheckpointStorage):
            raise TypeError(f"a CheckpointStorage is needed, got {storage!r}")
        self._storage = storage
        self._set.pop(job_options.CHECKPOINTING_DIR.key, None)
        self._set.pop(job_options.CHECKPOINTING_INLINE_THRESHOLD.key, None)
        if isinstance(storage, FileSystemCheckpointStorage | JobManagerCheckpointStorage):
            path = storage.get_checkpoint_path()
            if path is not None:
                self._note(job_options.CHECKPOINTING_DIR, path)
        if isinstance(storage, FileSystemCheckpointStorage) and storage.says_threshold:
            threshold = storage.get_min_file_size_threshold()
            self._note(job_options.CHECKPOINTING_INLINE_THRESHOLD, f"{threshold}b")
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    def get_checkpoint_storage(self) -> CheckpointStorage | None:
        return self._storage


def _at_least(minimum: int, value: int, what: str) -> int:
    if whole_number(value, what) < minimum:
        raise ValueError(f"{what} must be at least {minimum}, got {value}")
    return value
