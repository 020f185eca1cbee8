"""The blob server: receives blobs in parts, stores them by owner, and returns them in parts."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flinkray.blob.gateway import (
    BLOB_SERVER,
    BlobCorruptError,
    BlobNotFoundError,
    BlobServerGateway,
    BlobStoreError,
    chunk_size,
)
from flinkray.blob.store import BlobStore, Offsets, RecoveredBlobs
from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.rpc import RpcEndpoint, RpcService

log = logging.getLogger(__name__)

T = TypeVar("T")

UPLOAD_TIMEOUT = 600.0
"""Seconds without use after which unfinished uploads and unretained blobs are deleted."""


async def always() -> bool:
    """Return True. The default *is_in_charge* of a blob server, for a server without successors."""
    return True


@dataclass(eq=False)
class _Upload:
    touched: float
    offsets: list[int] = field(default_factory=list)
    received: int = 0
    hash: Any = field(default_factory=hashlib.sha256)
    """SHA-256 of the bytes received so far."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while parts of this blob are written or deleted."""
    over: bool = False
    """Whether the upload has ended: the blob is complete, or its parts were discarded."""


class BlobServer(RpcEndpoint, BlobServerGateway):
    """The endpoint that stores blobs in a :class:`BlobStore`; make it with :meth:`create`."""

    def __init__(
        self,
        rpc_service: RpcService,
        store: BlobStore,
        recovered: RecoveredBlobs,
        upload_timeout: float,
        is_in_charge: Callable[[], Awaitable[bool]],
    ) -> None:
        """Use :meth:`create` instead."""
        super().__init__(rpc_service, BLOB_SERVER)
        self._store = store
        self._blobs = recovered.complete
        self._upload_timeout = upload_timeout
        self._is_in_charge = is_in_charge
        self._uploads: dict[tuple[BlobOwner, BlobKey], _Upload] = {}
        self._left_behind = {at: dict.fromkeys(offsets) for at, offsets in recovered.strays.items()}
        """Offsets of stored parts that belong to no blob.
        They come from a previous server, or from uploads that were discarded while the storage
        failed."""
        self._retained: dict[BlobOwner, None] = {}
        now = self.counted_time()
        self._touched: dict[BlobOwner, float] = dict.fromkeys(self._blobs, now)
        """Time of the last use of each owner that is not retained."""
        self._deletions = asyncio.Lock()
        """A lock, held during retain and delete, so that neither runs during the other."""
        self._work: dict[asyncio.Task[Any], None] = {}
        self._sweeping = False

    @classmethod
    async def create(
        cls,
        rpc_service: RpcService,
        store: BlobStore,
        upload_timeout: float = UPLOAD_TIMEOUT,
        is_in_charge: Callable[[], Awaitable[bool]] = always,
    ) -> BlobServer:
        """Create a server, which is not started yet, for the blobs that are in *store*.

        When the server is started, it deletes the unfinished uploads of its predecessor.

        Args:
            upload_timeout: seconds without a request after which an unfinished upload, or the blobs
                of an owner that are not retained, are deleted.
            is_in_charge: called before each deletion; returns whether this server still owns the
                store. A server that was paused may have a successor, which may have received the
                blob again.

        Raises:
            BlobStoreError: the store cannot be read.
        """
        recovered = await rpc_service.run_blocking(store.recover)
        return cls(rpc_service, store, recovered, upload_timeout, is_in_charge)

    async def on_start(self) -> None:
        if self._left_behind:
            self.create_task(self._sweep_all_left_behind(), "delete unfinished uploads")
        self._sweep_later(self._upload_timeout)

    async def on_stop(self) -> None:
        """Discard unfinished uploads. If the storage fails, the next server deletes them."""
        while self._work:
            await asyncio.wait(tuple(self._work))
        for owner, key in tuple(self._uploads):
            await self._abandon(owner, key, "the blob server is closed")

    # --- uploads ------------------------------------------------------------------------------

    async def put(self, owner: BlobOwner, key: BlobKey, offset: int, data: bytes) -> int:
        self._touch(owner)
        if key in self._blobs.get(owner, {}):
            return key.size
        upload = self._uploads.get((owner, key))
        if upload is None:
            if not data and key.size > 0:
                return 0
            upload = self._uploads[owner, key] = _Upload(self.counted_time())
            self._sweep_later(self._upload_timeout)
        # runs to its end even if the caller gives up, since written parts must be known here
        return await self._to_the_end(self._append(owner, key, upload, offset, data))

    async def _append(
        self, owner: BlobOwner, key: BlobKey, upload: _Upload, offset: int, data: bytes
    ) -> int:
        async with upload.lock:
            if upload.over:
                return key.size if key in self._blobs.get(owner, {}) else 0
            upload.touched = self.counted_time()
            new = data[upload.received - offset :] if offset <= upload.received else b""
            if upload.received + len(new) > key.size:
                await self._throw_away(owner, key, upload)
                raise BlobCorruptError(f"{owner}: more bytes came than blob {key} has")
            try:
                if new:
                    upload.offsets.append(upload.received)  # a failed write may leave the part
                    await self.rpc_service.run_blocking(
                        self._store.write_part, owner, key, upload.received, new
                    )
                    upload.received += len(new)
                    await self.rpc_service.run_blocking(upload.hash.update, new)
                if upload.received == key.size:
                    await self._complete(owner, key, upload)
            except BlobStoreError:
                await self._throw_away(owner, key, upload)  # a full disk has room again
                raise
            return upload.received

    async def _complete(self, owner: BlobOwner, key: BlobKey, upload: _Upload) -> None:
        digest = upload.hash.digest()
        if digest != key.digest:
            await self._throw_away(owner, key, upload)
            raise BlobCorruptError(
                f"{owner}: what came for blob {key} has SHA-256 {digest.hex()}; it was thrown away"
            )
        await self.rpc_service.run_blocking(self._store.complete, owner, key, tuple(upload.offsets))
        upload.over = True
        del self._uploads[owner, key]
        self._blobs.setdefault(owner, {})[key] = tuple(upload.offsets)
        log.info("%s: blob %s is stored", owner, key)

    async def _throw_away(self, owner: BlobOwner, key: BlobKey, upload: _Upload) -> None:
        """End an incomplete upload and delete its parts. If the storage fails, the parts are
        deleted later. The caller holds the upload's lock."""
        try:
            await self._delete_stored(owner, {key: tuple(upload.offsets)})
        except BlobStoreError as error:
            log.warning("%s: parts of an unfinished blob cannot be deleted yet: %s", owner, error)
            self._left_behind.setdefault((owner, key), {}).update(dict.fromkeys(upload.offsets))
            self._sweep_later(self._upload_timeout)
        # only now: a new upload writes to the same places
        upload.over = True
        del self._uploads[owner, key]

    async def _delete_stored(self, owner: BlobOwner, blobs: dict[BlobKey, Offsets]) -> None:
        """Delete blobs with their markers. Blobs whose upload is incomplete may have markers,
        too."""
        if blobs:
            await self._check_in_charge()
            await self.rpc_service.run_blocking(self._store.delete, owner, blobs)

    async def _check_in_charge(self) -> None:
        if not await self._is_in_charge():
            raise BlobStoreError(
                f"nothing in {self._store.location} is deleted: another server has taken over"
            )

    async def _abandon(self, owner: BlobOwner, key: BlobKey, reason: str) -> None:
        upload = self._uploads.get((owner, key))
        if upload is None:
            return  # the upload has ended already
        async with upload.lock:
            if not upload.over:
                log.info("%s: the upload of blob %s is given up: %s", owner, key, reason)
                await self._throw_away(owner, key, upload)

    # --- downloads ----------------------------------------------------------------------------

    async def get(self, owner: BlobOwner, key: BlobKey, offset: int, size: int) -> bytes:
        offsets = self._blobs.get(owner, {}).get(key)
        if offsets is None:
            raise BlobNotFoundError(owner, key)
        if not 0 <= offset < key.size:
            return b""
        begin = offsets[max(0, bisect_right(offsets, offset) - 1)] if offsets else 0
        part = await self.rpc_service.run_blocking(self._store.read_part, owner, key, begin)
        if part is None:
            if key not in self._blobs.get(owner, {}):
                raise BlobNotFoundError(owner, key)  # deleted meanwhile
            raise BlobStoreError(f"{self._store.location}: blob {key} of {owner} lacks a part")
        first = offset - begin
        chunk = part[first : first + min(max(size, 1), chunk_size(self.rpc_service))]
        if not chunk:
            raise BlobStoreError(f"{self._store.location}: a part of blob {key} is cut short")
        return chunk

    # --- life and death of owners -------------------------------------------------------------

    async def retain(self, owner: BlobOwner, keys: tuple[BlobKey, ...]) -> tuple[BlobKey, ...]:
        async with self._deletions:
            there = self._blobs.get(owner, {})
            missing = tuple(key for key in keys if key not in there)
            if not missing:
                self._retained[owner] = None
                self._touched.pop(owner, None)
            return missing

    async def release(self, owner: BlobOwner) -> None:
        self._retained.pop(owner, None)
        self._touch(owner)

    async def delete(self, owner: BlobOwner) -> None:
        await self._to_the_end(self._delete(owner))

    async def _delete(self, owner: BlobOwner) -> None:
        async with self._deletions:
            self._retained.pop(owner, None)
            await self._delete_all(owner, "its owner is deleted")

    async def _delete_all(self, owner: BlobOwner, reason: str) -> None:
        for uploading, key in tuple(self._uploads):
            if uploading == owner:
                await self._abandon(owner, key, reason)
        blobs = dict(self._blobs.get(owner, {}))
        await self._delete_stored(owner, blobs)
        remaining = self._blobs.get(owner, {})
        for key in blobs:
            remaining.pop(key, None)
        if not remaining:
            self._blobs.pop(owner, None)
            self._touched.pop(owner, None)

    def _touch(self, owner: BlobOwner) -> None:
        if owner not in self._retained:
            self._touched[owner] = self.counted_time()
        self._sweep_later(self._upload_timeout)

    # --- what was abandoned -------------------------------------------------------------------

    def _sweep_later(self, delay: float) -> None:
        if not self._sweeping and (self._uploads or self._touched or self._left_behind):
            self._sweeping = True
            self.schedule_deadline(delay, self._sweep)

    async def _sweep(self) -> None:
        limit = self.counted_time() - self._upload_timeout
        for (owner, key), upload in tuple(self._uploads.items()):
            if upload.touched <= limit:
                await self._abandon(owner, key, f"nothing came for {self._upload_timeout:g} s")
        for owner, touched in tuple(self._touched.items()):
            if touched <= limit:
                await self._sweep_owner(owner, limit)
        await self._sweep_all_left_behind()
        self._sweeping = False
        now = self.counted_time()
        times = [upload.touched for upload in self._uploads.values()] + [*self._touched.values()]
        next_limit = min(times, default=now) + self._upload_timeout
        # what could not be deleted is overdue: wait a while before the next attempt
        self._sweep_later(max(next_limit - now, self._upload_timeout / 10))

    async def _sweep_all_left_behind(self) -> None:
        for owner, key in tuple(self._left_behind):
            await self._sweep_left_behind(owner, key)

    async def _sweep_left_behind(self, owner: BlobOwner, key: BlobKey) -> None:
        if (owner, key) in self._uploads or (owner, key) not in self._left_behind:
            return  # an upload writes to the same places, or another sweep is at work on them
        offsets = self._left_behind.pop((owner, key))
        there = self._blobs.get(owner, {}).get(key)
        if there is None:
            self._uploads[owner, key] = _Upload(self.counted_time(), list(offsets))
            await self._abandon(owner, key, "it was given up before")
            return
        stray = tuple(offset for offset in offsets if offset not in there)
        try:
            await self._check_in_charge()
            await self.rpc_service.run_blocking(self._store.delete_parts, owner, key, stray)
        except BlobStoreError as error:
            log.warning("%s: parts of an earlier upload stay: %s", owner, error)
            self._left_behind[owner, key] = offsets

    async def _sweep_owner(self, owner: BlobOwner, limit: float) -> None:
        async with self._deletions:
            if self._touched.get(owner, limit + 1) > limit:
                return  # retained, deleted or used meanwhile
            try:
                await self._delete_all(owner, "nobody retains its owner")
            except BlobStoreError as error:
                log.warning("%s: its blobs cannot be deleted yet: %s", owner, error)

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Await *work* and return its result. If the caller is cancelled, *work* continues."""
        task = self.create_task(_outcome(work))
        self._work[task] = None
        task.add_done_callback(lambda _: self._work.pop(task))
        done = await asyncio.shield(task)
        return done.result()


async def _outcome(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Run *work* to its end, and return a done future that holds its result or its error."""
    done = asyncio.ensure_future(work)
    done.add_done_callback(lambda _: done.cancelled() or done.exception())
    try:
        await asyncio.wait([done])
    except asyncio.CancelledError:
        done.cancel()
        raise
    return done
