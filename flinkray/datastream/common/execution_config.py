"""How programs are executed."""

from __future__ import annotations

from collections.abc import Mapping

from flinkray.core.durations import Duration, Time, milliseconds


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
