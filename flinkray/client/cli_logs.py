"""``flinkray logs``: what the processes of a job have written."""

from __future__ import annotations

import click

from flinkray.client.cli_options import JOB_ID, common, connected, job_of
from flinkray.client.cli_settings import note
from flinkray.core.captured_output import OUTPUT


@click.command()
@JOB_ID
@click.option(
    "--lines",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Of the end of each file; 0: where the files are.",
)
@click.option("--output", "only_output", is_flag=True, help="Only what was printed, no log lines.")
@common
def logs(job: str, lines: int, only_output: bool, address: str | None, cluster_id: str) -> None:
    """Show what a job has printed and logged, by process.

    What user code prints is in the files that end with .out, and what it logs or writes to standard
    error in those with .err.  Functions that Spark calls in its executors print into the file of
    the stage's executors (-executors.log).  The files of a job stay until Ray's session is removed,
    on the nodes that have run it.
    """
    from flinkray.client.job_logs import logs_of_job

    with connected(address, cluster_id) as client:
        job_id = job_of(client, job)
        client.job(job_id).status()
        found, silent = logs_of_job(job_id, lines)
    for node in silent:
        note(f"node {node} did not answer")
    if only_output:
        found = [log for log in found if log.file.endswith(OUTPUT)]
    if not found:
        note(f"job {job_id} has written nothing on the nodes that are there")
    for log in found:
        click.echo(f"==> {log.node}:{log.file} <==")
        if lines:
            click.echo(log.text, nl=not log.text.endswith("\n") and bool(log.text))
