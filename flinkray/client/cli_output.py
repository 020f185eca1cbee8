"""What the command line shows: tables, a job's details, progress; and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum

from flinkray.core.ids import AbstractID, WorkerGroupId
from flinkray.scheduler.cluster_partitions import ClusterDataSet
from flinkray.scheduler.execution_info import ExecutionInfo
from flinkray.scheduler.job_info import (
    ClusterOverview,
    JobDetails,
    JobOverview,
    VertexInfo,
)
from flinkray.scheduler.many_executions import ManyExecutions
from flinkray.scheduler.states import ExecutionState, JobStatus


def to_json(value: object) -> str:
    """Messages as objects, ids as hex texts, enums by name, times as seconds since the epoch."""
    return json.dumps(_plain(value), indent=2)


def _plain(value: object) -> object:
    if isinstance(value, AbstractID):
        return value.hex()
    if isinstance(value, WorkerGroupId):
        return value.value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (tuple, list, ManyExecutions)):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def job_table(jobs: Sequence[JobOverview], now: float) -> str:
    if not jobs:
        return "no jobs"
    rows = [
        (
            str(job.job_id),
            job.name,
            job.status.name,
            format_time(job.start_time),
            format_seconds((job.end_time or now) - job.start_time),
        )
        for job in jobs
    ]
    return table(("JOB ID", "NAME", "STATUS", "STARTED", "DURATION"), rows)


def data_set_table(data_sets: Sequence[ClusterDataSet]) -> str:
    if not data_sets:
        return "no persistent results"
    rows = [(str(one.data_set_id), str(one.number_of_partitions)) for one in data_sets]
    return table(("DATA SET ID", "PARTITIONS"), rows)


def job_details(details: JobDetails, now: float) -> str:
    end = details.end_time or now
    lines = [
        f"job         {details.job_id}",
        f"name        {details.name}",
        f"status      {details.status.name}",
        f"started     {format_time(details.start_time)}",
        f"duration    {format_seconds(end - details.start_time)}",
        f"restarts    {details.restarts}",
    ]
    if details.worker_group is not None:
        lines.append(f"group       {details.worker_group} (placement group)")
    if details.pending_reason is not None:
        lines.append(f"waits       {details.pending_reason}")
    for vertex in details.vertices:
        lines += ["", *_vertex(vertex)]
    for entry in details.exceptions:
        where = " ".join(part for part in (entry.task, entry.location) if part)
        lines += ["", f"failure at {format_time(entry.timestamp)}{': ' + where if where else ''}"]
        lines += [f"  {line}" for line in entry.text.splitlines()]
        for other in entry.concurrent:
            who = f"{other.task}: " if other.task else ""
            lines.append(f"  and {who}{other.text.partition(chr(10))[0]}")
    return "\n".join(lines)


def _vertex(vertex: VertexInfo) -> list[str]:
    lines = [f"vertex {vertex.name} (parallelism {vertex.parallelism})"]
    if _is_spark_stage(vertex):
        lines.append(f"  {_spark(vertex)}")
    rows = [
        (
            str(execution.subtask_index),
            str(execution.attempt_number),
            execution.state.name,
            execution.location or "-",
            _executor(execution),
        )
        for execution in vertex.executions
    ]
    if rows:
        text = table(("SUBTASK", "ATTEMPT", "STATE", "LOCATION", "EXECUTOR"), rows)
        lines += [f"  {line}" for line in text.splitlines()]
    return lines


def _executor(execution: ExecutionInfo) -> str:
    if execution.executor_actor_id is None:
        return "-"
    return f"actor {execution.executor_actor_id} pid {execution.executor_pid}"


def _is_spark_stage(vertex: VertexInfo) -> bool:
    """As far as can be told by now."""
    has_executors = any(execution.executor_actor_id for execution in vertex.executions)
    return bool(has_executors or vertex.active_stages or vertex.completed_stages)


def _spark(vertex: VertexInfo) -> str:
    done = f"Spark: {vertex.completed_stages} stages and {vertex.completed_tasks} tasks done"
    if vertex.failed_tasks:
        done += f", {vertex.failed_tasks} tasks failed"
    stages = [
        f"stage {stage.stage_id} {stage.completed_tasks}/{stage.num_tasks} ({stage.name})"
        for stage in vertex.active_stages
    ]
    return "; ".join([done, *stages])


def progress_text(details: JobDetails) -> str:
    """One line: state, why the job waits, what Spark does."""
    parts = [details.status.name]
    if details.restarts:
        parts.append(f"restart {details.restarts}")
    if details.pending_reason is not None:
        parts.append(f"waiting for slots: {details.pending_reason}")
    for vertex in details.vertices:
        running = sum(e.state is ExecutionState.RUNNING for e in vertex.executions)
        if details.status is JobStatus.RUNNING and details.pending_reason is None:
            what = "executors" if _is_spark_stage(vertex) else f"tasks of {vertex.name}"
            parts.append(f"{running}/{vertex.parallelism} {what}")
        if not running or not _is_spark_stage(vertex):
            continue
        parts += [
            f"stage {stage.stage_id}: {stage.completed_tasks}/{stage.num_tasks} tasks"
            for stage in vertex.active_stages
        ]
        parts.append(f"{vertex.completed_stages} stages, {vertex.completed_tasks} tasks done")
    return " | ".join(parts)


def cluster_overview(cluster_id: str, overview: ClusterOverview) -> str:
    running = sum(not job.status.is_terminal for job in overview.jobs)
    lines = [
        f"cluster     {cluster_id} (flinkray {overview.version}), Ray namespace "
        f"flinkray-{cluster_id}",
        f"dashboard   {overview.dashboard_url or 'none'}",
        f"actors      {list_actors_command(cluster_id)}",
        f"jobs        {running} running, {len(overview.jobs) - running} ended",
        f"slots       {overview.slots_available} free of {overview.slots_total}",
        f"resources   {overview.cluster_available} free of {overview.cluster_total}",
    ]
    rows = [
        (
            str(info.location.resource_id),
            f"{info.location.node_ip} bundle {info.location.bundle_index}",
            f"{info.free_slots}/{info.number_of_slots}",
            str(info.total_profile),
        )
        for info in overview.task_executors
    ]
    if rows:
        lines += ["", table(("TASK EXECUTOR", "PLACE", "FREE SLOTS", "RESOURCES"), rows)]
    return "\n".join(lines)


def list_actors_command(cluster_id: str) -> str:
    return f"ray list actors --filter ray_namespace=flinkray-{cluster_id} --filter state=ALIVE"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)


def format_time(timestamp: float) -> str:
    """In this machine's time zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def format_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
