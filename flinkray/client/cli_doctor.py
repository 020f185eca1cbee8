"""``flinkray doctor``: checks each thing that jobs need, and says how to repair what fails."""

from __future__ import annotations

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import JSON, common, running
from flinkray.client.cli_settings import FAILED, note


@click.command()
@JSON
@common
def doctor(as_json: bool, address: str | None, cluster_id: str) -> int:
    """Check what jobs need on this machine and on the nodes of Ray, and say what to do.

    Exit code 1 if something keeps jobs from running.  Nothing is started or changed; files that are
    written to the storage as a trial are deleted.  It can be run on machines outside of the
    cluster.  If no Ray runs, only this machine is checked.
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
