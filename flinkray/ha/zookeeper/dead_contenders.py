"""Removes the znodes of a contender of an election whose process has died."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from flinkray.ha.zookeeper.client import ZooKeeperClient, check_transaction
from flinkray.rpc import RpcService
from flinkray.rpc.spec import process_of

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 1.0
"""The longest pause in seconds between two looks at an unreachable process."""


class DeadContenders:
    """Watches the process of the contender that is next in line before this one, and removes that
    contender's znodes if the process dies. Runs on the event loop."""

    def __init__(self, client: ZooKeeperClient, information: str, processes: RpcService) -> None:
        """Watch contenders of one election, with no contender to watch yet.

        *information* is the path of the leader's published information. *processes* knows which
        processes have died.
        """
        self._client = client
        self._information = information
        self._processes = processes
        self._latch: str | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, latch: str, identity: str) -> None:
        """Watch the contender that is now next in line before this one. *latch* is the path of its
        znode, *identity* the identity of its process."""
        if latch != self._latch or self._task is None or self._task.done():
            self.stop()
            self._latch = latch
            self._task = asyncio.ensure_future(self._remove_when_dead(latch, identity))

    def stop(self) -> None:
        """Stop watching, because no contender is in line before this one. Can be called again."""
        task, self._task, self._latch = self._task, None, None
        if task is not None:
            task.cancel()

    async def _remove_when_dead(self, latch: str, identity: str) -> None:
        pause = _FIRST_PAUSE
        while not await self._processes.is_dead(identity):
            if await self._until_lost(process_of(identity)):
                pause = _FIRST_PAUSE
            await self._processes.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        with suppress(KazooException):  # the znode is removed when its session ends
            await self._remove(latch)

    async def _until_lost(self, process: str) -> bool:
        """Wait until the connection to *process* is lost, or cannot be made. Return True if this
        took longer than ``_LONGEST_PAUSE``, so that the process was alive at first."""
        began = self._processes.clock.monotonic()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch = self._processes.watch_process(process, lambda _: _set(lost))
        try:
            await lost
        finally:
            watch.cancel()
        return self._processes.clock.monotonic() - began > _LONGEST_PAUSE

    async def _remove(self, latch: str) -> None:
        """Remove the contender's znode, and its published information if it led."""
        owner = await self._client.do(lambda zk: zk.exists_async(latch))
        if owner is None:
            return
        published = await self._client.do(lambda zk: zk.exists_async(self._information))

        def begin(zk: KazooClient) -> Any:
            transaction = zk.transaction()
            transaction.delete(latch)
            if published is not None and published.ephemeralOwner == owner.ephemeralOwner:
                transaction.delete(self._information, published.version)
            return transaction.commit_async()

        check_transaction(await self._client.do(begin))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():  # the waiter may be gone
        future.set_result(None)
