"""Elects leaders by ephemeral, numbered znodes: the contender with the lowest number leads.

This is the latch of Curator. Below the path of a component are

- ``latch/<contender>-<number>``, ephemeral: one for each contender; its content is the contender's
  :attr:`~flinkray.rpc.service.RpcService.identity`,
- ``connection_info``, ephemeral, of the leader's session: the address of the leader.

The leader's own latch is its *fence*: each write of a leader is a transaction that checks that
exactly this znode still exists, so that a leader whose session has expired changes nothing, however
late it resumes.

ZooKeeper deletes the znodes of a killed process only when its session has been silent for long
enough. The processes of a cluster know earlier: Ray starts only one process of a name at a time,
and a port without a listener belonged to a dead process. So each contender watches the process of
the contender in front of it. Correctness does not depend on this: a live contender that is taken
for dead loses its fence together with its znode, changes nothing any more, and gets an error.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from flinkray.core.ids import LeaderSessionID
from flinkray.ha.leader_election import (
    ElectionEvents,
    LeaderElectionDriver,
    LeaderInformation,
    LeaderRetrievalDriver,
)
from flinkray.ha.zookeeper.client import AWAY, Watching, ZooKeeperClient, check_transaction
from flinkray.ha.zookeeper.dead_contenders import DeadContenders
from flinkray.rpc import RpcService

LATCH = "latch"
CONNECTION_INFO = "connection_info"

_OVERTAKEN = (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
"""Errors that mean that another process was faster."""


def encode_information(information: LeaderInformation) -> bytes:
    """Return the information as JSON, so that ``zkCli get`` shows who leads."""
    session = information.session_id.hex()
    return json.dumps({"address": information.address, "session": session}).encode()


def decode_information(data: bytes) -> LeaderInformation | None:
    """Return the published information; None: *data* was not published by a leader of flinkray."""
    try:
        read = json.loads(data)
        return LeaderInformation(str(read["address"]), LeaderSessionID.from_hex(read["session"]))
    except (ValueError, KeyError, TypeError):
        return None


class ZooKeeperElectionDriver(LeaderElectionDriver):
    """Represents one contender in an election by ZooKeeper.

    *processes* reports deaths of other contenders; None: only the end of their sessions shows them.
    """

    def __init__(
        self, client: ZooKeeperClient, component: str, processes: RpcService | None = None
    ) -> None:
        self._client = client
        self._path = client.path(component)
        self._processes = processes
        self._latch: _Latch | None = None
        self._publishing = asyncio.Lock()

    def start(self, events: ElectionEvents) -> None:
        self._latch = _Latch(self._client, self._path, events, self._processes)
        self._latch.start()

    def has_leadership(self) -> bool:
        return self._latch is not None and self._latch.fence is not None

    async def still_leads(self) -> bool:
        fence = self.fence
        if fence is None:
            return False
        try:
            await self._client.do(lambda zk: zk.sync_async(fence))
            return await self._is_there(fence) and self.fence == fence
        except (*AWAY, NoNodeError):
            return False

    @property
    def fence(self) -> str | None:
        """The path of the znode that exists while this contender leads. None while it does not."""
        return None if self._latch is None else self._latch.fence

    async def publish(self, information: LeaderInformation) -> None:
        data = encode_information(information)
        async with self._publishing:
            while (fence := self.fence) is not None:
                try:
                    if await self._put(fence, data) or not await self._is_there(fence):
                        return  # published, or not the leader any more: the latch will notice
                except AWAY:
                    await self._client.until_connected()

    async def _put(self, fence: str, data: bytes) -> bool:
        """Publish *data* as the leader's information, if the znode *fence* still exists. Return
        False if another process was faster, or has taken over."""
        path = f"{self._path}/{CONNECTION_INFO}"
        stat = await self._client.do(lambda zk: zk.exists_async(path))
        session = self._client.session

        def begin(zk: KazooClient) -> Any:
            transaction = zk.transaction()
            transaction.check(fence, -1)
            if stat is not None and stat.ephemeralOwner == session:
                transaction.set_data(path, data, stat.version)
            else:
                if stat is not None:  # of an earlier leader: it would end with that session
                    transaction.delete(path, stat.version)
                transaction.create(path, data, ephemeral=True)
            return transaction.commit_async()

        results = await self._client.do(begin)
        try:
            check_transaction(results)
        except _OVERTAKEN:
            return False
        return True

    async def _is_there(self, path: str) -> bool:
        return bool(await self._client.do(lambda zk: zk.exists_async(path)))

    async def withdraw(self) -> None:
        path, fence = f"{self._path}/{CONNECTION_INFO}", self.fence

        def begin(zk: KazooClient) -> Any:
            transaction = zk.transaction()
            transaction.check(fence, -1)
            transaction.delete(path)
            return transaction.commit_async()

        if fence is None:
            return
        try:
            async with self._publishing:
                check_transaction(await self._client.do(begin))
        except (*AWAY, *_OVERTAKEN):
            return  # it is gone, or ends with the session

    async def close(self) -> None:
        latch, self._latch = self._latch, None
        if latch is not None:
            await latch.close()


class _Latch(Watching):
    """The znode by which one contender takes part in an election. It is created again if its
    session ends."""

    def __init__(
        self,
        client: ZooKeeperClient,
        path: str,
        events: ElectionEvents,
        processes: RpcService | None,
    ) -> None:
        super().__init__(client, events.on_error)
        self._latches = f"{path}/{LATCH}"
        self._information = f"{path}/{CONNECTION_INFO}"
        self._events = events
        self._identity = b"" if processes is None else processes.identity.encode()
        self._dead: DeadContenders | None = None
        if processes is not None:
            self._dead = DeadContenders(client, self._information, processes)
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._fence: str | None = None
        self._led_before = False
        """Whether the znode belongs to a leadership that was lost."""
        self._told = False
        """Whether the contender was last told that it leads."""
        self._fence_told: str | None = None

    @property
    def fence(self) -> str | None:
        return self._fence

    def connection_changed(self, is_connected: bool) -> None:
        """Give up leadership when the connection is lost, because another contender may lead
        already."""
        if is_connected:
            return
        with self._lock:
            self._led_before |= self._fence is not None
            self._fence = None
        self.client.to_loop(self._tell)

    async def look(self) -> None:
        epoch = self.client.epoch
        if self._led_before:
            await self._leave()
        own = await self._own() or await self._join()
        names = sorted(await self._children(), key=_number)
        place = names.index(own) if own in names else -1
        path = f"{self._latches}/{own if place <= 0 else names[place - 1]}"
        if not await self._watch(path):
            self._lose()
            self.wake()
        elif place > 0:
            self._lose()
            await self._look_at_who_is_in_front(path)
        elif place == 0:
            with self._lock:
                if self.client.epoch == epoch:
                    self._fence = path
        if place <= 0 and self._dead is not None:
            self._dead.stop()
        self._tell()
        if self._told:
            await self._look_at_information()

    async def _look_at_who_is_in_front(self, path: str) -> None:
        if self._dead is None:
            return
        try:
            identity, _ = await self.client.do(lambda zk: zk.get_async(path))
        except NoNodeError:
            return  # the watch will report this
        if identity:
            self._dead.watch(path, bytes(identity).decode())

    async def _leave(self) -> None:
        """Delete this contender's znode, and choose a new name for the next one. Each grant of
        leadership has a znode of its own, so writes that began under an earlier grant fail."""
        own = await self._own()
        if own is not None:
            with suppress(NoNodeError):  # its session has expired
                await self.client.do(lambda zk: zk.delete_async(f"{self._latches}/{own}"))
        self._name = uuid.uuid4().hex
        self._led_before = False

    def _lose(self) -> None:
        with self._lock:
            self._fence = None

    async def _own(self) -> str | None:
        """Return the name of this contender's znode in the election; None: there is none. This also
        finds a znode whose creation succeeded although the answer was lost."""
        of_own = [name for name in await self._children() if name.startswith(self._name)]
        return of_own[0] if of_own else None

    async def _children(self) -> list[str]:
        try:
            children = await self.client.do(lambda zk: zk.get_children_async(self._latches))
        except NoNodeError:
            return []
        return [name for name in children if _A_LATCH.fullmatch(name)]

    async def _join(self) -> str:
        path = f"{self._latches}/{self._name}-"
        made: str = await self.client.do(
            lambda zk: zk.create_async(
                path, self._identity, ephemeral=True, sequence=True, makepath=True
            )
        )
        return made.rpartition("/")[2]

    async def _watch(self, path: str) -> bool:
        return bool(await self.client.do(lambda zk: zk.exists_async(path, self.wake)))

    async def _look_at_information(self) -> None:
        await self._watch(self._information)
        try:
            data, _ = await self.client.do(lambda zk: zk.get_async(self._information))
        except NoNodeError:
            data = b""
        self._events.on_information(decode_information(data))

    def _tell(self) -> None:
        if self._closed:
            return
        fence = self._fence
        if self._told and fence != self._fence_told:
            self._told, self._fence_told = False, None
            self._events.on_revoke()
        if fence is not None and not self._told:
            self._told, self._fence_told = True, fence
            self._events.on_grant()

    async def close(self) -> None:
        """Remove the znode, so that the next contender need not wait for the session's end."""
        await super().close()
        if self._dead is not None:
            self._dead.stop()
        self._lose()
        if self.client.is_connected:
            try:
                await self._leave()
            except AWAY:
                return  # it ends with the session


