"""Exit codes of the command line, and the settings and state of the command that runs.

All commands load this module, so it imports little.
"""

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
    from flinkray.core.config import ReadableConfig

FAILED, BAD_INPUT, NO_CLUSTER, UNKNOWN_JOB, ENDED_BY_OTHERS, INTERRUPTED = 1, 2, 3, 4, 5, 130
"""Exit codes of the command line."""
TERMINATED = 143
"""Exit code instead of INTERRUPTED if SIGTERM has come."""

Connect = Callable[[str, str, "ReadableConfig"], AbstractContextManager["ClusterClient"]]
"""Function from Ray address, cluster id and configuration to a context with a client."""


@dataclass
class Settings:
    """Settings and state of one run of the ``flinkray`` command, shared by all its parts."""

    verbose: bool = False
    connect: Connect | None = None
    """Function to use in place of :func:`flinkray.connect`."""
    process_ends: bool = False
    """Whether the process ends with the command line."""
    place: str | None = None
    """Line of the user's program whose call was refused, for the error message. None: not known."""
    ray_is_left_at_the_end: bool = False
    """Whether the process has joined Ray and leaves it only by ending."""
    is_connecting: bool = False
    """Whether the client is connecting, so that the process has nothing to end yet."""
    was_terminated: bool = False
    """Whether SIGTERM has come."""

    @property
    def interrupted(self) -> int:
        """The exit code of a command that a signal has ended: that for SIGTERM if SIGTERM has come,
        otherwise that for Ctrl-C."""
        return TERMINATED if self.was_terminated else INTERRUPTED

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Context manager: a SIGTERM inside the block ends the process at once, and Ray cleans up
        after the process."""
        self.is_connecting = True
        try:
            yield
        finally:
            self.is_connecting = False

    def end_at_sigterm(self) -> None:
        """Make SIGTERM do what Ctrl-C does, from now on: containers and services are ended by
        SIGTERM. Called only in a process that ends with its command line."""
        signal.signal(signal.SIGTERM, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        if self.is_connecting:  # an exception inside of Ray could leave locks held
            with suppress(OSError):  # without a stream object, which may be writing a line
                os.write(2, b"terminated\n")
            os._exit(TERMINATED)
        self.was_terminated = True
        raise KeyboardInterrupt("terminated")


def note(text: str) -> None:
    """Write a line to standard error, so that it is not among the results."""
    click.echo(text, err=True)
