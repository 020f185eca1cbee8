"""Being told when a process of this machine has ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class ProcessWatch:
    """Calls back once, on the loop.

    A process that has forked others leaves its sockets open in them, so that neither a broken
    connection nor Ray, which looks at one, tells of its end.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, pid: int, on_ended: Callable[[], None]
    ) -> None:
        """
        Raises:
            OSError: there is no such process, or the kernel is older than Linux 5.3.
        """
        self._loop = loop
        self._on_ended = on_ended
        self._descriptor: int | None = os.pidfd_open(pid)
        loop.add_reader(self._descriptor, self._ended)

    def cancel(self) -> None:
        """No call back after this; idempotent."""
        if self._descriptor is not None:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None

    def _ended(self) -> None:
        self.cancel()
        self._on_ended()
