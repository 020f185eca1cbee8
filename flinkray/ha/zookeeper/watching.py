"""Repeats the work of a driver whenever ZooKeeper's data may have changed."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from kazoo.exceptions import KazooException

from flinkray.ha.zookeeper.client import AWAY, ZooKeeperClient

log = logging.getLogger(__name__)

_PAUSE = 0.1
"""Seconds until work that failed because of the server is repeated, while connected."""


class Watching(ABC):
    """Calls :meth:`look` to read the znodes again whenever a watch or the connection reports a
    change.

    A missed change is noticed with the next one, and no change is handled twice.
    """

    def __init__(self, client: ZooKeeperClient, on_error: Callable[[Exception], None]) -> None:
        self.client = client
        self._on_error = on_error
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Call :meth:`look` now, and after each change."""
        self.client.add_listener(self._connection_changed)
        self._changed.set()
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Stop; on return, no more work will be done. Can be called again."""
        self._closed = True
        self.client.remove_listener(self._connection_changed)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self, _event: object = None) -> None:
        """Request another :meth:`look`; callable from any thread. Can be passed to kazoo as a
        watch."""
        self.client.to_loop(self._changed.set)

    @abstractmethod
    async def look(self) -> None:
        """Read the current state, and act on it.

        Raises:
            KazooException: for :data:`AWAY`, this method is called again.
        """

    @abstractmethod
    def connection_changed(self, is_connected: bool) -> None:
        """Handle a made or lost connection; called in a thread of kazoo, before the next look."""

    def _connection_changed(self, is_connected: bool) -> None:
        self.connection_changed(is_connected)
        self.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._closed:
            self._on_error(error)

    async def _run(self) -> None:
        while not self._closed:
            await self._changed.wait()
            self._changed.clear()
            if not self.client.is_connected:
                continue  # the next connection wakes this task
            try:
                await self.look()
            except AWAY as error:
                log.info("ZooKeeper was away: %s; looking again", type(error).__name__)
                asyncio.get_running_loop().call_later(_PAUSE, self._changed.set)
            except KazooException as error:
                self._on_error(self.client.explain(error))
                return
