"""``flinkray list|info|cancel``."""

from __future__ import annotations

import time

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import JOB_ID, JSON, common, connected, job_of, say
from flinkray.client.cli_settings import Settings


@click.command("list")
@JSON
@common
def list_jobs(as_json: bool, address: str | None, cluster_id: str) -> None:
    """List running and ended jobs."""
    with connected(address, cluster_id) as client:
        jobs = client.list_jobs()
    click.echo(cli_output.to_json(jobs) if as_json else cli_output.job_table(jobs, time.time()))


@click.command()
@JOB_ID
@JSON
@common
@click.pass_obj
def info(settings: Settings, job: str, as_json: bool, address: str | None, cluster_id: str) -> None:
    """Show a job: status, records and bytes, tasks and where they run, failures.

    --verbose adds tracebacks of failures, the newest checkpoints, and what went through each
    subtask.
    """
    with connected(address, cluster_id) as client:
        details = client.job(job_of(client, job)).details()
    if as_json:
        click.echo(cli_output.to_json(details))
    else:
        text = cli_output.job_details(details, time.time(), verbose=settings.verbose)
        click.echo(text)


@click.command()
@JOB_ID
@JSON
@common
def cancel(job: str, as_json: bool, address: str | None, cluster_id: str) -> None:
    """Begin to cancel a job."""
    with connected(address, cluster_id) as client:
        job_id = job_of(client, job)
        client.cancel(job_id)
    say(as_json, f"job {job_id} is being cancelled", {"job_id": job_id})
