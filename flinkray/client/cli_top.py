"""``flinkray top``: what goes through the vertices of all running jobs, again and again."""

from __future__ import annotations

import math
import shutil
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import JOB_ID_OR_ALL, JSON, common, connected, job_of
from flinkray.client.cli_settings import note
from flinkray.core.errors import JobNotFoundError
from flinkray.core.ids import JobID, JobVertexID
from flinkray.scheduler.reports.job_info import JobDetails, VertexInfo
from flinkray.scheduler.shared.io_metrics import IOMetrics

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 86400.0
"""Shortest and longest time between two views, in seconds."""
_CLEAR = "\x1b[H\x1b[J"
"""Escape sequence that clears the terminal and moves to its upper left corner."""


@dataclass(frozen=True)
class VertexRates:
    """Rates of one vertex between two :class:`Look` objects."""

    job_id: JobID
    job: str
    vertex: str
    parallelism: int
    running: int
    records_in: float | None
    """Records read per second.

    None: the vertex reads from no other vertex, or the number is unknown.
    """
    records_out: float | None
    busy: float | None
    """Busy part of the time of the vertex's tasks, 0 to 1."""
    back_pressured: float | None
    held: int | None
    """Number of tasks that do not read because Spark is behind. None: no task can be held."""


@dataclass(frozen=True)
class Look:
    """The details of all running jobs at one time. The rates of a vertex are computed from two
    looks."""

    at: float
    """Time of the look, in seconds of a monotonic clock."""
    jobs: tuple[JobDetails, ...]


def rates(before: Look | None, now: Look) -> list[VertexRates]:
    """Return the rates of all vertices of *now* since *before*. The rates of a vertex are None if
    *before* is None or does not have the vertex, or if the vertex's tasks have restarted in
    between. Ended jobs must have been left out of *now*."""
    earlier: dict[tuple[JobID, JobVertexID], IOMetrics] = {}
    for job in before.jobs if before is not None else ():
        for vertex in job.vertices:
            if vertex.io_metrics is not None:
                earlier[job.job_id, vertex.vertex_id] = vertex.io_metrics
    passed = now.at - before.at if before is not None else 0.0
    return [
        _rates(job, vertex, earlier.get((job.job_id, vertex.vertex_id)), passed)
        for job in now.jobs
        for vertex in job.vertices
    ]


def _rates(
    job: JobDetails, vertex: VertexInfo, before: IOMetrics | None, passed: float
) -> VertexRates:
    now = vertex.io_metrics
    records_in = records_out = busy = back_pressured = None
    if before is not None and now is not None and passed > 0:
        records_in = _per_second(before.records_in, now.records_in, passed)
        records_out = _per_second(before.records_out, now.records_out, passed)
        elapsed = now.elapsed_ms - before.elapsed_ms
        if elapsed > 0:
            busy = _part(now.busy_ms - before.busy_ms, elapsed)
            back_pressured = _part(now.back_pressured_ms - before.back_pressured_ms, elapsed)
    return VertexRates(
        job.job_id,
        job.name,
        vertex.name,
        vertex.parallelism,
        vertex.tasks.get("RUNNING", 0)
        or sum(execution.state.name == "RUNNING" for execution in vertex.executions),
        records_in,
        records_out,
        busy,
        back_pressured,
        None if now is None else now.held,
    )


def _per_second(before: int | None, now: int | None, passed: float) -> float | None:
    if before is None or now is None or now < before:
        return None
    return (now - before) / passed


def _part(part: int, whole: int) -> float | None:
    return min(part / whole, 1.0) if part >= 0 else None


_HEADER = ("JOB", "VERTEX", "RUNNING", "IN/S", "OUT/S", "BUSY", "BACK-PRESSURED")


def as_table(found: list[VertexRates], width: int | None) -> str:
    """Format the rates as a table with a line for each vertex. *width*: width of the terminal."""
    if not found:
        return "no job is running"
    rows = [
        (
            f"{one.job_id.hex()[:8]} {one.job}",
            one.vertex,
            f"{one.running}/{one.parallelism}",
            _count(one.records_in),
            _count(one.records_out),
            _percent(one.busy),
            cli_output.with_held(_percent(one.back_pressured), one.held),
        )
        for one in found
    ]
    return cli_output.table(_HEADER, rows, width)


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.0f}%"


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not _SHORTEST_INTERVAL <= seconds <= _LONGEST_INTERVAL:
        raise click.BadParameter(
            f"{text!r} is no number from {_SHORTEST_INTERVAL:g} to {_LONGEST_INTERVAL:g}"
        )
    return seconds


@click.command()
@JOB_ID_OR_ALL
@click.option(
    "--interval",
    type=_interval,
    default=2.0,
    show_default=True,
    help="Seconds between two views.",
)
@click.option(
    "--count", type=click.IntRange(min=1), help="Number of views.  Default: until Ctrl-C."
)
@JSON
@common
def top(
    job: str | None,
    interval: float,
    count: int | None,
    as_json: bool,
    address: str | None,
    cluster_id: str,
) -> None:
    """Show records per second, busy time and back-pressure of running jobs, until Ctrl-C.

    One line per vertex of the job, or of all running jobs.  On a terminal the view is updated in
    place; elsewhere one view follows the other.  With --json each view is one line.
    """
    with connected(address, cluster_id) as client:
        job_id = None if job is None else job_of(client, job)
        look: Look | None = None
        done = 0
        try:
            while count is None or done < count:
                before, look = look, _look(client, job_id)
                is_live = sys.stdout.isatty() and not as_json
                if before is not None or is_live:
                    _show(rates(before, look), as_json=as_json, is_live=is_live)
                    done += before is not None
                if job_id is not None and look.jobs[0].status.is_terminal:
                    note(f"job {job_id} has ended: {look.jobs[0].status.name}")
                    return
                if count is None or done < count:
                    threading.Event().wait(interval)
        except KeyboardInterrupt:
            return  # the user ends the command in this way


def _show(found: list[VertexRates], *, as_json: bool, is_live: bool) -> None:
    if as_json:
        click.echo(cli_output.to_json(found, indent=None))
        return
    clock = time.strftime("%H:%M:%S")
    if not is_live:
        click.echo(f"{clock}\n{as_table(found, None)}")
        return
    columns, lines = shutil.get_terminal_size()
    shown = [f"flinkray top  {clock}  (Ctrl-C ends it)", *as_table(found, columns).splitlines()]
    if len(shown) >= lines:
        hidden = len(shown) - lines + 2
        shown = [*shown[: lines - 2], f"… {hidden} more"]
    click.echo(_CLEAR + "\n".join(shown))


def _look(client: ClusterClient, job_id: JobID | None) -> Look:
    if job_id is not None:
        return Look(time.monotonic(), (client.job(job_id).details(),))
    jobs = []
    for job in client.list_jobs():
        if not job.status.is_terminal:
            try:
                jobs.append(client.job(job.job_id).details())
            except JobNotFoundError:
                continue  # the cluster has forgotten the job in the meantime
    return Look(time.monotonic(), tuple(jobs))
