"""``flinkray logs``: what the processes of a job have written."""

from __future__ import annotations

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import JOB_ID, JSON, common, connected, job_of
from flinkray.client.cli_settings import NO_CLUSTER, note
from flinkray.core.captured_output import OUTPUT
from flinkray.scheduler.reports.job_info import JobDetails


class NoNodeAnswered(click.ClickException):
    """Raised if no node with log files of the job answered, for example because the nodes are too
    busy."""

    exit_code = NO_CLUSTER


@click.command()
@JOB_ID
@click.argument("vertex", required=False)
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="How many, from the end of each file; 0: only where the files are.",
)
@click.option("--output", "only_output", is_flag=True, help="Only what was printed, no log lines.")
@JSON
@common
def logs(
    job: str,
    vertex: str | None,
    lines: int,
    only_output: bool,
    as_json: bool,
    address: str | None,
    cluster_id: str,
) -> None:
    """Show what a job has printed and logged, by process.

    VERTEX is a name that `flinkray info` shows, or its beginning.  With it, only processes that
    have run the vertex's tasks are shown; they may have run other tasks of the job, too.

    What user code prints is in files that end with .out; what it logs or writes to standard error,
    in files that end with .err.  Functions that Spark calls in its executors print into the log of
    the stage's executors (-executors.log).  The files stay on the nodes that have run the job until
    Ray's session is removed.
    """
    from flinkray.client.job_logs import logs_of_job

    with connected(address, cluster_id) as client:
        job_id = job_of(client, job)
        details = client.job(job_id).details()
        executors = None if vertex is None else _executors_of(details, vertex)
        found, silent = logs_of_job(job_id, lines)
    for node in silent:
        note(f"node {node} did not answer")
    if silent and not found:
        raise NoNodeAnswered(f"what job {job_id} has written is not known; try again")
    if only_output:
        found = [log for log in found if log.file.endswith(OUTPUT)]
    if executors is not None:
        found = [log for log in found if any(name in log.file for name in executors)]
    if as_json:
        click.echo(cli_output.to_json(found))
        return
    if not found:
        note(f"job {job_id} has written nothing on the nodes that are there")
    for log in found:
        click.echo(f"==> {log.node}:{log.file} <==")
        if lines:
            click.echo(log.text, nl=not log.text.endswith("\n") and bool(log.text))


def _executors_of(details: JobDetails, name: str) -> set[str]:
    """Return the ids of the TaskExecutors that have run the vertex *name* (its name, or the
    beginning of the name of only one vertex). Log files of the vertex have these ids in their
    names. Raises click.UsageError: no vertex is meant, or several are."""
    named = [vertex for vertex in details.vertices if vertex.name == name]
    found = named or [vertex for vertex in details.vertices if vertex.name.startswith(name)]
    if len(found) != 1:
        names = ", ".join(repr(vertex.name) for vertex in details.vertices) or "none"
        raise click.UsageError(
            f"the names of {len(found)} vertices begin with {name!r}; the job's vertices: {names}"
        )
    (vertex,) = found
    executions = (*vertex.executions, *vertex.prior_executions)
    return {one.location.split()[0] for one in executions if one.location}