_A_LATCH = re.compile(r".+-[0-9]{10}")
"""The names of latches; children with other names were not created by flinkray."""


def _number(name: str) -> int:
    return int(name[-10:])


class ZooKeeperRetrievalDriver(LeaderRetrievalDriver):
    """Follows the leader of a component through ZooKeeper, for one listener."""

    def __init__(self, client: ZooKeeperClient, component: str) -> None:
        self._client = client
        self._path = client.path(component, CONNECTION_INFO)
        self._watching: _Published | None = None

    @property
    def outage(self) -> str | None:
        return self._client.outage

    def start(
        self,
        on_information: Callable[[LeaderInformation | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._watching = _Published(self._client, self._path, on_information, on_error)
        self._watching.start()

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            await watching.close()


class _Published(Watching):
    def __init__(
        self,
        client: ZooKeeperClient,
        path: str,
        on_information: Callable[[LeaderInformation | None], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        super().__init__(client, on_error)
        self._path = path
        self._on_information = on_information

    def connection_changed(self, is_connected: bool) -> None:
        """Report that no leader is known while there is no connection."""
        if not is_connected:
            self.client.to_loop(lambda: self._tell(None))

    async def look(self) -> None:
        epoch = self.client.epoch
        information = None
        if await self.client.do(lambda zk: zk.exists_async(self._path, self.wake)):
            try:
                data, _ = await self.client.do(lambda zk: zk.get_async(self._path))
            except NoNodeError:
                return  # the watch will report it
            information = decode_information(data)
        if self.client.epoch == epoch:
            self._tell(information)

    def _tell(self, information: LeaderInformation | None) -> None:
        if not self._closed:
            self._on_information(information)
