"""Makes the JSON of paths that Flink's API lacks: why a job waits, attempts, Spark work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from flinkray.rest.job_json import place_of
from flinkray.rest.times import milliseconds
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.job_info import JobDetails, StageProgressInfo, VertexInfo
from flinkray.scheduler.reports.job_settings import JobSettings


def progress(job: JobDetails, settings: JobSettings | None) -> dict[str, Any]:
    """Return the progress of a job; *settings* is None if they are not known."""
    return {
        "jid": job.job_id.hex(),
        "restarts": job.restarts,
        "failovers": job.failovers,
        "pending-reason": job.pending_reason,
        "warnings": list(job.warnings),
        "is-elastic": settings is not None and settings.is_elastic,
        "vertices": [_spark(vertex) for vertex in job.vertices],
    }


def _spark(vertex: VertexInfo) -> dict[str, Any]:
    return {
        "id": vertex.vertex_id.hex(),
        "spark-executors": sum(
            one.executor_actor_id is not None and not one.state.is_terminal
            for one in vertex.executions
        ),
        "active-stages": [_stage(stage) for stage in vertex.active_stages],
        "completed-stages": vertex.completed_stages,
        "completed-tasks": vertex.completed_tasks,
        "failed-tasks": vertex.failed_tasks,
    }


def _stage(stage: StageProgressInfo) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in asdict(stage).items()}


def attempts(vertex: VertexInfo, now: float) -> dict[str, Any]:
    """Return all attempts of a vertex, by subtask, the oldest attempt of a subtask first."""
    every = sorted(
        (*vertex.prior_executions, *vertex.executions),
        key=lambda one: (one.subtask_index, one.attempt_number),
    )
    return {
        "id": vertex.vertex_id.hex(),
        "name": vertex.name,
        "now": milliseconds(now),
        "attempts": [_attempt(one) for one in every],
    }


def _attempt(execution: ExecutionInfo) -> dict[str, Any]:
    executor, endpoint = place_of(execution.location)
    entered = sorted(execution.state_timestamps.items(), key=lambda item: item[1])
    return {
        "subtask": execution.subtask_index,
        "attempt": execution.attempt_number,
        "status": execution.state.name,
        "taskmanager-id": executor,
        "endpoint": endpoint,
        "timestamps": {state: milliseconds(at) for state, at in entered},
        "failure": execution.failure,
        "spark-executor": _spark_executor(execution),
    }


def _spark_executor(execution: ExecutionInfo) -> dict[str, Any] | None:
    if execution.executor_actor_id is None:
        return None
    return {"actor-id": execution.executor_actor_id, "pid": execution.executor_pid}


def tasks_on(executor: str, jobs: Iterable[JobDetails]) -> dict[str, Any]:
    """Return the tasks on a TaskExecutor; a Spark executor counts as a task of its stage."""
    return {
        "id": executor,
        "tasks": [
            {
                "jid": job.job_id.hex(),
                "name": job.name,
                "vertex": vertex.vertex_id.hex(),
                "vertex-name": vertex.name,
                **_attempt(execution),
            }
            for job in jobs
            for vertex in job.vertices
            for execution in vertex.executions
            if not execution.state.is_terminal and place_of(execution.location)[0] == executor
        ],
    }
