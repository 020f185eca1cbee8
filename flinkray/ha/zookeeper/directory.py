"""Implements directories whose entries count only if ZooKeeper points to them.

The content of an entry is in storage under a name of its own; a znode points to it. A pointer is
set in one transaction that checks that the writer's *fence* (see :mod:`.leader_drivers`) still
exists: a paused leader whose session has expired changes nothing. Content that the leader wrote and
to which no znode points is deleted, unless the leader dies before."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)

from flinkray.ha.directory import Directory, LostEntryError
from flinkray.ha.zookeeper.client import AWAY, ZooKeeperClient, check_transaction

_AT_ONCE = 200
"""How many requests to ZooKeeper may be in progress at the same time.

A Dispatcher that takes over reads the results of all remembered jobs.
"""


class FencedError(OSError):
    """Another leader has taken over, or there is no leader: nothing was changed."""


class ZooKeeperDirectory(Directory):
    """A directory whose entries only the present leader can change. Blocking.

    *client* is connected, or is about to connect. *path* is the path of the directory's znode.
    *storage* holds the contents. *fence* returns the path of the znode that exists as long as the
    writer leads, or None.
    """

    def __init__(
        self,
        client: ZooKeeperClient,
        path: str,
        storage: Directory,
        fence: Callable[[], str | None],
    ) -> None:
        self._client = client
        self._path = path
        self._storage = storage
        self._fence = fence

    def location(self, name: str = "") -> str:
        path = f"{self._path}/{name}" if name else self._path
        return f"zookeeper://{self._client.hosts}{path}"

    def read(self, name: str) -> bytes | None:
        while True:
            pointer = self._pointer(name)
            if pointer is None:
                return None
            data = self._storage.read(pointer)
            if data is not None:
                return data
            if self._pointer(name) == pointer:
                raise self._lost(pointer)

    def _lost(self, pointer: str) -> OSError:
        what = f"{self._storage.location(pointer)} is gone, and ZooKeeper points to it"
        if self._storage.is_there():
            return LostEntryError(what)
        return OSError(f"{what}; the whole directory is not there: is its storage mounted?")

    def read_many(
        self, names: Sequence[str]
    ) -> Iterator[tuple[str, bytes | LostEntryError | None]]:
        for begin in range(0, len(names), _AT_ONCE):
            some = names[begin : begin + _AT_ONCE]
            paths = [f"{self._path}/{name}" for name in some]
            found = self._ask(partial(_answers, KazooClient.get_async, paths))
            for name, answer in zip(some, found, strict=True):
                pointer = bytes(answer[0]).decode() if answer is not None else ""
                data = self._storage.read(pointer) if pointer else None
                yield name, self._read_or_lost(name) if pointer and data is None else data

    def write(self, name: str, data: bytes) -> None:
        fence = self._leading()
        pointer = f"{name}-{uuid.uuid4().hex}"
        self._storage.write(pointer, data)
        try:
            before = self._point(name, pointer, fence)
        except FencedError:
            self._storage.delete(pointer)
            raise
        if before is not None:
            self._discard(before)

    def delete(self, name: str) -> None:
        fence = self._leading()

        def begin(zk: KazooClient) -> Any:
            transaction = zk.transaction()
            transaction.check(fence, -1)
            transaction.delete(f"{self._path}/{name}")
            return transaction.commit()

        found = None
        while (pointer := self._pointer(name)) is not None:
            found = pointer
            if self._committed(begin, fence):
                break
        if found is not None:  # also if an earlier call, whose answer was lost, has deleted it
            self._discard(found)

    def names(self) -> list[str]:
        def written(zk: KazooClient) -> list[tuple[int, str]]:
            try:
                names = zk.get_children(self._path)
            except NoNodeError:
                return []
            paths = [f"{self._path}/{name}" for name in names]
            return [
                (stat.last_modified_transaction_id, name)
                for name, stat in zip(
                    names, _answers(KazooClient.exists_async, paths, zk), strict=True
                )
                if stat is not None and stat.data_length > 0  # subdirectories have no data
            ]

        return [name for _, name in sorted(self._ask(written))]

    def subdirectory(self, name: str) -> ZooKeeperDirectory:
        path = f"{self._path}/{name}"
        return ZooKeeperDirectory(self._client, path, self._storage.subdirectory(name), self._fence)

    def delete_all(self) -> None:
        """Delete the pointers in ZooKeeper, then the contents in the storage.

        If the pointers cannot be deleted, the contents are kept (SPEC HA-21). Any process may call
        this, as it needs no leadership.
        """

        with suppress(NoNodeError):
            self._ask(lambda zk: zk.delete(self._path, recursive=True))
        self._storage.delete_all()

    def _leading(self) -> str:
        fence = self._fence()
        if fence is None:
            raise FencedError("this process does not lead, and only a leader changes anything")
        return fence

    def _pointer(self, name: str) -> str | None:
        def get(zk: KazooClient) -> str | None:
            try:
                data, _ = zk.get(f"{self._path}/{name}")
            except NoNodeError:
                return None
            return bytes(data).decode() or None

        pointer: str | None = self._ask(get)
        return pointer

    def _point(self, name: str, pointer: str, fence: str) -> str | None:
        """Make the entry *name* point to *pointer* (the name of a content in the storage).

        Return the pointer that the entry had before; None if it had none, or the earlier one is not
        known. Raises FencedError if the entry will never point to *pointer*, and OSError if it is
        not known where the entry points.
        """
        before = None
        while (now := self._pointer(name)) != pointer:
            before = now
            try:
                if self._committed(partial(self._set, name, now is None, pointer, fence), fence):
                    break
            except FencedError:
                # The fence is gone, so what was committed before is seen by now.
                if self._pointer(name) != pointer:
                    raise
                break
        return before  # None also if an earlier call, whose answer was lost, has set it

    def _set(self, name: str, is_new: bool, pointer: str, fence: str, zk: KazooClient) -> Any:
        path = f"{self._path}/{name}"
        if is_new:
            zk.ensure_path(self._path)
        transaction = zk.transaction()
        transaction.check(fence, -1)
        if is_new:
            transaction.create(path, pointer.encode())
        else:
            transaction.set_data(path, pointer.encode())
        return transaction.commit()

    def _committed(self, begin: Callable[[KazooClient], Any], fence: str) -> bool:
        """Commit a transaction that changes an entry, and return True.

        Return False if another writer was faster, or the outcome is not known: read the entry
        again.

        Raises:
            FencedError: the fence (the znode that shows that this writer leads) no longer exists.
        """
        try:
            check_transaction(self._client.blocking(begin))
        except (BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, *AWAY):
            if self._ask(lambda zk: zk.exists(fence)) is None:
                raise FencedError(
                    "another leader has taken over, or this one's session has expired"
                ) from None
            return False
        except KazooException as error:
            raise OSError(str(self._client.explain(error))) from error
        return True

    def _discard(self, pointer: str) -> None:
        with suppress(OSError):
            self._storage.delete(pointer)

    def _ask(self, work: Callable[[KazooClient], Any]) -> Any:
        try:
            return self._client.ask(work)
        except NoNodeError:
            raise
        except AWAY as error:
            raise OSError(f"ZooKeeper at {self._client.hosts} does not answer") from error
        except KazooException as error:
            raise OSError(str(self._client.explain(error))) from error


def _answers(
    ask: Callable[[KazooClient, str], Any], paths: Sequence[str], zk: KazooClient
) -> list[Any]:
    """Send one of kazoo's ``…_async`` requests for each path; return the answers in the same order.
    The answer is None if there is no such znode."""
    found = []
    for begin in range(0, len(paths), _AT_ONCE):
        for asked in [ask(zk, path) for path in paths[begin : begin + _AT_ONCE]]:
            try:
                found.append(asked.get())
            except NoNodeError:
                found.append(None)
    return found
