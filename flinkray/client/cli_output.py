"""Formats the output of the command line as text or JSON: tables, a job's details and progress."""

from __future__ import annotations

import json
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum

from flinkray.core.ids import AbstractID, WorkerGroupId
from flinkray.core.resources import format_memory_size
from flinkray.scheduler.reports.checkpoint_statistics import (
    CheckpointsOverview,
    CheckpointStatistics,
    CheckpointStatus,
)
from flinkray.scheduler.reports.execution_info import ExecutionInfo, ExecutionTable
from flinkray.scheduler.reports.job_info import (
    ClusterOverview,
    ExceptionEntry,
    JobDetails,
    JobOverview,
    JobProgress,
    MasterInfo,
    ModelInfo,
    VertexInfo,
)
from flinkray.scheduler.shared.io_metrics import IOMetrics
from flinkray.scheduler.shared.states import ExecutionState, JobStatus


def to_json(value: object, indent: int | None = 2) -> str:
    """Return a value as JSON text: messages as objects, ids as hex texts, enums by name, times in
    seconds since the epoch."""
    return json.dumps(_plain(value), indent=indent)


def _plain(value: object) -> object:
    if isinstance(value, AbstractID):
        return value.hex()
    if isinstance(value, WorkerGroupId):
        return value.value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (tuple, list, ExecutionTable)):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        public = (field.name for field in fields(value) if not field.name.startswith("_"))
        return {name: _plain(getattr(value, name)) for name in public}
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
            ", ".join(f"{number} {state}" for state, number in job.tasks.items()) or "-",
        )
        for job in jobs
    ]
    header = ("JOB ID", "NAME", "STATUS", "STARTED", "DURATION", "TASKS")
    return table(header, rows, terminal_width())


def model_table(models: Sequence[ModelInfo]) -> str:
    if not models:
        return "no models"
    rows = [
        (
            model.name,
            str(model.job_id),
            model.status.name,
            f"{model.running} of {model.fewest}..{model.most}",
            str(model.profile),
            ", ".join(map(str, model.users)) or "-",
        )
        for model in models
    ]
    header = ("MODEL", "JOB ID", "STATUS", "REPLICAS", "EACH", "USED BY")
    return table(header, rows, terminal_width())


def job_details(details: JobDetails, now: float, *, verbose: bool = False) -> str:
    """Return the details of a job as text.

    *verbose*: whether to include tracebacks, and the records and bytes of each subtask.
    """
    end = details.end_time or now
    lines = [
        f"job         {details.job_id}",
        f"name        {details.name}",
        f"status      {details.status.name}",
        f"started     {format_time(details.start_time)}",
        f"duration    {format_seconds(end - details.start_time)}",
        f"restarts    {details.restarts}",
    ]
    if details.failovers:
        lines.append(f"failovers   {_lost_job_masters(details.failovers)}")
    if details.worker_group is not None:
        lines.append(f"group       {details.worker_group} (placement group)")
    if details.pending_reason is not None:
        lines.append(f"waits       {details.pending_reason}")
    lines += (f"warning     {warning}" for warning in details.warnings)
    if details.checkpoints is not None:
        lines += _checkpoints(details.checkpoints, details.end_time, verbose)
    if any(vertex.io_metrics is not None for vertex in details.vertices):
        lines += ["", *_flow(details.vertices)]
    for vertex in details.vertices:
        lines += ["", *_vertex(vertex, verbose)]
    for entry in details.exceptions:
        lines += ["", *_failure(entry, verbose)]
    return "\n".join(map(printable, lines))


def _checkpoints(
    overview: CheckpointsOverview, job_ended: float | None, with_history: bool
) -> list[str]:
    counts = [f"{overview.completed} completed", f"{overview.failed} failed"]
    if overview.in_progress:
        counts.append(f"{overview.in_progress} in progress")
    if overview.restored:
        often = "once" if overview.restored == 1 else f"{overview.restored} times, last"
        counts.append(f"restored {often} from {overview.latest_restored}")
    lines = [f"checkpoints {', '.join(counts)}"]
    latest, savepoint, failed = (
        overview.latest_completed,
        overview.latest_savepoint,
        overview.latest_failed,
    )
    if latest is not None:
        lines.append(f"  latest    {_completed(latest, job_ended)}")
    if savepoint is not None:
        lines.append(f"  savepoint {_completed(savepoint, job_ended)}")
    if failed is not None:
        lines.append(
            f"  failed    {failed.checkpoint_id} at {_triggered(failed)}: {failed.failure}"
        )
    if with_history and overview.history:
        rows = [_history_row(one) for one in overview.history]
        header = ("CHECKPOINT", "KIND", "STATUS", "TRIGGERED", "DURATION", "TASKS", "STATE", "NEW")
        lines += [f"  {line}" for line in table(header, rows, _width_within()).splitlines()]
    return lines


def _triggered(one: CheckpointStatistics) -> str:
    return format_time(one.timestamp / 1000)


