"""What a driver does again each time that something has changed, until it is closed."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from kazoo.exceptions import KazooException

from flinkray.ha.zookeeper.client import AWAY, ZooKeeperClient

log = logging.getLogger(__name__)

_PAUSE = 0.1
"""Seconds until what failed for the server's sake is tried again, while there is a connection."""


class Watching(ABC):
    """Looks at the znodes as they are whenever a watch or the connection says that they may have
    changed: a change that was missed is seen with the next one, and none is acted on twice."""

    def __init__(self, client: ZooKeeperClient, on_error: Callable[[Exception], None]) -> None:
        self.client = client
        self._on_error = on_error
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Look for the first time, and from now on."""
        self.client.add_listener(self._connection_changed)
        self._changed.set()
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Returns when nothing more will be done.  Idempotent."""
        self._closed = True
        self.client.remove_listener(self._connection_changed)
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def wake(self, _event: object = None) -> None:
        """Look again; from any thread.  A watch of kazoo's."""
        self.client.to_loop(self._changed.set)

    @abstractmethod
    async def look(self) -> None:
        """See how things are, and do what follows.

        Raises:
            KazooException: of :data:`AWAY`, and it is looked again.
        """

    @abstractmethod
    def connection_changed(self, is_connected: bool) -> None:
        """In a thread of kazoo's, before anybody looks again."""

    def _connection_changed(self, is_connected: bool) -> None:
        self.connection_changed(is_connected)
        self.wake()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Whoever waits for what nobody looks at any more would wait for ever."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._closed:
            self._on_error(error)

    async def _run(self) -> None:
        while not self._closed:
            await self._changed.wait()
            self._changed.clear()
            if not self.client.is_connected:
                continue  # it is heard of when it is
            try:
                await self.look()
            except AWAY as error:
                log.info("ZooKeeper was away: %s; looking again", type(error).__name__)
                asyncio.get_running_loop().call_later(_PAUSE, self._changed.set)
            except KazooException as error:
                self._on_error(self.client.explain(error))
                return
