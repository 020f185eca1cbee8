"""Settings of a whole program: parallelism, time, checkpoints, files."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import PurePosixPath
from typing import TypeVar

from flinkray.core.arguments import whole_number
from flinkray.core.errors import ConfigurationError
from flinkray.datastream.checkpoint_config import CheckpointConfig
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.datastream.common.configuration import Configuration
from flinkray.datastream.common.execution_config import ExecutionConfig
from flinkray.datastream.common.restart_strategy import (
    RestartStrategies,
    RestartStrategyConfiguration,
)
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.flink_settings import (
    FLINK_SETTINGS,
    why_without_effect,
    why_without_effect_here,
)
from flinkray.datastream.slot_sharing_group import SlotSharingGroup
from flinkray.datastream.state_backend import StateBackend
from flinkray.datastream.time_characteristic import TimeCharacteristic
from flinkray.scheduler.graph.job_graph import JobFile, JobFileUse
from flinkray.state.backends import STATE_KEYS
from flinkray.streaming.errors import StreamError

logger = logging.getLogger(__name__)

_Self = TypeVar("_Self", bound="EnvironmentSettings")
_default_local_parallelism = 1

DEFAULT_BUFFER_TIMEOUT = 100
"""Default time-out of buffers in milliseconds (Flink's default)."""


class EnvironmentSettings:
    """The settings of a :class:`~flinkray.datastream.StreamExecutionEnvironment`.

    >>> from flinkray.datastream import StreamExecutionEnvironment
    >>> env = StreamExecutionEnvironment.get_execution_environment()
    >>> env.set_parallelism(2).set_default_savepoint_directory("/savepoints").get_parallelism()
    2
    >>> env.get_default_savepoint_directory()
    '/savepoints'
    >>> env.get_checkpointing_consistency_mode().name
    'EXACTLY_ONCE'
    >>> env.is_unaligned_checkpoints_enabled(), env.is_force_unaligned_checkpoints()
    (False, False)
    >>> env.is_chaining_of_operators_with_different_max_parallelism_enabled()
    True
    """

    def __init__(self) -> None:
        self._config = ExecutionConfig()
        self._checkpoint_config = CheckpointConfig()
        self._restart_strategy = RestartStrategies.fall_back_restart()
        self._configuration = Configuration()
        self._parallelism = _default_local_parallelism
        self._buffer_timeout: int | None = None
        """Time-out in milliseconds.
        None: the cluster's, or DEFAULT_BUFFER_TIMEOUT in one process."""
        self._chaining = True
        self._runtime_mode = RuntimeExecutionMode.STREAMING
        self._changelog: bool | None = None
        self._state_backend: StateBackend | None = None
        self._time_characteristic = TimeCharacteristic.EventTime
        self._slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        self._cached_files: dict[str, tuple[str, bool]] = {}
        """Path of each cached file, and whether it is executable, by name."""
        self._python_files: list[str] = []
        self._archives: dict[str, str] = {}
        """Paths of archives, by the directories into which they are unpacked."""
        self._of_no_effect: dict[str, str] = {}
        """Call -> message with which clusters refuse the program because of the call."""
        self._warned_of: set[str] = set()
        """Settings without effect for which a warning was logged."""
        self._savepoint_directory: str | None = None

    def get_config(self) -> ExecutionConfig:
        """Return the ExecutionConfig of this environment. A change of this object changes the
        settings of the environment."""
        return self._config

    def set_parallelism(self: _Self, parallelism: int) -> _Self:
        """Set the default parallelism (number of subtasks) of operators that the program adds from
        now on."""
        parallelism = whole_number(parallelism, "parallelism")
        if parallelism < 1:
            raise ValueError(f"parallelism must be at least 1, got {parallelism}")
        self._config.set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        """Return the default parallelism of operators that the program adds now."""
        parallelism = self._config.get_parallelism()
        return (
            self._parallelism if parallelism == ExecutionConfig.PARALLELISM_DEFAULT else parallelism
        )

    def set_max_parallelism(self: _Self, max_parallelism: int) -> _Self:
        """Set the maximum parallelism of operators. It is also the number of key groups into which
        keyed state is divided."""
        self._config.set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """Return the maximum parallelism. -1: not set, so that it depends on the parallelism."""
        return self._config.get_max_parallelism()

    def set_buffer_timeout(self: _Self, timeout_millis: int) -> _Self:
        """Set how many milliseconds a small batch between tasks may wait for more records.
        0: not at all; -1: until it is full. By default the cluster's
        ``execution.buffer-timeout.interval`` applies."""
        timeout_millis = whole_number(timeout_millis, "a buffer time-out in milliseconds")
        if timeout_millis < -1:
            raise ValueError(f"a buffer time-out must be at least -1, got {timeout_millis}")
        self._buffer_timeout = timeout_millis
        return self

    def get_buffer_timeout(self) -> int:
        """Return the milliseconds that a small batch may wait for more records.
        If the program has not set them: 100, even if the cluster has another default."""
        return DEFAULT_BUFFER_TIMEOUT if self._buffer_timeout is None else self._buffer_timeout

    def set_runtime_mode(self: _Self, execution_mode: RuntimeExecutionMode) -> _Self:
        """Set the mode: STREAMING (the default), BATCH, or AUTOMATIC, which is batch if all sources
        are bounded.

        Raises:
            TypeError: the mode is no RuntimeExecutionMode.
        """
        if not isinstance(execution_mode, RuntimeExecutionMode):
            raise TypeError(
                "set_runtime_mode takes a RuntimeExecutionMode, such as "
                f"RuntimeExecutionMode.BATCH, got {execution_mode!r}"
            )
        self._runtime_mode = execution_mode
        return self

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Set the parallelism with which this environment and new environments run operators for
        which the program sets none."""
        global _default_local_parallelism
        _default_local_parallelism = parallelism
        self._parallelism = parallelism

    def get_default_local_parallelism(self) -> int:
        """Return the parallelism with which new environments run operators for which the program
        sets none."""
        return _default_local_parallelism

    def disable_operator_chaining(self: _Self) -> _Self:
        """Run every operator in a task of its own."""
        self._chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Return false after :meth:`disable_operator_chaining`, else true."""
        return self._chaining

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """Return true: operators share a task whatever their max parallelism."""
        return True

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Return the CheckpointConfig of this environment. A change of this object changes the
        settings of the environment."""
        return self._checkpoint_config

    def enable_checkpointing(
        self: _Self, interval: int, mode: CheckpointingMode | None = None
    ) -> _Self:
        """Take a checkpoint every *interval* milliseconds, at least 10.

        Without a cluster, the program then runs in threads of this process; see docs/datastream.md.

        Args:
            mode: None: exactly once.

        Raises:
            ValueError: the interval is shorter than 10 ms.
        """
        self._checkpoint_config.set_checkpoint_interval(interval)
        if mode is not None:
            self._checkpoint_config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Return the milliseconds between checkpoints. -1: no checkpoints."""
        return self._checkpoint_config.get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """Return what checkpoints guarantee for the results after a failure: exactly once, or at
        least once."""
        return self._checkpoint_config.get_checkpointing_mode()

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        """Return what checkpoints guarantee: exactly once, or at least once. Newer name of
        :meth:`get_checkpointing_mode`."""
        return self.get_checkpointing_mode()

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """Return whether checkpoint barriers overtake records that wait between tasks."""
        return self._checkpoint_config.is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        """Return whether checkpoint barriers overtake records even where this is not known to be
        safe."""
        return self._checkpoint_config.is_force_unaligned_checkpoints()

    def set_restart_strategy(
        self: _Self, restart_strategy_configuration: RestartStrategyConfiguration
    ) -> _Self:
        """Set the restart strategy, on a cluster and for a streaming program in this process.
        From Flink 2.0 on, ``restart-strategy.*`` of the configuration replaces this method."""
        for key in self._configuration.to_dict():
            if key.startswith("restart-strategy."):
                self._configuration.remove_config(key)
        for key, value in restart_strategy_configuration.options.items():
            self._configuration.set_string(key, value)
        self._restart_strategy = restart_strategy_configuration
        return self

    def get_restart_strategy(self) -> RestartStrategyConfiguration:
        """Return the strategy that :meth:`set_restart_strategy` was given last."""
        return self._restart_strategy

    def set_default_savepoint_directory(self: _Self, directory: str) -> _Self:
        """Set the directory of savepoints for which no other directory is given."""
        self._savepoint_directory = directory
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """Return the default directory of savepoints. None: not set."""
        return self._savepoint_directory

    def enable_changelog_state_backend(self: _Self, enabled: bool) -> _Self:
        """Store the setting, which has no effect: checkpoints hold changes anyway.
        A warning in the log says so."""
        if enabled and not self._changelog:
            logger.warning(
                "The changelog state backend is enabled and has no effect: checkpoints hold what "
                "has changed since the one before anyway."
            )
        self._changelog = enabled
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """Return the stored setting. None: not set."""
        return self._changelog

    def set_state_backend(self: _Self, state_backend: StateBackend) -> _Self:
        """Set the backend that keeps state while the program runs, as programs for Flink 1 do.
        For a backend that is no class of this module, a warning in the log says that it has no
        effect."""
        if not isinstance(state_backend, StateBackend):
            raise TypeError(f"a StateBackend is needed, got {state_backend!r}")
        if state_backend.options() is None:
            self._warn_of_state_backend(str(state_backend))
        self._state_backend = state_backend
        return self

    def get_state_backend(self) -> StateBackend | None:
        """Return the backend that :meth:`set_state_backend` was given. None: none."""
        return self._state_backend

    def _warn_of_state_backend(self, name: str) -> None:
        logger.warning(
            "The state backend %s has no effect: state is kept where state.backend.type says, in "
            "memory if it says nothing.",
            name,
        )

    def _state_options(self) -> dict[str, str]:
        """Return the options of the state backend that the program sets, by name."""
        configured = self._configuration.to_dict()
        options = {key: value for key, value in configured.items() if key in STATE_KEYS}
        backend = None if self._state_backend is None else self._state_backend.options()
        return {**options, **(backend or {})}

    def set_stream_time_characteristic(self, characteristic: TimeCharacteristic) -> None:
        """Store the setting of old programs, which has no effect: each window assigner decides
        between event time and processing time."""
        self._time_characteristic = characteristic

    def get_stream_time_characteristic(self) -> TimeCharacteristic:
        """Return the value of :meth:`set_stream_time_characteristic`."""
        return self._time_characteristic

    def configure(self: _Self, configuration: Configuration) -> _Self:
        """Set options by their names in Flink's configuration.

        An option without effect is reported once by a warning in the log.

        Raises:
            ConfigurationError: a value is not accepted.
            TypeError: *configuration* is no Configuration.
        """
        if not isinstance(configuration, Configuration):
            raise TypeError(
                f"a Configuration is needed, got {configuration!r}: "
                "Configuration.from_dict(…) makes one of a dictionary"
            )
        self._configuration.add_all(configuration)
        for key, value in configuration.to_dict().items():
            self._warn_of(key, why_without_effect(key))
            apply = FLINK_SETTINGS.get(key)
            try:
                if apply is not None:
                    apply(self, value)
            except ConfigurationError:
                raise
            except ValueError as error:
                raise ConfigurationError(f"{key} cannot be {value!r}: {error}") from None
        return self

    def _warn_of_settings_without_effect_here(self) -> None:
        """Log a warning for each setting without effect on a program that runs in this process
        without recovery: a batch program, or a program with a clock of its own."""
        settings = {**self._checkpoint_config.job_settings(), **self._configuration.to_dict()}
        for key in settings:
            self._warn_of(key, why_without_effect_here(key, settings))

    def _warn_of(self, key: str, reason: str | None) -> None:
        if reason is not None and key not in self._warned_of:
            self._warned_of.add(key)
            logger.warning("The setting %s has no effect: %s.", key, reason)

    def get_configuration(self) -> Configuration:
        """Return the options that :meth:`configure` and :meth:`set_restart_strategy` have set."""
        return self._configuration

    def register_slot_sharing_group(self: _Self, slot_sharing_group: SlotSharingGroup) -> _Self:
        """Set the resources of the slots in which the group's operators run."""
        self._slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        """Give tasks a copy of a file or directory.

        Functions find the copy by ``runtime_context.get_distributed_cache().get_file(name)``.

        Args:
            executable: whether the copy may be executed.

        Raises:
            JobFileError: there is no such file.
        """
        _expect_to_be_there(file_path)
        self._cached_files[name] = (file_path, executable)

    def add_python_file(self, file_path: str) -> None:
        """Add a module, a zip archive or wheel, or a directory that functions can import from.

        Raises:
            JobFileError: there is no such file.
        """
        _expect_to_be_there(file_path)
        self._python_files.append(file_path)
        is_module = file_path.endswith(".py")
        folder = os.path.dirname(os.path.abspath(file_path)) if is_module else file_path
        if folder not in sys.path:
            sys.path.insert(0, folder)

    def set_python_requirements(
        self, requirements_file_path: str, requirements_cache_dir: str | None = None
    ) -> None:
        """Name the packages that functions need, as a requirements file.

        In this process it has no effect, and a warning in the log says so. Clusters refuse it.

        Raises:
            JobFileError: there is no such file, or no such directory.
        """
        for path in filter(None, (requirements_file_path, requirements_cache_dir)):
            _expect_to_be_there(path)
        self._has_no_effect(
            "set_python_requirements",
            "install the packages with pip in the Python that runs functions, which is this one "
            "or the cluster's, list them in the runtime_env of the cluster's Ray "
            "(ray.init(runtime_env={'pip': [...]})), or give their wheels to add_python_file",
        )

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        """Add a zip or tar archive, to be unpacked in the working directory of tasks on a cluster.

        The archive is unpacked in *target_dir*, by default in a directory named as the file. On
        clusters and in this process, functions also find it by
        ``runtime_context.get_distributed_cache().get_file(target_dir)``.

        Raises:
            ValueError: *target_dir* leads out of the working directory.
            JobFileError: there is no such file, or it is no archive.
        """
        from flinkray.client.job_files import expect_archive

        target = PurePosixPath(target_dir or os.path.basename(archive_path))
        if target.is_absolute() or ".." in target.parts or not target.parts:
            raise ValueError(
                f"an archive is unpacked inside of the working directory of tasks, not in {target}"
            )
        expect_archive(archive_path)
        self._archives[str(target)] = archive_path

    def set_python_executable(self, python_exec: str) -> None:
        """Set the interpreter that runs functions.
        In this process it has no effect, and a warning in the log says so. Clusters refuse it."""
        self._has_no_effect(
            "set_python_executable",
            "functions run in this interpreter, or in the interpreter of the cluster's Ray, which "
            "must be of the same version",
        )

    def _has_no_effect(self, call: str, instead: str) -> None:
        text = f"{call} has no effect in one process, and clusters refuse it: {instead}."
        if call not in self._of_no_effect:
            logger.warning("%s", text)
        self._of_no_effect[call] = text

    def _job_files(self) -> tuple[JobFile, ...]:
        """Return the files that travel with the program to a cluster. Raises StreamError: the
        program has a setting that clusters refuse. JobFileError: a file cannot be read."""
        from flinkray.client.job_files import take_along, take_archive_along

        for text in self._of_no_effect.values():
            raise StreamError(text)
        imported = [
            take_along(path, os.path.basename(path.rstrip("/")), JobFileUse.IMPORT)
            for path in self._python_files
        ]
        cached = [
            take_along(path, name, JobFileUse.CACHE, executable)
            for name, (path, executable) in self._cached_files.items()
        ]
        archives = [
            take_archive_along(path, target_dir) for target_dir, path in self._archives.items()
        ]
        return (*imported, *cached, *archives)


def _expect_to_be_there(path: str) -> None:
    from flinkray.client.job_files import expect_to_be_there  # for fast starts of local programs

    expect_to_be_there(path)
