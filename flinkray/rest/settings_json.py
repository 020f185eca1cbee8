"""Converts a job's settings to the JSON of Flink's REST API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flinkray.core.ids import JobVertexID
from flinkray.rest.errors import bad_request
from flinkray.rest.json_values import milliseconds
from flinkray.rest.requests import Body, vertex_id_of
from flinkray.scheduler.graph.checkpoint_configuration import (
    CheckpointConfiguration,
    CheckpointRetentionPolicy,
)
from flinkray.scheduler.graph.job_graph import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    ParallelismBounds,
    RestartStrategy,
)
from flinkray.scheduler.reports.job_info import JobSettings

NEVER = (1 << 63) - 1
"""Flink's checkpoint interval for checkpoints that are only taken on request."""

_STATE_BACKENDS = {"hashmap": "HashMapStateBackend", "rocksdb": "EmbeddedRocksDBStateBackend"}
"""Flink's name for each value of the option."""


def execution_config(settings: JobSettings) -> dict[str, Any]:
    return {
        "restart-strategy": _restarts(settings.restart_strategy),
        "job-parallelism": max((one.upper for one in settings.bounds), default=1),
        "object-reuse-mode": False,
        "user-config": {},
    }


def _restarts(strategy: RestartStrategy) -> str:
    match strategy:
        case FixedDelayRestart(attempts, delay):
            return f"Restart with fixed delay ({milliseconds(delay)} ms). #{attempts} attempts."
        case FailureRateRestart(failures, interval, delay):
            return (
                f"Failure rate restart with maximum of {failures} failures within interval "
                f"{milliseconds(interval)} ms and fixed delay {milliseconds(delay)} ms."
            )
        case ExponentialDelayRestart():
            number = "" if strategy.attempts is None else f" #{strategy.attempts} attempts."
            return (
                f"Restart with exponential delay: starting at "
                f"{milliseconds(strategy.initial_backoff)} ms, increasing by "
                f"{strategy.backoff_multiplier:g}, with max "
                f"{milliseconds(strategy.max_backoff)} ms.{number}"
            )
        case _:
            return "Restart deactivated."


def checkpoint_config(checkpoints: CheckpointConfiguration, state_backend: str) -> dict[str, Any]:
    """Return the checkpoint settings as JSON; *state_backend* is the value of the option for the
    backend."""
    retention = checkpoints.retention
    return {
        "mode": "exactly_once" if checkpoints.is_exactly_once else "at_least_once",
        "interval": milliseconds(checkpoints.interval, NEVER),
        "timeout": milliseconds(checkpoints.timeout),
        "min_pause": milliseconds(checkpoints.min_pause),
        "max_concurrent": checkpoints.max_concurrent,
        "externalization": {
            "enabled": retention is not CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
            "delete_on_cancellation": (
                retention is not CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION
            ),
        },
        "state_backend": _STATE_BACKENDS.get(state_backend, state_backend),
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": checkpoints.is_unaligned,
        "tolerable_failed_checkpoints": checkpoints.tolerable_failures,
        "aligned_checkpoint_timeout": milliseconds(checkpoints.alignment_timeout),
        "checkpoints_after_tasks_finish": checkpoints.allows_finished_tasks,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": -1,
        "changelog_storage": "none",
    }


def resource_requirements(settings: JobSettings) -> dict[str, Any]:
    return {
        one.vertex_id.hex(): {"parallelism": {"lowerBound": one.lower, "upperBound": one.upper}}
        for one in settings.bounds
    }


def bounds_of(requirements: Body) -> tuple[ParallelismBounds, ...]:
    """Return the parallelism bounds of each vertex in a client's request; a missing lower bound, or
    -1, means 1. Raises RestError: the request is invalid, or empty."""
    wanted: Mapping[JobVertexID, Body] = {
        vertex_id_of(name): of_vertex.part("parallelism")
        for name, of_vertex in requirements.parts().items()
    }
    if not wanted:
        raise bad_request("no vertex is named whose parallelism is to change")
    return tuple(_bounds(vertex, parallelism) for vertex, parallelism in wanted.items())


def _bounds(vertex: JobVertexID, parallelism: Body) -> ParallelismBounds:
    lower, upper = parallelism.number("lowerBound"), parallelism.number("upperBound")
    lower = 1 if lower in (None, -1) else lower
    if lower is None or upper is None or not 1 <= lower <= upper:
        raise bad_request(f"vertex {vertex}: 1 <= lowerBound <= upperBound must hold")
    return ParallelismBounds(vertex, lower, upper)
