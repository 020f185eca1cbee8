"""Settings of an environment, by their names in Flink's configuration."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from flinkray.core.client_options import SHUTDOWN_ON_ATTACHED_EXIT
from flinkray.core.errors import ConfigurationError
from flinkray.core.job_options import JOB_KEYS, RESTART_STRATEGY
from flinkray.core.options import OPTIONS
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.datastream.common.configuration import parse_milliseconds
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from flinkray.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)

E = TypeVar("E", bound=Enum)


def _member(kind: type[E], value: str) -> E:
    name = value.upper().replace("-", "_")
    if name not in kind.__members__:
        raise ValueError(f"it must be one of {', '.join(kind.__members__)}")
    return kind[name]


def _set_mode(env: Any, value: str) -> None:
    env.set_runtime_mode(_member(RuntimeExecutionMode, value))


def _is_true(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return value.lower() == "true"


def _set_buffer_timeout(env: Any, value: str) -> None:
    env.set_buffer_timeout(-1 if value == "never" else parse_milliseconds(value))


def _set_chaining(env: Any, value: str) -> None:
    if not _is_true(value):
        env.disable_operator_chaining()


def _set_uids(env: Any, value: str) -> None:
    if not _is_true(value):
        env.get_config().disable_auto_generated_uids()


def _set_object_reuse(env: Any, value: str) -> None:
    config = env.get_config()
    config.enable_object_reuse() if _is_true(value) else config.disable_object_reuse()


def _set_changelog(env: Any, value: str) -> None:
    env.enable_changelog_state_backend(_is_true(value))


def _of_checkpoints(setter: str, parse: Callable[[str], Any]) -> Callable[[Any, str], Any]:
    return lambda env, value: getattr(env.get_checkpoint_config(), setter)(parse(value))


def _set_savepoint_directory(env: Any, value: str) -> None:
    env.set_default_savepoint_directory(value)


def _set_state_backend(env: Any, value: str) -> None:
    backend = _STATE_BACKENDS.get(value.lower())
    if backend is None:
        raise ConfigurationError(
            f"state.backend.type must be one of {', '.join(_STATE_BACKENDS)}, got {value!r}"
        )
    env.set_state_backend(backend())


_STATE_BACKENDS: dict[str, Callable[[], StateBackend]] = {
    "hashmap": HashMapStateBackend,
    "rocksdb": EmbeddedRocksDBStateBackend,
}

FLINK_SETTINGS: dict[str, Callable[[Any, str], Any]] = {
    "execution.buffer-timeout": _set_buffer_timeout,
    "execution.buffer-timeout.interval": _set_buffer_timeout,
    "execution.runtime-mode": _set_mode,
    "execution.checkpointing.interval": lambda env, v: env.enable_checkpointing(
        parse_milliseconds(v)
    ),
    "execution.checkpointing.mode": _of_checkpoints(
        "set_checkpointing_mode", lambda v: _member(CheckpointingMode, v)
    ),
    "execution.checkpointing.timeout": _of_checkpoints(
        "set_checkpoint_timeout", parse_milliseconds
    ),
    "execution.checkpointing.min-pause": _of_checkpoints(
        "set_min_pause_between_checkpoints", parse_milliseconds
    ),
    "execution.checkpointing.max-concurrent-checkpoints": _of_checkpoints(
        "set_max_concurrent_checkpoints", int
    ),
    "execution.checkpointing.tolerable-failed-checkpoints": _of_checkpoints(
        "set_tolerable_checkpoint_failure_number", int
    ),
    "execution.checkpointing.externalized-checkpoint-retention": _of_checkpoints(
        "set_externalized_checkpoint_retention",
        lambda v: _member(ExternalizedCheckpointRetention, v),
    ),
    "execution.checkpointing.unaligned": _of_checkpoints("enable_unaligned_checkpoints", _is_true),
    "execution.checkpointing.unaligned.enabled": _of_checkpoints(
        "enable_unaligned_checkpoints", _is_true
    ),
    "execution.checkpointing.unaligned.forced": _of_checkpoints(
        "set_force_unaligned_checkpoints", _is_true
    ),
    "execution.checkpointing.aligned-checkpoint-timeout": _of_checkpoints(
        "set_aligned_checkpoint_timeout", parse_milliseconds
    ),
    "execution.checkpointing.alignment-timeout": _of_checkpoints(
        "set_aligned_checkpoint_timeout", parse_milliseconds
    ),
    "execution.checkpointing.dir": _of_checkpoints("set_checkpoint_storage_dir", str),
    "execution.checkpointing.savepoint-dir": _set_savepoint_directory,
    "parallelism.default": lambda env, v: env.set_parallelism(int(v)),
    "pipeline.max-parallelism": lambda env, v: env.set_max_parallelism(int(v)),
    "pipeline.auto-watermark-interval": lambda env, v: env.get_config().set_auto_watermark_interval(
        parse_milliseconds(v)
    ),
    "pipeline.auto-generate-uids": _set_uids,
    "pipeline.object-reuse": _set_object_reuse,
    "pipeline.operator-chaining": _set_chaining,
    "pipeline.operator-chaining.enabled": _set_chaining,
    "python.archives": lambda env, v: [
        env.add_python_archive(*archive.split("#")) for archive in v.split(",")
    ],
    "python.executable": lambda env, v: env.set_python_executable(v),
    "python.files": lambda env, v: [env.add_python_file(path) for path in v.split(",")],
    "python.requirements": lambda env, v: env.set_python_requirements(*v.split("#")),
    "state.backend": _set_state_backend,
    "state.backend.type": _set_state_backend,
    "state.backend.changelog.enabled": _set_changelog,
    "state.changelog.enabled": _set_changelog,
    "state.checkpoints.dir": _of_checkpoints("set_checkpoint_storage_dir", str),
    "state.savepoints.dir": _set_savepoint_directory,
    "task.cancellation.interval": lambda env, v: env.get_config().set_task_cancellation_interval(
        parse_milliseconds(v)
    ),
    "task.cancellation.timeout": lambda env, v: env.get_config().set_task_cancellation_timeout(
        parse_milliseconds(v)
    ),
}
"""Flink's name of a setting -> function that applies the setting's value to an environment."""

_READ_WHERE_NEEDED = frozenset(
    {"pipeline.name", "execution.sorted-inputs.memory", SHUTDOWN_ON_ATTACHED_EXIT.key, *JOB_KEYS}
)
"""Settings that have an effect although they are not in the table above."""

_OF_CHECKPOINTS = (
    "execution.checkpointing.",
    "execution.savepoint",
    "state.checkpoint",
    "state.savepoint",
    "state.storage.",
)
"""Beginnings of settings that concern only checkpoints."""


def why_without_effect(key: str) -> str | None:
    """Return why the setting *key* has no effect. None: it has an effect, or the method that
    applies the setting logs the warning itself."""
    if key in JOB_KEYS:
        return None
    if key.startswith(_OF_CHECKPOINTS):
        return "checkpoints do not follow it yet"
    if key in FLINK_SETTINGS or key in _READ_WHERE_NEEDED:
        return None
    if key in OPTIONS:
        return "it is set for a cluster or its client (docs/configuration.md), not for a program"
    known = (*FLINK_SETTINGS, *_READ_WHERE_NEEDED)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    return f"it is not known; the nearest is {near[0]}" if near else "it is not known"


def why_without_effect_here(key: str, settings: Mapping[str, str]) -> str | None:
    """Return why a setting has no effect in a program that runs in this process without recovery: a
    batch program, or a program with a clock of its own. None: the setting may have an effect.
    *settings*: all settings of the program. Only for settings for which :func:`why_without_effect`
    returns None."""
    which = "a program of one process in batch mode, or with a clock of its own,"
    if key.startswith(_OF_CHECKPOINTS):
        return f"{which} takes no checkpoints"
    if not key.startswith("restart-strategy."):
        return None
    if RESTART_STRATEGY.read(settings.get(RESTART_STRATEGY.key)) == "none":
        return None
    return f"{which} ends with its first failure"
