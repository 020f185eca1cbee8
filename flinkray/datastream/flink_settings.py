"""Settings of an environment by their names in Flink's configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flinkray.datastream.checkpointing_mode import CheckpointingMode
from flinkray.datastream.common.configuration import parse_milliseconds
from flinkray.datastream.execution_mode import RuntimeExecutionMode


def _set_mode(env: Any, value: str) -> None:
    env.set_runtime_mode(RuntimeExecutionMode[value.upper()])


def _set_chaining(env: Any, value: str) -> None:
    if value != "true":
        env.disable_operator_chaining()


def _set_uids(env: Any, value: str) -> None:
    if value != "true":
        env.get_config().disable_auto_generated_uids()


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
    "state.backend.changelog.enabled": lambda env, v: env.enable_changelog_state_backend(
        v == "true"
    ),
    "state.changelog.enabled": lambda env, v: env.enable_changelog_state_backend(v == "true"),
}
"""Flink's names of settings, and what they set."""
