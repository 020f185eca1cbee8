"""What a contender that has died leaves behind is removed before its session ends.

ZooKeeper deletes the znodes of a killed process only when its session has been silent for long
enough.  The processes of a cluster know earlier: Ray starts only one of a name at a time, and a
port at which nobody listens any more was a dead one's.  So each contender watches the process of
the one in front of it.  Nothing depends on it: whoever is taken for dead and lives has lost its
fence with its znode, changes nothing any more, and is told so.
"""

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
"""Seconds between two looks at a process that cannot be reached, and is not known to be dead."""


class DeadContenders:
    """Sees to the contender in front of one's own, which may change.  On the event loop."""

    def __init__(self, client: ZooKeeperClient, information: str, processes: RpcService) -> None:
        """*information*: path of what the leader publishes.  *processes* knows who has died."""
        self._client = client
        self._information = information
        self._processes = processes
        self._latch: str | None = None
        self._task: asyncio.Task[None] | None = None

    def watch(self, latch: str, identity: str) -> None:
        """The contender in front is now that one: path of its znode, and who has made it."""
        if latch != self._latch or self._task is None or self._task.done():
            self.stop()
            self._latch = latch
            self._task = asyncio.ensure_future(self._remove_when_dead(latch, identity))

    def stop(self) -> None:
        """There is nobody in front.  Idempotent."""
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
        with suppress(KazooException):  # it goes with its session
            await self._remove(latch)

    async def _until_lost(self, process: str) -> bool:
        """Whether there was a connection to be lost for a while."""
        began = self._processes.clock.monotonic()
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        watch = self._processes.watch_process(process, lambda _: _set(lost))
        try:
            await lost
        finally:
            watch.cancel()
        return self._processes.clock.monotonic() - began > _LONGEST_PAUSE

    async def _remove(self, latch: str) -> None:
        """With what it has published, if it led."""
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
    if not future.done():  # nobody may wait for it any more
        future.set_result(None)
