"""Converts a job's checkpoints to the JSON of Flink's REST API."""

from __future__ import annotations

from typing import Any

from flinkray.rest.json_values import milliseconds, summary
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)

_MEASURED = (
    "checkpointed_size",
    "state_size",
    "end_to_end_duration",
    "alignment_buffered",
    "processed_data",
    "persisted_data",
)


def statistics(overview: CheckpointsOverview | None) -> dict[str, Any]:
    """Return the checkpoint statistics of a job as JSON. *overview* None: no JobMaster has reported
    yet, and all counts are 0. The summary covers the completed checkpoints in the history."""
    known = overview or CheckpointsOverview(0, 0, 0, 0, None, None, None, None, ())
    history = [checkpoint(one) for one in known.history]
    completed = [one for one in history if one["className"] == "completed"]
    return {
        "counts": {
            "restored": known.restored,
            "total": known.in_progress + known.completed + known.failed,
            "in_progress": known.in_progress,
            "completed": known.completed,
            "failed": known.failed,
        },
        "summary": {name: summary(one[name] for one in completed) for name in _MEASURED},
        "latest": {
            "completed": _optional(known.latest_completed),
            "savepoint": _optional(known.latest_savepoint),
            "failed": _optional(known.latest_failed),
            "restored": _restored(known),
        },
        "history": history,
    }


def find(overview: CheckpointsOverview | None, checkpoint_id: int) -> CheckpointStatistics | None:
    """Return the report of the checkpoint with this id, from the history or the latest ones of each
    kind. None: the checkpoint is not among them."""
    if overview is None:
        return None
    latest = (overview.latest_completed, overview.latest_savepoint, overview.latest_failed)
    known = (*overview.history, *(one for one in latest if one is not None))
    return next((one for one in known if one.checkpoint_id == checkpoint_id), None)


def checkpoint(it: CheckpointStatistics) -> dict[str, Any]:
    duration = milliseconds(it.duration)
    end = -1 if it.duration is None else it.timestamp + duration
    common = {
        "className": it.status.name.lower(),
        "id": it.checkpoint_id,
        "status": it.status.name,
        "is_savepoint": it.is_savepoint,
        "savepointFormat": "CANONICAL" if it.is_savepoint else None,
        "trigger_timestamp": it.timestamp,
        "latest_ack_timestamp": end,
        "checkpointed_size": it.checkpointed_size,
        "state_size": it.state_size,
        "end_to_end_duration": duration,
        "alignment_buffered": 0,
        "processed_data": 0,
        "persisted_data": 0,
        "num_subtasks": it.number_of_subtasks,
        "num_acknowledged_subtasks": it.acknowledged_subtasks,
        "checkpoint_type": "SAVEPOINT" if it.is_savepoint else "CHECKPOINT",
        "tasks": {},
    }
    match it.status:
        case CheckpointStatus.COMPLETED:
            return {**common, "external_path": it.path, "discarded": it.path is None}
        case CheckpointStatus.FAILED:
            return {**common, "failure_timestamp": end, "failure_message": it.failure}
        case _:
            return common


def _optional(it: CheckpointStatistics | None) -> dict[str, Any] | None:
    return None if it is None else checkpoint(it)


def _restored(overview: CheckpointsOverview) -> dict[str, Any] | None:
    """Return the latest restored checkpoint as JSON, with -1 as the unknown time of the restore.
    None: no checkpoint was restored."""
    if overview.latest_restored is None:
        return None
    found = find(overview, overview.latest_restored)
    return {
        "id": overview.latest_restored,
        "restore_timestamp": -1,
        "is_savepoint": found is not None and found.is_savepoint,
        "external_path": None if found is None else found.path,
    }
