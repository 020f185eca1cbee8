"""Converts jobs, vertices, subtasks and attempts to the JSON of Flink's REST API."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from flinkray.rest.errors import failure_cause
from flinkray.rest.json_values import NOT_YET, STATES, distribution, milliseconds, state_counts
from flinkray.scheduler.reports.execution_info import ExecutionInfo
from flinkray.scheduler.reports.job_info import (
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobResult,
    JobSettings,
    StageProgressInfo,
    VertexInfo,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics, total
from flinkray.scheduler.shared.states import ExecutionState, JobStatus

UNASSIGNED = "(unassigned)"

_LOCATION = re.compile(r"(?P<executor>\S+) bundle \d+ on (?P<node>\S+)")
_ERROR_NAME = re.compile(r"[A-Za-z_][\w.]*")

_APPLICATION_STATUS = {
    JobStatus.FINISHED: "SUCCEEDED",
    JobStatus.FAILED: "FAILED",
    JobStatus.CANCELED: "CANCELED",
}


# --- jobs -----------------------------------------------------------------------------------------


def ids_with_status(jobs: Iterable[JobOverview]) -> dict[str, Any]:
    return {"jobs": [{"id": job.job_id.hex(), "status": job.status.name} for job in jobs]}


def overviews(jobs: Iterable[JobOverview], now: float) -> dict[str, Any]:
    return {"jobs": [_overview(job, now) for job in jobs]}


def _overview(job: JobOverview, now: float) -> dict[str, Any]:
    end = job.end_time
    counts = state_counts(job.tasks)
    return {
        "jid": job.job_id.hex(),
        "name": job.name,
        "start-time": milliseconds(job.start_time),
        "end-time": milliseconds(end),
        "duration": _duration(job.start_time, end, now),
        "state": job.status.name,
        "last-modification": milliseconds(job.last_modified or end or job.start_time),
        "tasks": {
            "total": sum(counts.values()),
            **{name.lower(): count for name, count in counts.items()},
        },
        "pending-operators": 0,
    }


def details(job: JobDetails, now: float) -> dict[str, Any]:
    plan_of_job = plan(job)
    statuses = [vertex_status(vertex.tasks, vertex.parallelism) for vertex in job.vertices]
    return {
        "jid": job.job_id.hex(),
        "name": job.name,
        "isStoppable": False,
        "state": job.status.name,
        "job-type": plan_of_job.get("type", "STREAMING"),
        "start-time": milliseconds(job.start_time),
        "end-time": milliseconds(job.end_time),
        "duration": _duration(job.start_time, job.end_time, now),
        "maxParallelism": -1,
        "now": milliseconds(now),
        "timestamps": {
            status.name: milliseconds(job.status_timestamps.get(status.name), 0)
            for status in JobStatus
        },
        "vertices": [_vertex(vertex, job, now) for vertex in job.vertices],
        "status-counts": state_counts(Counter(statuses)),
        "pending-operators": 0,
        "plan": plan_of_job,
    }


def plan(job: JobDetails) -> dict[str, Any]:
    """Return the plan of a job as JSON; without nodes before a JobMaster has reported the plan."""
    if job.plan:
        told: dict[str, Any] = json.loads(job.plan)
        return told
    return {"jid": job.job_id.hex(), "name": job.name, "type": "STREAMING", "nodes": []}


def execution_result(result: JobResult | None) -> dict[str, Any]:
    """Return the JSON of a job's result. *result* None: the job has none yet, and the JSON says
    that it is in progress."""
    if result is None or not result.status.is_globally_terminal:
        return {"status": {"id": "IN_PROGRESS"}}
    of_job: dict[str, Any] = {
        "id": result.job_id.hex(),
        "application-status": _APPLICATION_STATUS[result.status],
        "accumulator-results": {},
        "net-runtime": milliseconds(result.net_runtime),
    }
    if result.failure is not None:
        of_job["failure-cause"] = failure_cause(result.failure, result.failure_traceback)
    return {"status": {"id": "COMPLETED"}, "job-execution-result": of_job}


def exceptions(job: JobDetails, most: int) -> dict[str, Any]:
    """Return the newest *most* exceptions of a job as JSON, newest first."""
    newest_first = job.exceptions[::-1]
    return {
        "exceptionHistory": {
            "entries": [_exception(entry) for entry in newest_first[:most]],
            "truncated": len(newest_first) > most,
        }
    }


def _exception(entry: ExceptionEntry) -> dict[str, Any]:
    executor, endpoint = place_of(entry.location)
    return {
        "exceptionName": _name(entry),
        "stacktrace": entry.traceback or entry.text,
        "timestamp": milliseconds(entry.timestamp),
        "failureLabels": {},
        "taskName": entry.task,
        "endpoint": None if entry.location is None else endpoint,
        "taskManagerId": None if entry.location is None else executor,
        "concurrentExceptions": [_exception(other) for other in entry.concurrent],
    }


def _name(entry: ExceptionEntry) -> str:
    """Return the type of an error: the name before the colon at the beginning of its text, or of
    the last line of its traceback. If neither line begins with such a name, return the whole
    text."""
    last = (entry.traceback or "").rstrip().rpartition("\n")[2]
    for line in (entry.text, last):
        name, colon, _ = line.partition(":")
        if colon and _ERROR_NAME.fullmatch(name):
            return name
    return entry.text


# --- vertices -------------------------------------------------------------------------------------


def vertex_status(tasks: Mapping[str, int], number: int) -> str:
    """Return the state of a vertex with *number* subtasks. *tasks*: number of subtasks in each
    state. As in Flink: the first of FAILED, CANCELING, CANCELED, INITIALIZING, RUNNING that a
    subtask has. Otherwise FINISHED if all subtasks have finished, RUNNING if only some have, and
    CREATED if none has."""
    for state in ("FAILED", "CANCELING", "CANCELED", "INITIALIZING", "RUNNING"):
        if tasks.get(state):
            return state
    if tasks.get("FINISHED"):
        return "FINISHED" if tasks["FINISHED"] == number else "RUNNING"
    return "CREATED"


def _vertex(vertex: VertexInfo, job: JobDetails, now: float) -> dict[str, Any]:
    metrics, measured = vertex.io_metrics, vertex.measured
    return {
        "id": vertex.vertex_id.hex(),
        "name": vertex.name,
        "maxParallelism": -1 if vertex.max_parallelism is None else vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": vertex_status(vertex.tasks, vertex.parallelism),
        **_run(vertex.executions, job, now),
        "tasks": state_counts(vertex.tasks),
        "metrics": io_metrics(metrics, is_complete=measured >= vertex.parallelism),
    }


def _run(executions: Iterable[ExecutionInfo], job: JobDetails, now: float) -> dict[str, int]:
    """Return start time, end time and duration of *executions* together, as JSON in milliseconds.
    The start is the first deployment. The end is the end of the last execution, or of the job if an
    execution has not ended."""
    every = tuple(executions)
    starts = [at for one in every if (at := one.state_timestamps.get("DEPLOYING")) is not None]
    start = min(starts, default=None)
    ends = [one.end_time for one in every if one.state.is_terminal and one.end_time is not None]
    end = max(ends) if ends and len(ends) == len(every) else job.end_time
    return {
        "start-time": milliseconds(start),
        "end-time": NOT_YET if start is None else milliseconds(end),
        "duration": NOT_YET if start is None else _duration(start, end, now),
    }


def io_metrics(metrics: IOMetrics | None, *, is_complete: bool) -> dict[str, Any]:
    """Return I/O metrics as JSON in Flink's form; unknown numbers are 0. *is_complete* becomes the
    ``…-complete`` fields, which say whether all tasks have reported."""
    known = metrics or IOMetrics(0, 0, 0, 0, 0, 0, 0)
    return {
        "read-bytes": known.bytes_in or 0,
        "read-bytes-complete": is_complete,
        "write-bytes": known.bytes_out or 0,
        "write-bytes-complete": is_complete,
        "read-records": known.records_in or 0,
        "read-records-complete": is_complete,
        "write-records": known.records_out or 0,
        "write-records-complete": is_complete,
        "accumulated-backpressured-time": known.back_pressured_ms,
        "accumulated-idle-time": known.idle_ms,
        "accumulated-busy-time": float(known.busy_ms),
    }


def vertex_details(vertex: VertexInfo, now: float) -> dict[str, Any]:
    return {
        "id": vertex.vertex_id.hex(),
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": -1 if vertex.max_parallelism is None else vertex.max_parallelism,
        "now": milliseconds(now),
        "subtasks": [subtask(execution, now) for execution in vertex.executions],
        "aggregated": _aggregated(vertex.executions, now),
    }


def subtask(execution: ExecutionInfo, now: float) -> dict[str, Any]:
    executor, endpoint = place_of(execution.location)
    start = milliseconds(execution.state_timestamps.get("DEPLOYING"))
    return {
        "subtask": execution.subtask_index,
        "status": execution.state.name,
        "attempt": execution.attempt_number,
        "endpoint": endpoint,
        "start-time": start,
        "end-time": _end(execution),
        "duration": _time_of(execution, now),
        "metrics": io_metrics(execution.io_metrics, is_complete=execution.io_metrics is not None),
        "taskmanager-id": executor,
        "status-duration": _status_durations(execution, now),
        "start_time": start,
    }


def _end(execution: ExecutionInfo) -> int:
    return milliseconds(execution.end_time if execution.state.is_terminal else None)


def _time_of(execution: ExecutionInfo, now: float) -> int:
    """Return the milliseconds from the deployment of an execution to its end, or to *now* if it has
    not ended. -1: it was not deployed yet."""
    start = execution.state_timestamps.get("DEPLOYING")
    end = execution.end_time if execution.state.is_terminal else None
    return NOT_YET if start is None else _duration(start, end, now)


def _status_durations(execution: ExecutionInfo, now: float) -> dict[str, int]:
    """Return the milliseconds that an execution has spent in each state up to *now*, without
    terminal states."""
    entered = sorted(
        ((at, name) for name, at in execution.state_timestamps.items()),
        key=lambda item: (item[0], STATES.index(item[1])),
    )
    left = [at for at, _ in entered[1:]] + [now]
    return {
        name: _duration(at, until, now)
        for (at, name), until in zip(entered, left, strict=True)
        if not ExecutionState[name].is_terminal
    }


def _aggregated(executions: Iterable[ExecutionInfo], now: float) -> dict[str, Any]:
    numbers: defaultdict[str, list[float]] = defaultdict(list)
    durations: defaultdict[str, list[float]] = defaultdict(list)
    for execution in executions:
        metrics = io_metrics(execution.io_metrics, is_complete=True)
        for name, value in metrics.items():
            if not name.endswith("-complete"):
                numbers[name].append(value)
        for name, duration in _status_durations(execution, now).items():
            durations[name].append(duration)
    return {
        "metrics": {name: distribution(values) for name, values in numbers.items()},
        "status-duration": {name: distribution(values) for name, values in durations.items()},
    }


def subtask_times(vertex: VertexInfo, now: float) -> dict[str, Any]:
    return {
        "id": vertex.vertex_id.hex(),
        "name": vertex.name,
        "now": milliseconds(now),
        "subtasks": [
            {
                "subtask": execution.subtask_index,
                "endpoint": place_of(execution.location)[1],
                "duration": _time_of(execution, now),
                "timestamps": {
                    state: milliseconds(execution.state_timestamps.get(state), 0)
                    for state in STATES
                },
            }
            for execution in vertex.executions
        ],
    }


def vertex_task_managers(vertex: VertexInfo, job: JobDetails, now: float) -> dict[str, Any]:
    """Return the subtasks of a vertex as JSON, grouped by the TaskExecutors on which they run."""
    by_executor: defaultdict[str, list[ExecutionInfo]] = defaultdict(list)
    for execution in vertex.executions:
        by_executor[place_of(execution.location)[0]].append(execution)
    return {
        "id": vertex.vertex_id.hex(),
        "name": vertex.name,
        "now": milliseconds(now),
        "taskmanagers": [
            _on_executor(executor, executions, job, now)
            for executor, executions in by_executor.items()
        ],
    }


def _on_executor(
    executor: str, executions: list[ExecutionInfo], job: JobDetails, now: float
) -> dict[str, Any]:
    counts = Counter(execution.state.name for execution in executions)
    measured = [it.io_metrics for it in executions if it.io_metrics is not None]
    is_complete = len(measured) == len(executions)
    return {
        "endpoint": place_of(executions[0].location)[1],
        "taskmanager-id": executor,
        "status": vertex_status(counts, len(executions)),
        **_run(executions, job, now),
        "metrics": io_metrics(total(measured), is_complete=is_complete),
        "status-counts": state_counts(counts),
        "aggregated": _aggregated(executions, now),
    }


def place_of(location: str | None) -> tuple[str, str]:
    """Return (id of the TaskExecutor, its host) for a task's location, or UNASSIGNED for both."""
    found = None if location is None else _LOCATION.fullmatch(location)
    if found is None:
        return UNASSIGNED, UNASSIGNED
    return found["executor"], found["node"]


def _duration(start: float, end: float | None, now: float) -> int:
    return max(0, milliseconds(now if end is None else end) - milliseconds(start))


def progress(job: JobDetails, settings: JobSettings | None) -> dict[str, Any]:
    """Return the progress of a job as JSON: restarts, failovers, reason for waiting, warnings, and
    the progress of Spark stages. *settings* None: the job's settings are not known, and the JSON
    says that the job is not elastic."""
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
    """Return all attempts of a vertex's subtasks as JSON, ordered by subtask, then from the oldest
    attempt to the newest."""
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
    """Return the tasks that run on a TaskExecutor, as JSON; a Spark executor counts as a task of
    its stage."""
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
