"""What the commands of the command line have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from flinkray.core.options import CLUSTER_ID

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """Of one command line."""

    verbose: bool = False


def _set_verbose(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_object(Settings).verbose = True  # type: ignore[union-attr]


def common(command: F) -> F:
    """The options that every command has."""
    options = (
        click.option(
            "--address",
            help="Ray: auto, host:port, ray://host:port or local.  Default: $RAY_ADDRESS.",
        ),
        click.option("--cluster-id", default=CLUSTER_ID.default, show_default=True),
        click.option(
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_set_verbose,
            help="Show tracebacks.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def connected(address: str | None, cluster_id: str) -> Any:
    """A client of a cluster that runs already."""
    from flinkray.client.connect import connect

    return connect(running(address), cluster_id=cluster_id)


def running(address: str | None) -> str:
    """Of a Ray that runs already."""
    from flinkray.client import ray_runtime

    address = address or ray_runtime.address_from_environment() or "auto"
    if address == "local":
        raise click.UsageError("'local' is an address for `flinkray run` only")
    return address
