"""Settings that say how the operators of a program are executed."""

from __future__ import annotations

from collections.abc import Mapping

from flinkray.core.arguments import whole_number
from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import TASK_CANCELLATION_INTERVAL, TASK_CANCELLATION_TIMEOUT

MAX_PARALLELISM = 1 << 15


class ExecutionConfig:
    """Settings for the execution of an environment's programs.

    PyFlink's settings for Java's serializers and closures are stored and have no effect: values and
    functions are pickled here.

    >>> config = ExecutionConfig().set_max_parallelism(64).enable_force_kryo()
    >>> config.get_max_parallelism(), config.is_force_kryo_enabled()
    (64, True)
    """

    PARALLELISM_DEFAULT = -1
    """Parallelism that stands for the environment's own."""
    PARALLELISM_UNKNOWN = -2
    """Parallelism that leaves the present value unchanged."""

    def __init__(self) -> None:
        self._auto_watermark_interval = 200
        self._parallelism = self.PARALLELISM_DEFAULT
        self._max_parallelism = -1
        self._object_reuse = False
        self._auto_generated_uids = True
        self._snapshot_compression = False
        self._closure_cleaner = True
        self._force_kryo = False
        self._force_avro = False
        self._generic_types = True
        self._job_parameters: dict[str, str] = {}
        self._cancellation_interval: int | None = None
        self._cancellation_timeout: int | None = None

    def set_auto_watermark_interval(self, interval: int | Duration | Time) -> ExecutionConfig:
        """Set the processing time in milliseconds between periodic watermarks. 0 turns them off."""
        value = milliseconds(interval)
        if value < 0:
            raise ValueError(f"an interval must not be negative, got {value} ms")
        self._auto_watermark_interval = value
        return self

    def get_auto_watermark_interval(self) -> int:
        """Return the processing time in milliseconds between periodic watermarks."""
        return self._auto_watermark_interval

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        """Set the default parallelism (number of subtasks) of operators that the program adds from
        now on."""
        if parallelism < 1 and parallelism not in (
            self.PARALLELISM_DEFAULT,
            self.PARALLELISM_UNKNOWN,
        ):
            raise ValueError(f"parallelism must be at least 1, got {parallelism}")
        if parallelism != self.PARALLELISM_UNKNOWN:
            self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Return the parallelism that was set here.
        PARALLELISM_DEFAULT: none was set, so the environment's default applies."""
        return self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """Set the maximum parallelism of operators. It is also the number of key groups into which
        keyed state is divided."""
        max_parallelism = whole_number(max_parallelism, "max parallelism")
        if not 1 <= max_parallelism <= MAX_PARALLELISM:
            raise ValueError(
                f"max parallelism must be 1 to {MAX_PARALLELISM}, got {max_parallelism}"
            )
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """Return the maximum parallelism. -1: not set, so that it depends on the parallelism."""
        return self._max_parallelism

    def enable_auto_generated_uids(self) -> ExecutionConfig:
        """Allow operators without a ``uid`` (the default)."""
        self._auto_generated_uids = True
        return self

    def disable_auto_generated_uids(self) -> ExecutionConfig:
        """Refuse a program with an operator that has no ``uid``."""
        self._auto_generated_uids = False
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """Return false after :meth:`disable_auto_generated_uids`, else true."""
        return self._auto_generated_uids

    def set_global_job_parameters(
        self, global_job_parameters_dict: Mapping[str, str]
    ) -> ExecutionConfig:
        """Set the parameters that functions read with ``runtime_context.get_job_parameter``."""
        self._job_parameters = dict(global_job_parameters_dict)
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        """Return a copy of the parameters that :meth:`set_global_job_parameters` was given."""
        return dict(self._job_parameters)

    def set_latency_tracking_interval(self, interval: int) -> ExecutionConfig:
        """Accept only 0, because latencies are not tracked.

        Raises:
            ConfigurationError: *interval* is more than 0.
        """
        if interval > 0:
            raise ConfigurationError(
                f"set_latency_tracking_interval({interval}): latencies are not tracked here; leave "
                "it out, and see how busy and how far behind tasks are with flinkray info"
            )
        return self

    def get_latency_tracking_interval(self) -> int:
        """Return 0, because latencies are not tracked."""
        return 0

    def set_task_cancellation_interval(self, interval: int) -> ExecutionConfig:
        """Set the milliseconds between two interrupts of a cancelled task on a cluster.

        Interrupts are repeated until the task ends.

        Raises:
            ValueError: *interval* is not positive.
        """
        self._cancellation_interval = _positive(interval)
        return self

    def get_task_cancellation_interval(self) -> int:
        """Return the milliseconds between two interrupts of a cancelled task. If the program has
        not set it: the default of clusters."""
        default = round(TASK_CANCELLATION_INTERVAL.default * 1000)
        return self._cancellation_interval or default

    def set_task_cancellation_timeout(self, timeout: int) -> ExecutionConfig:
        """Set the milliseconds after which the process of a cancelled task is killed.

        Raises:
            ValueError: *timeout* is not positive; there is always a time-out.
        """
        self._cancellation_timeout = _positive(timeout)
        return self

    def get_task_cancellation_timeout(self) -> int:
        """Return the milliseconds after which the process of a cancelled task is killed. If the
        program has not set it: the default of clusters."""
        return self._cancellation_timeout or round(TASK_CANCELLATION_TIMEOUT.default * 1000)

    def task_cancellation_settings(self) -> dict[str, str]:
        """Return the options of a job for the cancellation of tasks (interval and time-out) that
        the program has set."""
        times = {
            TASK_CANCELLATION_INTERVAL.key: self._cancellation_interval,
            TASK_CANCELLATION_TIMEOUT.key: self._cancellation_timeout,
        }
        return {key: f"{time} ms" for key, time in times.items() if time is not None}

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> ExecutionConfig:
        """Store the setting for the compression of checkpoints. It has no effect yet."""
        self._snapshot_compression = use_snapshot_compression
        return self

    def is_use_snapshot_compression(self) -> bool:
        """Return the value of :meth:`set_use_snapshot_compression`. Default: false."""
        return self._snapshot_compression

    def enable_object_reuse(self) -> ExecutionConfig:
        """Pass values from operator to operator without copies.
        Functions must not keep values that they have emitted, and must not change values that they
        were given. By default mutable values are copied."""
        self._object_reuse = True
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        """Copy mutable values when they are emitted (the default)."""
        self._object_reuse = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        """Return whether :meth:`enable_object_reuse` was called."""
        return self._object_reuse

    # --- without effect -------------------------------------------------------------------------

    def enable_closure_cleaner(self) -> ExecutionConfig:
        """Store the setting for Flink's closure cleaner as true (the default). It concerns Java and
        has no effect here."""
        self._closure_cleaner = True
        return self

    def disable_closure_cleaner(self) -> ExecutionConfig:
        """Store the setting for Flink's closure cleaner as false. It has no effect here."""
        self._closure_cleaner = False
        return self

    def is_closure_cleaner_enabled(self) -> bool:
        """Return false after :meth:`disable_closure_cleaner`, else true."""
        return self._closure_cleaner

    def enable_force_kryo(self) -> ExecutionConfig:
        """Store the setting for Kryo. It concerns Java's objects and has no effect here."""
        self._force_kryo = True
        return self

    def disable_force_kryo(self) -> ExecutionConfig:
        """Store the setting for Kryo as false (the default)."""
        self._force_kryo = False
        return self

    def is_force_kryo_enabled(self) -> bool:
        """Return whether :meth:`enable_force_kryo` was called."""
        return self._force_kryo

    def enable_force_avro(self) -> ExecutionConfig:
        """Store the setting for Avro. It concerns Java's objects and has no effect here."""
        self._force_avro = True
        return self

    def disable_force_avro(self) -> ExecutionConfig:
        """Store the setting for Avro as false (the default)."""
        self._force_avro = False
        return self

    def is_force_avro_enabled(self) -> bool:
        """Return whether :meth:`enable_force_avro` was called."""
        return self._force_avro

    def enable_generic_types(self) -> ExecutionConfig:
        """Store the setting for generic types as true (the default)."""
        self._generic_types = True
        return self

    def disable_generic_types(self) -> ExecutionConfig:
        """Store the setting for generic types as false. In Flink, types that only Kryo can write
        are then refused; here the setting has no effect."""
        self._generic_types = False
        return self

    def has_generic_types_disabled(self) -> bool:
        """Return whether :meth:`disable_generic_types` was called."""
        return not self._generic_types

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """Return an empty dict: there is no Kryo."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """Return an empty list: there is no Kryo."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """Return an empty list: there are no Java objects."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(sorted(vars(self).items())))


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError(f"a time must be positive, got {value} ms")
    return value
