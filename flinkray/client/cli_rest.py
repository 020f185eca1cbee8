"""``flinkray rest``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from flinkray.client.cli_options import check_set_for, common, connected, settings
from flinkray.core.config import Configuration
from flinkray.core.rest_options import REST_BIND_ADDRESS, REST_BIND_PORT


@click.command()
@click.option("--host", help=f"Address to listen on.  Default: {REST_BIND_ADDRESS.key}.")
@click.option(
    "--port",
    help=f"A port, or a range whose first free port is used.  Default: {REST_BIND_PORT.key}.",
)
@settings("Configuration (docs/configuration.md).")
@common
def rest(
    host: str | None,
    port: str | None,
    values: tuple[tuple[str, str], ...],
    address: str | None,
    cluster_id: str,
) -> None:
    """Serve a running cluster over HTTP, as Flink's REST API does, until Ctrl-C."""
    from flinkray.rest.server import RestServer, RestSettings

    given = {REST_BIND_ADDRESS.key: host, REST_BIND_PORT.key: port}
    options = {key: value for key, value in given.items() if value is not None}
    configuration = Configuration({**dict(values), **options})
    check_set_for(configuration, "REST endpoint")
    rest_settings = RestSettings.of(configuration)
    with connected(address, cluster_id) as client:
        server = RestServer(client.dispatcher, rest_settings)
        client.run(server.start())
        try:
            with _ending_at_sigterm():
                click.echo(f"cluster {cluster_id!r} is served at {server.url} (Ctrl-C ends it)")
                threading.Event().wait()
        finally:
            client.run(server.close())


class _TerminatedError(Exception):
    """SIGTERM has come."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _TerminatedError


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """Left at the first one, which is what whoever runs services sends; a second one does what it
    did before."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except _TerminatedError:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
