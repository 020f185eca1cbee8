"""The cache in which a process keeps the blobs that it has downloaded."""

from __future__ import annotations

import asyncio

from flinkray.blob.client import BlobClient
from flinkray.core.blobs import BlobKey, BlobOwner

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
        self._downloads: dict[BlobKey, asyncio.Task[bytes]] = {}

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
        download = self._downloads.get(key)
        if download is None or download.done():
            download = asyncio.ensure_future(self._download(owner, key))
            self._downloads[key] = download
            download.add_done_callback(lambda ended: self._ended(key, ended))
        # a caller that is cancelled must not cancel the download for the others
        return await asyncio.shield(download)

    async def close(self) -> None:
        """Cancel the running downloads and empty the cache."""
        downloads = list(self._downloads.values())
        for download in downloads:
            download.cancel()
        if downloads:
            await asyncio.wait(downloads)
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

    def _ended(self, key: BlobKey, download: asyncio.Task[bytes]) -> None:
        if self._downloads.get(key) is download:
            del self._downloads[key]
        if not download.cancelled():
            download.exception()  # marks the error as seen: waiting callers have got it already