def _completed(one: CheckpointStatistics, job_ended: float | None) -> str:
    took = "" if one.duration is None else f", took {format_seconds(one.duration)}"
    size, new = format_memory_size(one.state_size), format_memory_size(one.checkpointed_size)
    where = one.path
    if where is None:
        where = "deleted, as it was not to be retained"
        if job_ended is not None:
            where += f" when the job ended ({format_time(job_ended)})"
    return f"{one.checkpoint_id} at {_triggered(one)}{took}, {size}, {new} of it new: {where}"


def _history_row(one: CheckpointStatistics) -> tuple[str, ...]:
    is_complete = one.status is CheckpointStatus.COMPLETED
    return (
        str(one.checkpoint_id),
        "savepoint" if one.is_savepoint else "checkpoint",
        one.status.name,
        _triggered(one),
        "-" if one.duration is None else format_seconds(one.duration),
        f"{one.acknowledged_subtasks}/{one.number_of_subtasks}",
        format_memory_size(one.state_size) if is_complete else "-",
        format_memory_size(one.checkpointed_size) if is_complete else "-",
    )


def _failure(entry: ExceptionEntry, with_traceback: bool) -> list[str]:
    where = " ".join(part for part in (entry.task, entry.location) if part)
    lines = [f"failure at {format_time(entry.timestamp)}{': ' + where if where else ''}"]
    lines += [f"  {line}" for line in entry.text.splitlines()]
    same_cause: dict[str, list[str]] = {}
    for other in entry.concurrent:
        same_cause.setdefault(other.text, []).append(other.task or "the job")
    for text, tasks in same_cause.items():
        cause = "the same" if text == entry.text else text.partition("\n")[0]
        lines.append(f"  and {', '.join(tasks)}: {cause}")
    if entry.traceback is not None:
        shown = entry.traceback if with_traceback else "traceback: with --verbose"
        lines += [f"  {line}" for line in shown.splitlines()]
    return lines


def _flow(vertices: Sequence[VertexInfo]) -> list[str]:
    rows = [
        (
            _shortened(vertex.name),
            *_io_metrics(vertex.io_metrics),
            f"{vertex.measured}/{vertex.parallelism}",
        )
        for vertex in vertices
    ]
    return table(("VERTEX", *_IO_METRICS, "COUNTED"), rows, terminal_width()).splitlines()


_IO_METRICS = ("RECORDS IN", "BYTES IN", "RECORDS OUT", "BYTES OUT", "BUSY", "BACK-PRESSURED")
_LONGEST_NAME = 40


def _shortened(name: str) -> str:
    return _cut(name, _LONGEST_NAME)


def _io_metrics(metrics: IOMetrics | None) -> tuple[str, ...]:
    """Return the table cells for I/O metrics. "?": no metrics are known; "-": the vertex has no
    such number."""
    if metrics is None:
        return ("?",) * len(_IO_METRICS)
    bytes_in, bytes_out = metrics.bytes_in, metrics.bytes_out
    return (
        "-" if metrics.records_in is None else str(metrics.records_in),
        "-" if bytes_in is None else format_memory_size(bytes_in),
        "-" if metrics.records_out is None else str(metrics.records_out),
        "-" if bytes_out is None else format_memory_size(bytes_out),
        _share(metrics.busy_ms, metrics.elapsed_ms),
        with_held(_share(metrics.back_pressured_ms, metrics.elapsed_ms), metrics.held),
    )


def with_held(back_pressured: str, held: int | None) -> str:
    """Return *back_pressured*, followed by the number of tasks whose source is paused because its
    consumers lag behind, as in ``12%, 3 held``. *held* None or 0: return *back_pressured*
    unchanged."""
    return f"{back_pressured}, {held} held" if held else back_pressured


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "-"


def _vertex(vertex: VertexInfo, verbose: bool) -> list[str]:
    lines = [f"vertex {vertex.name} (parallelism {vertex.parallelism})"]
    if _is_spark_stage(vertex):
        lines.append(f"  {_spark(vertex)}")
    with_flow = verbose and vertex.io_metrics is not None
    rows = [
        (
            str(execution.subtask_index),
            str(execution.attempt_number),
            execution.state.name,
            execution.location or "-",
            _executor(execution),
            *(_io_metrics(execution.io_metrics) if with_flow else ()),
        )
        for execution in vertex.executions
    ]
    if rows:
        header = ("SUBTASK", "ATTEMPT", "STATE", "LOCATION", "EXECUTOR")
        text = table((*header, *(_IO_METRICS if with_flow else ())), rows, _width_within())
        lines += [f"  {line}" for line in text.splitlines()]
    return lines


def _executor(execution: ExecutionInfo) -> str:
    if execution.executor_actor_id is None:
        return "-"
    return f"actor {execution.executor_actor_id} pid {execution.executor_pid}"


