"""``flinkray rest``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import click

from flinkray.client.cli_options import VERBOSE, check_set_for, common, connected, settings
from flinkray.core.config import ReadableConfig
from flinkray.core.options import CLUSTER_ID
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
    """Serve a running cluster over HTTP, as Flink's REST API does, until Ctrl-C.

    Requests must carry a token.  Unless the configuration names one, it is created in a file that
    only you can read; flinkray rest-token prints it.
    """
    from flinkray.client.client_session import session_of
    from flinkray.rest.server import RestServer, RestSettings
    from flinkray.rest.token import created_token, default_token_file

    given = {REST_BIND_ADDRESS.key: host, REST_BIND_PORT.key: port}
    options = {key: value for key, value in given.items() if value is not None}
    configuration = ReadableConfig({**dict(values), **options})
    check_set_for(configuration, "REST endpoint")
    rest_settings = RestSettings.of(configuration)
    creates_token = rest_settings.token is None
    if creates_token:
        rest_settings = replace(rest_settings, token=created_token(cluster_id))
    with connected(address, cluster_id) as client:
        session = session_of(client)
        server = RestServer(session.dispatcher, rest_settings)
        session.run(server.start())
        try:
            with _ending_at_sigterm():
                click.echo(f"cluster {cluster_id!r} is served at {server.url} (Ctrl-C ends it)")
                if sys.stdout.isatty():  # not into logs that others can read
                    click.echo(f"open {server.url}/#token={rest_settings.token} in a browser")
                elif creates_token:
                    click.echo(f"requests must carry the token in {default_token_file(cluster_id)}")
                threading.Event().wait()
        finally:
            session.run(server.close())


@click.command()
@click.option("--cluster-id", default=CLUSTER_ID.default, show_default=True, help="Its cluster.")
@VERBOSE
def rest_token(cluster_id: str) -> None:
    """Print the token that flinkray rest of this user has created."""
    from flinkray.rest.token import known_token

    click.echo(known_token(cluster_id))


class _TerminatedError(Exception):
    """Raised by the first SIGTERM inside :func:`_ending_at_sigterm`, which catches it."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _TerminatedError


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """End the ``with`` block at the first SIGTERM, without an error. After the block, and at a
    second SIGTERM, the signal has its previous effect."""
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except _TerminatedError:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
