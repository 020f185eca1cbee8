"""``flinkray list|info|cancel|resize``."""

from __future__ import annotations

import re
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


@click.command("models")
@JSON
@common
def list_models(as_json: bool, address: str | None, cluster_id: str) -> None:
    """List models whose replicas run, and the jobs that use them.

    The replicas of a model are the tasks of a job, which info, top, logs and cancel take.
    """
    with connected(address, cluster_id) as client:
        models = client.list_models()
    click.echo(cli_output.to_json(models) if as_json else cli_output.model_table(models))


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


Bounds = tuple[int, int]


def bounds_of(text: str) -> Bounds:
    """Return (least, most) subtasks of a text: ``4`` is (1, 4), ``2..4`` is (2, 4). Raises
    click.BadParameter: the text has neither form, or the least is 0 or above the most."""
    match = re.fullmatch(r"(?:(\d{1,9})\.\.)?(\d{1,9})", text)
    if match is None:
        raise click.BadParameter(f"{text!r} is neither a number of subtasks nor a range as 2..4")
    lower, upper = int(match[1] or 1), int(match[2])
    if not 1 <= lower <= upper:
        raise click.BadParameter(f"{text!r}: at least 1, and the smaller number first")
    return lower, upper


def _wanted(text: str) -> tuple[str | None, Bounds]:
    """Return (vertex name, bounds) of ``VERTEX=BOUNDS``, and (None, bounds) of ``BOUNDS``. A vertex
    name may contain ``=``. Raises click.BadParameter."""
    name, separator, bounds = text.rpartition("=")
    if separator and not name:
        raise click.BadParameter(f"{text!r} names no vertex")
    return (name if separator else None), bounds_of(bounds)


@click.command()
@JOB_ID
@click.argument("wanted", nargs=-1, required=True, type=_wanted, metavar="[VERTEX=]BOUNDS ...")
@JSON
@common
def resize(
    job: str,
    wanted: tuple[tuple[str | None, Bounds], ...],
    as_json: bool,
    address: str | None,
    cluster_id: str,
) -> None:
    """Give an elastic job another parallelism.

    BOUNDS is the largest number of subtasks that a vertex may have, or a range such as 2..4.
    VERTEX is a name that `flinkray info` shows.  Without it, BOUNDS is for all vertices that can
    have more than one subtask and are not named.

    A job is elastic if it was submitted with -D jobmanager.scheduler=adaptive.  It goes on from its
    latest checkpoint, with the slots that it can get.
    """
    given = [bounds for name, bounds in wanted if name is None]
    if len(given) > 1:
        raise click.UsageError("BOUNDS without a VERTEX can be given once")
    others = given[0] if given else None
    bounds: dict[str, Bounds] = {}
    for name, of_vertex in wanted:
        if name in bounds:
            raise click.UsageError(f"{name!r} is named twice")
        if name is not None:
            bounds[name] = of_vertex
    with connected(address, cluster_id) as client:
        job_id = job_of(client, job)
        client.job(job_id).resize(bounds, others=others)
    text = f"job {job_id} goes on with {_text(bounds, others)} as soon as it has the slots"
    say(as_json, text, {"job_id": job_id, "bounds": bounds, "others": others})


def _text(bounds: dict[str, Bounds], others: Bounds | None) -> str:
    named = [f"{_range(of_vertex)} of {name!r}" for name, of_vertex in bounds.items()]
    if others is not None:
        named.append(f"{_range(others)} of each {'other ' if bounds else ''}vertex")
    return ", ".join(named)


def _range(bounds: Bounds) -> str:
    lower, upper = bounds
    return f"{upper} subtasks" if lower == upper else f"{lower} to {upper} subtasks"
