"""Reads entries of the first format, which named types by module and fields by position.

Such an entry is converted to the form in which version 1 of its type is stored, and then read like
an entry of version 1. The tables describe the types as they were then, and never change.
"""

from __future__ import annotations

from typing import Any

import msgpack

from flinkray.core.errors import StoredFormatError

_FIELDS = {
    "ArchivedJob": "result details",
    "AttachedClient": "name heartbeat_timeout reason",
    "BlobKey": "digest size",
    "ExceptionEntry": "timestamp text traceback task location concurrent",
    "ExecutionInfo": "subtask_index attempt_number state location executor_actor_id executor_pid "
    "start_time end_time state_timestamps failure io_metrics",
    "ExponentialDelayRestart": "initial_backoff max_backoff backoff_multiplier "
    "reset_backoff_threshold jitter_factor attempts",
    "FailureRateRestart": "max_failures_per_interval interval delay",
    "FixedDelayRestart": "attempts delay",
    "IOMetrics": "records_in records_out bytes_in bytes_out busy_ms back_pressured_ms idle_ms",
    "IntermediateDataSet": "data_set_id result_type",
    "Invokable": "kind code configuration",
    "JobDetails": "job_id name status start_time end_time status_timestamps restarts vertices "
    "pending_reason exceptions worker_group plan",
    "JobEdge": "source pattern ship_strategy",
    "JobFile": "name use content is_directory is_executable",
    "JobGraph": "job_id name vertices restart_strategy job_type scheduler_mode restart_all files "
    "client",
    "JobResult": "job_id name status net_runtime failure failure_traceback result_location "
    "num_rows schema_json cancel_cause",
    "JobVertex": "vertex_id name parallelism slot_profile invokable max_parallelism "
    "min_parallelism slot_sharing_group co_location_group results inputs master_format",
    "ManyExecutions": "size subtasks attempts states locations actor_ids pids start_times "
    "end_times timestamps failures io_metrics",
    "MasterFormat": "code makes_splits finalizes",
    "NoRestart": "",
    "ResourceProfile": "cpu memory extended",
    "StageProgressInfo": "stage_id name num_tasks active_tasks completed_tasks failed_tasks",
    "StoredJob": "graph start_time cancel_requested cancel_cause",
    "TextColumn": "distinct numbers",
    "VertexInfo": "vertex_id name parallelism executions active_stages completed_stages "
    "completed_tasks failed_tasks max_parallelism prior_executions tasks io_metrics measured",
    "WorkerGroupId": "value",
}
"""The field names of each dataclass, in order; the last fields may be missing in an entry."""

_OTHER_NAMES = {"_Texts": "TextColumn"}
"""Schema names that differ from the class names."""

_ID, _MESSAGE = 1, 0


def from_first_format(body: bytes) -> bytes:
    """Return the body of an entry of the first format, converted to a stored record of today's
    format.

    Raises:
        StoredFormatError: *body* is not from such an entry.
    """
    table: dict[tuple[str, int], int] = {}

    def number_of(type_name: str, fields: int) -> int:
        name = type_name.rpartition(":")[2]
        return table.setdefault((_OTHER_NAMES.get(name, name), fields), len(table))

    def from_ext(code: int, data: bytes) -> dict[int, Any]:
        name, _, value = bytes(data).partition(b"\0")
        return {number_of(name.decode(), -1): value if code == _ID else value.decode()}

    def from_map(value: dict[Any, Any]) -> dict[Any, Any]:
        for key in value:
            if type(key) is int:
                if key != _MESSAGE or len(value) != 1:
                    raise ValueError(f"a map with the key {key}")
                name, *values = value[key]
                return {number_of(name, len(values)): values}
        return value

    try:
        record = msgpack.unpackb(
            body, use_list=False, strict_map_key=False, ext_hook=from_ext, object_hook=from_map
        )
        types = [(name, 1, _fields(name, fields)) for name, fields in table]
        data: bytes = msgpack.packb((types, msgpack.packb(record)))
    except (ValueError, TypeError) as error:
        raise StoredFormatError(f"it is no entry of format 1: {error!r}") from error
    return data


def _fields(name: str, number: int) -> tuple[str, ...] | None:
    if number < 0:
        return None
    names = tuple(_FIELDS.get(name, "").split())
    if len(names) < number:
        raise ValueError(f"{name} with {number} fields")
    return names[:number]
