"""The client side of blobs: transfers whole blobs with retries, and caches what it downloaded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from flinkray.blob.gateway import BlobCorruptError, BlobServerGateway, chunk_size
from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.core.errors import RpcError, RpcTimeoutError
from flinkray.rpc import RpcService
from flinkray.rpc.shared_calls import SharedCalls

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds without progress after which a transfer fails; Ray restarts a server within 2."""

_FIRST_DELAY = 0.05
_LONGEST_DELAY = 1.0
"""Longest pause in seconds before a new attempt to connect; pauses double up to this value."""

_CORRUPT_ATTEMPTS = 3
"""Number of attempts, in all, for a transfer whose bytes arrive damaged."""


class BlobClient:
    """Puts blobs to one server and gets them from it. Use it on the service's event loop.

    When the connection breaks or the server restarts, a transfer continues where it stopped. Each
    blob is held in memory as a whole.
    """

    def __init__(
        self, rpc_service: RpcService, server_address: str, *, patience: float = PATIENCE
    ) -> None:
        self._rpc_service = rpc_service
        self._address = server_address
        self._patience = patience
        self._gateway: BlobServerGateway | None = None

    async def put(self, owner: BlobOwner, data: bytes) -> BlobKey:
        """Store *data* durably and return its key; sends no bytes if the server has the blob.

        Raises:
            BlobStoreError: the server's storage fails.
            BlobCorruptError: the bytes arrived damaged at the server in every attempt.
            RpcError: the server was unreachable for longer than *patience*.
        """
        key = await self._rpc_service.run_blocking(BlobKey.of, data)
        await self._whole(lambda: self._put(owner, key, data))
        return key

    async def get(self, owner: BlobOwner, key: BlobKey) -> bytes:
        """Download a blob, check its hash, and return its bytes.

        Raises:
            BlobNotFoundError: the owner has no such blob.
            BlobStoreError: the server's storage fails.
            BlobCorruptError: the bytes arrived damaged in every attempt.
            RpcError: the server was unreachable for longer than *patience*.
        """
        return await self._whole(lambda: self._get(owner, key))

    async def _put(self, owner: BlobOwner, key: BlobKey, data: bytes) -> None:
        size = chunk_size(self._rpc_service)
        progress = _Progress(self._rpc_service, self._patience)

        async def send(offset: int, chunk: bytes) -> int:
            return await self._ask(progress, lambda server: server.put(owner, key, offset, chunk))

        there = await send(0, b"")
        while there < key.size:
            before, there = there, await send(there, data[there : there + size])
            progress.reached(there)
            if there <= before:  # the server restarted, or discarded the received bytes
                await self._pause(progress, f"{self._address} lost what it had of blob {key}")

    async def _get(self, owner: BlobOwner, key: BlobKey) -> bytes:
        size = chunk_size(self._rpc_service)
        progress = _Progress(self._rpc_service, self._patience)

        async def receive(offset: int) -> bytes:
            return await self._ask(progress, lambda server: server.get(owner, key, offset, size))

        data = bytearray(await receive(0))  # fails if the blob does not exist, size 0 too
        while len(data) < key.size:
            data += await receive(len(data))
            progress.reached(len(data))
        blob = bytes(data)
        if not await self._rpc_service.run_blocking(key.matches, blob):
            raise BlobCorruptError(
                f"what {self._address} gave out as blob {key} of {owner} is not that: the stored "
                "blob may be damaged; upload it again under another owner (submit the job again)"
            )
        return blob

    async def _whole(self, transfer: Callable[[], Awaitable[T]]) -> T:
        for _ in range(_CORRUPT_ATTEMPTS - 1):
            try:
                return await transfer()
            except BlobCorruptError as error:
                log.warning("again, from the beginning: %s", error)
        return await transfer()

    async def _ask(
        self, progress: _Progress, call: Callable[[BlobServerGateway], Awaitable[T]]
    ) -> T:
        while True:
            try:
                if self._gateway is None:
                    self._gateway = await self._rpc_service.connect(
                        self._address, BlobServerGateway
                    )
                return await call(self._gateway)
            except RpcError as error:
                self._gateway = None
                if not error.retryable or progress.is_over():
                    raise
                reason = str(error)
            await self._pause(progress, reason)

    async def _pause(self, progress: _Progress, reason: str) -> None:
        if progress.is_over():
            raise RpcTimeoutError(f"no progress within {self._patience:g} s: {reason}")
        log.info("%s: %s; trying again", self._address, reason)
        await self._rpc_service.pause(progress.next_delay())


class _Progress:
    """Measures for how many seconds a transfer of a blob has moved no new byte, and paces
    retries."""

    def __init__(self, rpc_service: RpcService, patience: float) -> None:
        self._now = rpc_service.deadlines.time
        self._patience = patience
        self._best = -1
        self._since = self._now()
        self._delay = _FIRST_DELAY

    def reached(self, position: int) -> None:
        if position > self._best:
            self._best = position
            self._since = self._now()
            self._delay = _FIRST_DELAY

    def is_over(self) -> bool:
        return self._now() - self._since > self._patience

    def next_delay(self) -> float:
        delay = self._delay
        self._delay = min(2 * delay, _LONGEST_DELAY)
        return delay


DEFAULT_CACHE_SIZE = 256 * 2**20
"""Size limit of a blob cache, in bytes."""


class BlobCache:
    """A cache of blobs by content. Use it on one event loop.

    Callers that ask for the same blob at the same time share one download. The cache holds at most
    *max_size* bytes and drops the least recently used blobs first; a larger blob is not kept. A
    cached blob is returned even if its owner was deleted.
    """

    def __init__(self, client: BlobClient, max_size: int = DEFAULT_CACHE_SIZE) -> None:
        self._client = client
        self._max_size = max_size
        self._size = 0
        self._blobs: dict[BlobKey, bytes] = {}
        """Cached blobs, the least recently used first."""
        self._downloads = SharedCalls[BlobKey, bytes]()

    @property
    def size(self) -> int:
        """Size of the cached blobs in bytes."""
        return self._size

    async def get(self, owner: BlobOwner, key: BlobKey) -> bytes:
        """Return the blob from the cache, or download it with :meth:`BlobClient.get`.
        If the download fails, all callers that wait for it get the error; the next call tries
        again."""
        blob = self._blobs.pop(key, None)
        if blob is not None:
            self._blobs[key] = blob
            return blob
        return await self._downloads.result(key, partial(self._download, owner, key))

    async def close(self) -> None:
        """Cancel the running downloads and empty the cache."""
        await self._downloads.cancel()
        self._blobs.clear()
        self._size = 0

    async def _download(self, owner: BlobOwner, key: BlobKey) -> bytes:
        blob = await self._client.get(owner, key)
        if key.size <= self._max_size:
            self._blobs[key] = blob
            self._size += key.size
        while self._size > self._max_size:
            oldest = next(iter(self._blobs))
            del self._blobs[oldest]
            self._size -= oldest.size
        return blob
