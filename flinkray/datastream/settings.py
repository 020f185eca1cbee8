"""Settings of an environment: configuration, execution, checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from flinkray.core.config_option import duration
from flinkray.core.durations import Duration, Time, milliseconds


class RuntimeExecutionMode(Enum):
    """How a program runs."""

    STREAMING = 0
    """Every record has its effect at once."""
    BATCH = 1
    """Of bounded inputs: keyed reductions put out final values, and time stands until the end."""
    AUTOMATIC = 2
    """Batch if all sources are bounded."""


class TimeCharacteristic(Enum):
    """Of old programs: what time windows go by.  Assigners say it themselves now."""

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2


class CheckpointingMode(Enum):
    """What a failure may do to results."""

    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1


class ExternalizedCheckpointRetention(Enum):
    """What becomes of checkpoints when their job is cancelled."""

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2


class Configuration:
    """Options by name, as text.

    >>> config = Configuration()
    >>> config.set_string("pipeline.name", "demo").set_integer("parallelism.default", 2).to_dict()
    {'pipeline.name': 'demo', 'parallelism.default': '2'}
    """

    def __init__(self, other: Configuration | None = None) -> None:
        self._values: dict[str, Any] = {} if other is None else dict(other._values)

    @staticmethod
    def of(values: Mapping[str, str]) -> Configuration:
        """With these options."""
        configuration = Configuration()
        configuration._values.update(values)
        return configuration

    def set_string(self, key: str, value: str) -> Configuration:
        self._values[key] = value
        return self

    set = set_string

    def set_integer(self, key: str, value: int) -> Configuration:
        self._values[key] = value
        return self

    def set_boolean(self, key: str, value: bool) -> Configuration:
        self._values[key] = value
        return self

    def set_float(self, key: str, value: float) -> Configuration:
        self._values[key] = value
        return self

    def get_string(self, key: str, default_value: str) -> str:
        return _text(self._values[key]) if key in self._values else default_value

    get = get_string

    def get_integer(self, key: str, default_value: int) -> int:
        return int(self._values.get(key, default_value))

    def get_boolean(self, key: str, default_value: bool) -> bool:
        value = self._values.get(key, default_value)
        return value if isinstance(value, bool) else str(value).lower() == "true"

    def get_float(self, key: str, default_value: float) -> float:
        return float(self._values.get(key, default_value))

    def contains_key(self, key: str) -> bool:
        return key in self._values

    def remove_config(self, key: str) -> bool:
        """Whether it was there."""
        return self._values.pop(key, None) is not None

    def add_all(self, other: Configuration, prefix: str = "") -> Configuration:
        self._values.update({prefix + key: value for key, value in other._values.items()})
        return self

    add_configuration = add_all

    def to_dict(self) -> dict[str, str]:
        return {key: _text(value) for key, value in self._values.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(frozenset(self.to_dict().items()))

    def __repr__(self) -> str:
        return f"Configuration({self.to_dict()})"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_milliseconds(value: object) -> int:
    """``1 min``, ``200 ms``, or a number of milliseconds, as a configuration has it."""
    text = str(value).strip()
    if text.lstrip("-").isdigit():
        return int(text)
    return round(float(duration(positive=False).parse(text)) * 1000)


class ExecutionConfig:
    """How programs of an environment are executed."""

    def __init__(self) -> None:
        self._auto_watermark_interval = 200
        self._parallelism: int | None = None
        self._max_parallelism: int | None = None
        self._object_reuse = False
        self._job_parameters: dict[str, str] = {}

    def set_auto_watermark_interval(self, interval: int | Duration | Time) -> ExecutionConfig:
        """Milliseconds of processing time between periodic watermarks; 0 turns them off."""
        value = milliseconds(interval)
        if value < 0:
            raise ValueError(f"an interval must not be negative, got {value} ms")
        self._auto_watermark_interval = value
        return self

    def get_auto_watermark_interval(self) -> int:
        """Milliseconds."""
        return self._auto_watermark_interval

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """The parallelism of operators that have none of their own."""
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int | None:
        """None: not set, the environment's default."""
        return self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """The number of key groups."""
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """-1: by the parallelism."""
        return -1 if self._max_parallelism is None else self._max_parallelism

    def enable_object_reuse(self) -> ExecutionConfig:
        """Values are handed from operator to operator as they are in any case."""
        self._object_reuse = True
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """The default; see :meth:`enable_object_reuse`."""
        self._object_reuse = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Whether :meth:`enable_object_reuse` was called."""
        return self._object_reuse

    def set_global_job_parameters(
        self, global_job_parameters_dict: Mapping[str, str]
    ) -> ExecutionConfig:
        """What functions read with ``runtime_context.get_job_parameter``."""
        self._job_parameters = dict(global_job_parameters_dict)
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        """A copy of what :meth:`set_global_job_parameters` was given."""
        return dict(self._job_parameters)


class FileSystemCheckpointStorage:
    """Checkpoints in a directory of a file system.

    >>> FileSystemCheckpointStorage("file:///checkpoints/").get_checkpoint_path()
    'file:///checkpoints'
    """

    MAX_FILE_STATE_THRESHOLD = 1 << 20

    def __init__(
        self,
        checkpoint_path: str,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int | None = None,
    ) -> None:
        threshold = 20480 if file_state_size_threshold is None else file_state_size_threshold
        if not 0 <= threshold <= self.MAX_FILE_STATE_THRESHOLD:
            raise ValueError(
                f"the threshold must be 0 to {self.MAX_FILE_STATE_THRESHOLD} bytes, got {threshold}"
            )
        self._path = checkpoint_path.rstrip("/")
        self._threshold = threshold
        self._buffer = 4096 if write_buffer_size is None else write_buffer_size

    def get_checkpoint_path(self) -> str:
        return self._path

    def get_savepoint_path(self) -> str | None:
        """None: savepoints are told their place, or go to the environment's default directory."""
        return None

    def get_min_file_size_threshold(self) -> int:
        """State up to so many bytes is stored with the checkpoint's metadata."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        return max(self._buffer, self._threshold)


class CheckpointConfig:
    """When and how checkpoints are taken; times are milliseconds."""

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
        self._storage: FileSystemCheckpointStorage | None = None

    def is_checkpointing_enabled(self) -> bool:
        return self._interval > 0

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self._mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        self._mode = checkpointing_mode
        return self

    def get_checkpoint_interval(self) -> int:
        """-1: no checkpoints."""
        return self._interval

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        self._interval = _at_least(10, checkpoint_interval, "a checkpoint interval")
        return self

    def get_checkpoint_timeout(self) -> int:
        return self._timeout

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        self._timeout = _at_least(10, checkpoint_timeout, "a checkpoint time-out")
        return self

    def get_min_pause_between_checkpoints(self) -> int:
        return self._min_pause

    def set_min_pause_between_checkpoints(
        self, min_pause_between_checkpoints: int
    ) -> CheckpointConfig:
        self._min_pause = _at_least(0, min_pause_between_checkpoints, "a pause")
        return self

    def get_max_concurrent_checkpoints(self) -> int:
        return self._max_concurrent

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        self._max_concurrent = _at_least(1, max_concurrent_checkpoints, "a number of checkpoints")
        return self

    def is_fail_on_checkpointing_errors(self) -> bool:
        return self._tolerable_failures == 0

    def set_fail_on_checkpointing_errors(
        self, fail_on_checkpointing_errors: bool
    ) -> CheckpointConfig:
        self._tolerable_failures = 0 if fail_on_checkpointing_errors else (1 << 31) - 1
        return self

    def get_tolerable_checkpoint_failure_number(self) -> int:
        return self._tolerable_failures

    def set_tolerable_checkpoint_failure_number(
        self, tolerable_checkpoint_failure_number: int
    ) -> CheckpointConfig:
        self._tolerable_failures = _at_least(
            0, tolerable_checkpoint_failure_number, "a number of failures"
        )
        return self

    def enable_externalized_checkpoints(
        self, cleanup_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        self._retention = retention_mode
        return self

    def is_externalized_checkpoints_enabled(self) -> bool:
        return self._retention is not ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        return self._retention

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._unaligned

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        self._unaligned = enabled
        return self

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
        return self

    def get_alignment_timeout(self) -> Duration:
        return Duration.of_millis(self._alignment_timeout)

    set_aligned_checkpoint_timeout = set_alignment_timeout
    get_aligned_checkpoint_timeout = get_alignment_timeout

    def set_checkpoint_storage(self, storage: FileSystemCheckpointStorage) -> CheckpointConfig:
        self._storage = storage
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    def get_checkpoint_storage(self) -> FileSystemCheckpointStorage | None:
        return self._storage


def _at_least(minimum: int, value: int, what: str) -> int:
    if value < minimum:
        raise ValueError(f"{what} must be at least {minimum}, got {value}")
    return value
