"""``flinkray doctor``: what jobs need, looked at piece by piece, each with its way out."""

from __future__ import annotations

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import JSON, common, running
from flinkray.client.cli_settings import FAILED, note


@click.command()
@JSON
@common
def doctor(as_json: bool, address: str | None, cluster_id: str) -> int:
    """Check what jobs need on this machine and the nodes of Ray, and say the way out.

    Exit code 1 if something was found that keeps jobs from running.  Nothing is started or changed;
    what is written to the storage as a trial is deleted.  It need not be called on a machine of the
    cluster; without a Ray that runs, this machine alone is looked at.
    """
    from flinkray.client.check_up import Verdict, check_up

    found = []
    marks = {
        Verdict.GOOD: "ok",
        Verdict.WARNING: "warning",
        Verdict.BAD: "FAILED",
        Verdict.LEFT_OUT: "-",
    }
    for check in check_up(running(address), cluster_id):
        found.append(check)
        if not as_json:
            click.echo(f"{marks[check.state]:<8} {check.subject:<20} {check.text}")
            if check.way_out is not None:
                click.echo(f"{'':<29} -> {check.way_out}")
    bad = sum(check.state is Verdict.BAD for check in found)
    if as_json:
        click.echo(cli_output.to_json(found))
    elif bad:
        note(f"{bad} of {len(found)} checks have failed")
    return FAILED if bad else 0
