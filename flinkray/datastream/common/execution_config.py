"""How programs are executed."""

from __future__ import annotations

from collections.abc import Mapping

from flinkray.core import options
from flinkray.core.config_option import ConfigOption
from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.core.errors import ConfigurationError

MAX_PARALLELISM = 1 << 15


class ExecutionConfig:
    """How programs of an environment are executed.

    What PyFlink sets for Java's serializers and closures is kept and has no effect: values and
    functions travel pickled.

    >>> config = ExecutionConfig().set_max_parallelism(64).enable_force_kryo()
    >>> config.get_max_parallelism(), config.is_force_kryo_enabled()
    (64, True)
    """

    PARALLELISM_DEFAULT = -1
    """The environment's own."""
    PARALLELISM_UNKNOWN = -2
    """Leaves the parallelism as it is."""

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
        """That of operators that are made from now on and have none of their own."""
        if parallelism < 1 and parallelism not in (
            self.PARALLELISM_DEFAULT,
            self.PARALLELISM_UNKNOWN,
        ):
            raise ValueError(f"parallelism must be at least 1, got {parallelism}")
        if parallelism != self.PARALLELISM_UNKNOWN:
            self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """PARALLELISM_DEFAULT: not set, the environment's default."""
        return self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        """The number of key groups."""
        if not 1 <= max_parallelism <= MAX_PARALLELISM:
            raise ValueError(
                f"max parallelism must be 1 to {MAX_PARALLELISM}, got {max_parallelism}"
            )
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """-1: by the parallelism."""
        return self._max_parallelism

    def enable_auto_generated_uids(self) -> ExecutionConfig:
        """Operators need no ``uid`` (the default)."""
        self._auto_generated_uids = True
        return self

    def disable_auto_generated_uids(self) -> ExecutionConfig:
        """A program with an operator that has no ``uid`` is refused."""
        self._auto_generated_uids = False
        return self

    def has_auto_generated_uids_enabled(self) -> bool:
        """False after :meth:`disable_auto_generated_uids`."""
        return self._auto_generated_uids

    def set_global_job_parameters(
        self, global_job_parameters_dict: Mapping[str, str]
    ) -> ExecutionConfig:
        """What functions read with ``runtime_context.get_job_parameter``."""
        self._job_parameters = dict(global_job_parameters_dict)
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        """A copy of what :meth:`set_global_job_parameters` was given."""
        return dict(self._job_parameters)

    def set_latency_tracking_interval(self, interval: int) -> ExecutionConfig:
        """Latencies are not tracked.

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
        """Always 0: latencies are not tracked."""
        return 0

    def set_task_cancellation_interval(self, interval: int) -> ExecutionConfig:
        """
        Raises:
            ConfigurationError: always; a cluster has one interval for all its jobs.
        """
        raise _of_the_cluster("set_task_cancellation_interval", options.TASK_CANCELLATION_INTERVAL)

    def get_task_cancellation_interval(self) -> int:
        """Milliseconds, of a cluster that sets no other."""
        return round(options.TASK_CANCELLATION_INTERVAL.default * 1000)

    def set_task_cancellation_timeout(self, timeout: int) -> ExecutionConfig:
        """
        Raises:
            ConfigurationError: always; a cluster has one time-out for all its jobs.
        """
        raise _of_the_cluster("set_task_cancellation_timeout", options.TASK_CANCELLATION_TIMEOUT)

    def get_task_cancellation_timeout(self) -> int:
        """Milliseconds, of a cluster that sets no other."""
        return round(options.TASK_CANCELLATION_TIMEOUT.default * 1000)

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> ExecutionConfig:
        """For checkpoints, which are still to come."""
        self._snapshot_compression = use_snapshot_compression
        return self

    def is_use_snapshot_compression(self) -> bool:
        """What :meth:`set_use_snapshot_compression` was given; false by default."""
        return self._snapshot_compression

    # --- without effect -------------------------------------------------------------------------

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

    def enable_closure_cleaner(self) -> ExecutionConfig:
        """The default; Java's closures are meant."""
        self._closure_cleaner = True
        return self

    def disable_closure_cleaner(self) -> ExecutionConfig:
        """See :meth:`enable_closure_cleaner`."""
        self._closure_cleaner = False
        return self

    def is_closure_cleaner_enabled(self) -> bool:
        """False after :meth:`disable_closure_cleaner`."""
        return self._closure_cleaner

    def enable_force_kryo(self) -> ExecutionConfig:
        """Java's objects are meant."""
        self._force_kryo = True
        return self

    def disable_force_kryo(self) -> ExecutionConfig:
        """The default."""
        self._force_kryo = False
        return self

    def is_force_kryo_enabled(self) -> bool:
        """Whether :meth:`enable_force_kryo` was called."""
        return self._force_kryo

    def enable_force_avro(self) -> ExecutionConfig:
        """Java's objects are meant."""
        self._force_avro = True
        return self

    def disable_force_avro(self) -> ExecutionConfig:
        """The default."""
        self._force_avro = False
        return self

    def is_force_avro_enabled(self) -> bool:
        """Whether :meth:`enable_force_avro` was called."""
        return self._force_avro

    def enable_generic_types(self) -> ExecutionConfig:
        """The default."""
        self._generic_types = True
        return self

    def disable_generic_types(self) -> ExecutionConfig:
        """Refuses what only Kryo can write, in Flink; nothing here is written by it."""
        self._generic_types = False
        return self

    def has_generic_types_disabled(self) -> bool:
        """Whether :meth:`disable_generic_types` was called."""
        return not self._generic_types

    def get_default_kryo_serializer_classes(self) -> dict[str, str]:
        """None, since there is no Kryo."""
        return {}

    def get_registered_kryo_types(self) -> list[str]:
        """None, since there is no Kryo."""
        return []

    def get_registered_pojo_types(self) -> list[str]:
        """None, since there are no Java objects."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExecutionConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(sorted(vars(self).items())))


def _of_the_cluster(call: str, option: ConfigOption[float]) -> ConfigurationError:
    return ConfigurationError(
        f"{call}: a program cannot set it; leave it out, and set {option.key} in the configuration "
        "of the cluster"
    )
