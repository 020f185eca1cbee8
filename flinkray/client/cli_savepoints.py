"""``flinkray savepoint``, ``flinkray stop`` and ``flinkray checkpoint trigger``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from flinkray.client.cli_options import (
    JOB_ID,
    JSON,
    common,
    connected,
    job_of,
    job_reference,
    say,
)
from flinkray.client.savepoint_locations import absolute_location
from flinkray.core.ids import JobID

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient


@click.command()
@click.argument("job", metavar="[JOB_ID]", required=False)
@click.argument("directory", required=False)
@click.option("--dispose", "disposed", metavar="PATH", help="Delete this savepoint.")
@JSON
@common
def savepoint(
    job: str | None,
    directory: str | None,
    disposed: str | None,
    as_json: bool,
    address: str | None,
    cluster_id: str,
) -> None:
    """Take a savepoint of a job, which goes on, and print where it is.

    The savepoint gets a directory below DIRECTORY, a path or a URI that all nodes can reach.
    Default: execution.checkpointing.savepoint-dir of the job or its cluster.

    Ctrl-C ends only the waiting; the savepoint may still be taken.
    """
    if disposed is not None:
        if job is not None:
            raise click.UsageError("--dispose takes no job")
        absolute_location(disposed)  # refuses a bad location before the client connects
        with connected(address, cluster_id) as client:
            client.dispose_savepoint(disposed)
        say(as_json, f"savepoint {disposed} is deleted", {"disposed": disposed})
        return
    if job is None:
        raise click.UsageError("name a job (flinkray list), or --dispose a savepoint")
    reference = job_reference(job)
    directory = None if directory is None else absolute_location(directory)
    with connected(address, cluster_id) as client:
        job_id = job_of(client, reference)
        _say_if_it_runs(client, job_id, f"taking a savepoint of job {job_id}")
        path = client.job(job_id).trigger_savepoint(directory)
    say(as_json, path, {"job_id": job_id, "savepoint": path})


@click.command()
@JOB_ID
@click.option(
    "--savepoint-path",
    "directory",
    metavar="DIRECTORY",
    help="Where the savepoint gets its directory.",
)
@click.option("--drain", is_flag=True, help="Let all windows and timers fire first.")
@JSON
@common
def stop(
    job: str,
    directory: str | None,
    drain: bool,
    as_json: bool,
    address: str | None,
    cluster_id: str,
) -> None:
    """Take a savepoint of a job, let it finish, and print where the savepoint is.

    Open windows and timers are kept in the savepoint, for a job that goes on from it.  With
    --drain, event time ends before the savepoint, so that all of them fire now: for jobs that will
    not go on.

    Default of DIRECTORY: execution.checkpointing.savepoint-dir of the job or its cluster.
    """
    directory = None if directory is None else absolute_location(directory)
    with connected(address, cluster_id) as client:
        job_id = job_of(client, job)
        how = "draining" if drain else "stopping"
        _say_if_it_runs(client, job_id, f"{how} job {job_id} with a savepoint")
        path = client.job(job_id).stop_with_savepoint(directory, drain=drain)
        click.echo(f"job {job_id} has finished", err=True)
        say(as_json, path, {"job_id": job_id, "savepoint": path})


def _say_if_it_runs(client: ClusterClient, job_id: JobID, text: str) -> None:
    if not client.job(job_id).status().is_terminal:
        click.echo(text, err=True)


@click.command("trigger")
@JOB_ID
@JSON
@common
def trigger_checkpoint(job: str, as_json: bool, address: str | None, cluster_id: str) -> None:
    """Take a checkpoint of a job now, and print where it is."""
    with connected(address, cluster_id) as client:
        job_id = job_of(client, job)
        path = client.job(job_id).trigger_checkpoint()
    say(as_json, path, {"job_id": job_id, "checkpoint": path})