def _is_spark_stage(vertex: VertexInfo) -> bool:
    """Return whether the cluster's reports so far show that a vertex is a Spark stage."""
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


def _lost_job_masters(failovers: int) -> str:
    return f"{failovers} JobMaster{'s' if failovers > 1 else ''} lost"


def progress_text(progress: JobProgress) -> str:
    """Return a job's progress as one line: state, reason for waiting, Spark's progress."""
    parts = [progress.status.name]
    if progress.restarts:
        parts.append(f"restart {progress.restarts}")
    if progress.failovers:
        parts.append(_lost_job_masters(progress.failovers))
    if progress.pending_reason is not None:
        parts.append(f"waiting for slots: {progress.pending_reason}")
    for vertex in progress.vertices:
        running = vertex.tasks.get(ExecutionState.RUNNING.name, 0)
        if progress.status is JobStatus.RUNNING and progress.pending_reason is None:
            what = "executors" if vertex.is_spark_stage else f"tasks of {vertex.name}"
            parts.append(f"{running}/{vertex.parallelism} {what}")
        if not running or not vertex.is_spark_stage:
            continue
        parts += [
            f"stage {stage.stage_id}: {stage.completed_tasks}/{stage.num_tasks} tasks"
            for stage in vertex.active_stages
        ]
        parts.append(f"{vertex.completed_stages} stages, {vertex.completed_tasks} tasks done")
    if progress.completed_checkpoints or progress.failed_checkpoints:
        failed = f", {progress.failed_checkpoints} failed" if progress.failed_checkpoints else ""
        parts.append(f"{progress.completed_checkpoints} checkpoints{failed}")
    return printable(" | ".join(parts))


def cluster_overview(cluster_id: str, overview: ClusterOverview) -> str:
    running = sum(not job.status.is_terminal for job in overview.jobs)
    lines = [
        f"cluster     {cluster_id} (flinkray {overview.version}), Ray namespace "
        f"flinkray-{cluster_id}",
        f"dashboard   {overview.dashboard_url or 'none'}",
        f"actors      {list_actors_command(cluster_id)}",
        *map(_master, overview.masters),
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
        lines += [
            "",
            table(("TASK EXECUTOR", "PLACE", "FREE SLOTS", "RESOURCES"), rows, terminal_width()),
        ]
    return "\n".join(lines)


def _master(info: MasterInfo) -> str:
    standbys = f"standing by: {', '.join(info.standbys)}" if info.standbys else "nobody stands by"
    return f"leads       {info.leader} ({standbys})"


def list_actors_command(cluster_id: str) -> str:
    return f"ray list actors --filter ray_namespace=flinkray-{cluster_id} --filter state=ALIVE"


_NARROWEST = 8
"""Least width in characters of a column that is cut to make a table fit."""


def terminal_width() -> int | None:
    """Return the width of the terminal in columns. None: standard output is no terminal, so lines
    of any length may be written."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _width_within() -> int | None:
    """Return the terminal's width less two columns, for a table that is indented by two. None:
    standard output is no terminal."""
    width = terminal_width()
    return None if width is None else width - 2


def table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Format a table as text, with *header* as its first line. If the table is wider than *width*
    columns, the widest columns are cut first. Each column stays wide enough to be read, so the
    table may stay wider than *width*. *width* None: nothing is cut."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(columns_of(row[i]) for row in (header, *rows)) for i in range(len(header))]
    if width is not None:
        named = zip(widths, header, strict=True)
        least = [min(wide, max(len(name), _NARROWEST)) for wide, name in named]
        over = sum(widths) + 2 * (len(widths) - 1) - width
        while over > 0 and (cut := [i for i, now in enumerate(widths) if now > least[i]]):
            widths[max(cut, key=lambda i: widths[i])] -= 1
            over -= 1
    lines = [
        "  ".join(_filled(_cut(cell, wide), wide) for cell, wide in zip(row, widths, strict=True))
        for row in (header, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def printable(line: str) -> str:
    """Return *line* with escapes for characters that would end the line or control the terminal:
    names and failures may contain any text of a program. Tabs stay, because lines of Java's stacks
    begin with tabs."""
    if line.isprintable():
        return line
    return "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in line
    )


def columns_of(text: str) -> int:
    """Return the width in terminal columns: East Asian characters take two, accents none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def beginning(text: str, width: int) -> str:
    """Return the beginning of a text that fits into *width* terminal columns."""
    if text.isascii():
        return text[:width]
    for place, character in enumerate(text):
        width -= _columns(character)
        if width < 0:
            return text[:place]
    return text


def _cut(cell: str, width: int) -> str:
    return cell if columns_of(cell) <= width else f"{beginning(cell, width - 1)}…"


def _filled(cell: str, width: int) -> str:
    return cell + " " * (width - columns_of(cell))


def format_time(timestamp: float) -> str:
    """Format a timestamp in this machine's time zone."""
    return datetime.fromtimestamp(timestamp).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def format_seconds(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
