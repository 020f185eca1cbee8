"""``flinkray cluster up|down|status``."""

from __future__ import annotations

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import (
    JSON,
    check_set_for,
    common,
    connected,
    running,
    say,
    settings,
)
from flinkray.client.cli_settings import note
from flinkray.core.config import ReadableConfig
from flinkray.core.options import CLUSTER_ID


@click.group()
def cluster() -> None:
    """Start, end and look at a cluster on a running Ray."""


@cluster.command()
@settings("An option of the cluster (docs/configuration.md).")
@JSON
@common
def up(
    values: tuple[tuple[str, str], ...], as_json: bool, address: str | None, cluster_id: str
) -> None:
    """Start a cluster on a running Ray; one that runs already is left as it is."""
    from flinkray.client.cluster import start_cluster_alone, values_not_taken
    from flinkray.client.connect import open_rpc_service

    configuration = ReadableConfig({**dict(values), CLUSTER_ID.key: cluster_id})
    check_set_for(configuration, "cluster", "job")
    with open_rpc_service(running(address), cluster_id) as (loop, rpc_service, runtime):
        started = loop.run(start_cluster_alone(rpc_service, configuration))
        others = loop.run(values_not_taken(rpc_service, configuration))
    for key, value in others.items():
        note(
            f"{key} is {value.present} in this cluster, and not {value.asked}: to change it, end "
            "the cluster (flinkray cluster down) and start it again"
        )
    if as_json:
        up_now = {"cluster_id": cluster_id, "started": list(started), "not_taken": others}
        click.echo(cli_output.to_json({**up_now, "dashboard_url": runtime.dashboard_url}))
        return
    if started:
        text = f"cluster {cluster_id!r} is up: started {' and '.join(started)}"
        if not {"ResourceManager", "Dispatcher"} <= set(started):
            text += ", configured as what ran already"
        click.echo(text)
    else:
        click.echo(f"cluster {cluster_id!r} is running already; its configuration is as it was")
    click.echo(f"dashboard: {runtime.dashboard_url or 'none'}")
    click.echo(f"actors: {cli_output.list_actors_command(cluster_id)}")


@cluster.command()
@JSON
@common
def down(as_json: bool, address: str | None, cluster_id: str) -> None:
    """End a cluster with all its jobs; Ray goes on running."""
    from flinkray.client import ray_runtime
    from flinkray.client.cluster import stop_cluster
    from flinkray.client.connect import open_rpc_service

    with open_rpc_service(running(address), cluster_id) as (loop, rpc_service, _):
        was_running = ray_runtime.has_cluster(cluster_id)
        end = loop.run(stop_cluster(rpc_service, cluster_id))
    for name in (*end.killed, *end.removed_groups):
        note(f"was left and ended: {name}")
    if end.kept is not None:
        note(f"was kept: {end.kept}")
    text = f"cluster {cluster_id!r} {'is down' if was_running else 'was not running'}"
    say(as_json, text, {"cluster_id": cluster_id, "was_running": was_running})


@cluster.command()
@JSON
@common
def status(as_json: bool, address: str | None, cluster_id: str) -> None:
    """Show a cluster's workers, slots and jobs, and where to look in Ray."""
    with connected(address, cluster_id) as client:
        overview = client.cluster_overview()
    click.echo(
        cli_output.to_json(overview)
        if as_json
        else cli_output.cluster_overview(cluster_id, overview)
    )
