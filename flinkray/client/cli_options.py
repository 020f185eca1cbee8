"""What the commands of the command line have in common."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import click

import flinkray
from flinkray.core.config import Configuration
from flinkray.core.ids import JobID
from flinkray.core.options import CLUSTER_ID

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient

F = TypeVar("F", bound=Callable[..., object])


Connect = Callable[[str, str, Configuration], AbstractContextManager["ClusterClient"]]
"""From the address of a Ray, the id of a cluster and the configuration to a client, which is left
with the context."""


@dataclass
class Settings:
    """Of one command line."""

    verbose: bool = False
    connect: Connect | None = None
    """In place of :func:`flinkray.connect`."""


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


def job_id_of(text: str) -> JobID:
    """Raises click.BadParameter: it is none."""
    try:
        return JobID.from_hex(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


JOB_ID = click.argument("job_id", type=job_id_of, metavar="JOB_ID")

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise click.BadParameter(f"{text!r} is not of the form key=value")
    return key, value


def pairs(*names: str, help: str) -> Callable[[F], F]:
    """An option that may be given several times, each time with a key and its value."""
    return click.option(*names, multiple=True, type=_pair, metavar="KEY=VALUE", help=help)


def connect(
    address: str, cluster_id: str, configuration: Configuration | None = None
) -> AbstractContextManager[ClusterClient]:
    """A client, in the way that the settings of the present command line say."""
    configuration = configuration or Configuration()
    settings = click.get_current_context().find_object(Settings)
    if settings is not None and settings.connect is not None:
        return settings.connect(address, cluster_id, configuration)
    return flinkray.connect(address, cluster_id=cluster_id, configuration=configuration)


def connected(address: str | None, cluster_id: str) -> AbstractContextManager[ClusterClient]:
    """A client of a cluster that runs already."""
    return connect(running(address), cluster_id)


def running(address: str | None) -> str:
    """Of a Ray that runs already."""
    from flinkray.client import ray_runtime

    address = address or ray_runtime.address_from_environment() or "auto"
    if address == "local":
        raise click.UsageError("'local' is an address for `flinkray run` only")
    return address
