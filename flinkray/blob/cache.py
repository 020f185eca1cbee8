"""What a process keeps of the blobs that it has downloaded."""

from __future__ import annotations

import asyncio

from flinkray.blob.client import BlobClient
from flinkray.core.blobs import BlobKey, BlobOwner

DEFAULT_CACHE_SIZE = 256 * 2**20
"""Bytes."""


class BlobCache:
    """Blobs by content, one download for all who ask at the same time; use on one event loop.

    Holds at most *max_size* bytes, those that were asked for last; a larger blob is given out and
    not kept.  That a blob's owner was deleted is not noticed: who has the key may have the bytes.
    """

    def __init__(self, client: BlobClient, max_size: int = DEFAULT_CACHE_SIZE) -> None:
        self._client = client
        self._max_size = max_size
        self._size = 0
        self._blobs: dict[BlobKey, bytes] = {}
        """Least recently used first."""
        self._downloads: dict[BlobKey, asyncio.Task[bytes]] = {}

    @property
    def size(self) -> int:
        """Bytes held now."""
        return self._size

    async def get(self, owner: BlobOwner, key: BlobKey) -> bytes:
        """See :meth:`BlobClient.get`.  A failed download fails all who wait for it; the next call
        tries again."""
        blob = self._blobs.pop(key, None)
        if blob is not None:
            self._blobs[key] = blob
            return blob
        download = self._downloads.get(key)
        if download is None or download.done():
            download = asyncio.ensure_future(self._download(owner, key))
            self._downloads[key] = download
            download.add_done_callback(lambda ended: self._ended(key, ended))
        # one who gives up must not take the others' download away
        return await asyncio.shield(download)

    async def close(self) -> None:
        """Give up the downloads that are under way, and what is held."""
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
            download.exception()  # whoever asked for it got it, or does not want it any more
