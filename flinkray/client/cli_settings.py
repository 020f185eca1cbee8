"""What one command line has from its beginning: loaded by all commands, so it imports little."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.core.config import Configuration

FAILED, BAD_INPUT, NO_CLUSTER, UNKNOWN_JOB, ENDED_BY_OTHERS, INTERRUPTED = 1, 2, 3, 4, 5, 130
"""Exit codes."""

Connect = Callable[[str, str, "Configuration"], AbstractContextManager["ClusterClient"]]
"""From the address of a Ray, the id of a cluster and the configuration to a client, which is left
with the context."""


@dataclass
class Settings:
    """Of one command line."""

    verbose: bool = False
    connect: Connect | None = None
    """In place of :func:`flinkray.connect`."""
    process_ends: bool = False
    """With the command line."""
    place: str | None = None
    """The line of a program whose call was refused."""
    ray_is_left_at_the_end: bool = False
    """The process has joined Ray, and is to leave it by ending, in no other way."""


def note(text: str) -> None:
    """A line beside the results."""
    click.echo(text, err=True)
