"""Settings of an environment by their names in Flink's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.core.errors import ConfigurationError
from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.datastream.common.configuration import parse_milliseconds
from flinkray.datastream.execution_mode import RuntimeExecutionMode
from flinkray.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StateBackend,
)


def _set_mode(env: Any, value: str) -> None:
    env.set_runtime_mode(RuntimeExecutionMode[value.upper()])


def _set_chaining(env: Any, value: str) -> None:
    if value != "true":
        env.disable_operator_chaining()


def _set_uids(env: Any, value: str) -> None:
    if value != "true":
        env.get_config().disable_auto_generated_uids()


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
    "execution.buffer-timeout": lambda env, v: env.set_buffer_timeout(parse_milliseconds(v)),
    "execution.buffer-timeout.interval": lambda env, v: env.set_buffer_timeout(
        parse_milliseconds(v)
    ),
    "execution.runtime-mode": _set_mode,
    "execution.checkpointing.interval": lambda env, v: env.enable_checkpointing(
        parse_milliseconds(v)
    ),
    "execution.checkpointing.mode": lambda env, v: (
        env.get_checkpoint_config().set_checkpointing_mode(
            CheckpointingMode[v.upper().replace("-", "_")]
        )
    ),
    "parallelism.default": lambda env, v: env.set_parallelism(int(v)),
    "pipeline.max-parallelism": lambda env, v: env.set_max_parallelism(int(v)),
    "pipeline.auto-watermark-interval": lambda env, v: env.get_config().set_auto_watermark_interval(
        parse_milliseconds(v)
    ),
    "pipeline.auto-generate-uids": _set_uids,
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
    "state.backend.changelog.enabled": lambda env, v: env.enable_changelog_state_backend(
        v == "true"
    ),
    "state.changelog.enabled": lambda env, v: env.enable_changelog_state_backend(v == "true"),
}
"""Flink's names of settings, and what they set."""
