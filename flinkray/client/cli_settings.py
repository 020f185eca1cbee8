"""What one command line has from its beginning: loaded by all commands, so it imports little."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from flinkray.client.cluster_client import ClusterClient
    from flinkray.core.config import Configuration

FAILED, BAD_INPUT, NO_CLUSTER, UNKNOWN_JOB, ENDED_BY_OTHERS, INTERRUPTED = 1, 2, 3, 4, 5, 130
"""Exit codes."""
TERMINATED = 143
"""The exit code in place of INTERRUPTED where SIGTERM has come."""

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
    is_connecting: bool = False
    """Nothing has begun yet that the process would have to end."""
    was_terminated: bool = False
    """SIGTERM has come."""

    @property
    def interrupted(self) -> int:
        """The exit code of a command line that Ctrl-C or SIGTERM has ended."""
        return TERMINATED if self.was_terminated else INTERRUPTED

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """What begins with it is cleared up by Ray when this process ends."""
        self.is_connecting = True
        try:
            yield
        finally:
            self.is_connecting = False

    def end_at_sigterm(self) -> None:
        """From now on SIGTERM, by which containers and services are ended, does what Ctrl-C does.
        For a process that ends with its command line."""
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self.is_connecting:  # what was raised inside of Ray could leave locks that are held
            with suppress(OSError):  # by no stream: one may be in the middle of a line
                os.write(2, b"terminated\n")
            os._exit(TERMINATED)
        self.was_terminated = True
        raise KeyboardInterrupt("terminated")


def note(text: str) -> None:
    """A line beside the results."""
    click.echo(text, err=True)
