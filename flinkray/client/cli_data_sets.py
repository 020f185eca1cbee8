"""``flinkray data-sets list|release``: persistent results that finished jobs have left."""

from __future__ import annotations

import click

from flinkray.client import cli_output
from flinkray.client.cli_options import JSON, common, connected, say
from flinkray.core.ids import IntermediateDataSetID


def _data_set_id(text: str) -> IntermediateDataSetID:
    try:
        return IntermediateDataSetID.from_hex(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.group("data-sets")
def data_sets() -> None:
    """List and release the persistent results that finished jobs have left."""


@data_sets.command("list")
@JSON
@common
def list_data_sets(as_json: bool, address: str | None, cluster_id: str) -> None:
    """List persistent results, and how many of each one's partitions there are."""
    with connected(address, cluster_id) as client:
        found = client.list_data_sets()
    click.echo(cli_output.to_json(found) if as_json else cli_output.data_set_table(found))


@data_sets.command()
@click.argument("data_set_id", type=_data_set_id, metavar="DATA_SET_ID")
@JSON
@common
def release(
    data_set_id: IntermediateDataSetID, as_json: bool, address: str | None, cluster_id: str
) -> None:
    """Delete a persistent result; one that is gone already is fine."""
    with connected(address, cluster_id) as client:
        client.release_data_set(data_set_id)
    say(as_json, f"data set {data_set_id} is being released", {"data_set_id": data_set_id})
