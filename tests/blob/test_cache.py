"""What a process keeps of the blobs that it has downloaded.  All on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.blob import BlobCache, BlobNotFoundError
from flinkray.testing.virtual_time import on_virtual_time
from tests.blob.hosts import DATA, KEY, OWNER, Host


@on_virtual_time
async def test_blob_requested_several_times_is_downloaded_once() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    cache = BlobCache(host.client)
    assert await asyncio.gather(*(cache.get(OWNER, KEY) for _ in range(5))) == [DATA] * 5
    assert await cache.get(OWNER, KEY) == DATA
    assert len(host.storage.reads) == len(host.entries()) - 1


@on_virtual_time
async def test_cancelled_request_for_a_blob_does_not_cancel_the_shared_download() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    cache = BlobCache(host.client)
    first, second = (asyncio.ensure_future(cache.get(OWNER, KEY)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == DATA


@on_virtual_time
async def test_full_blob_cache_evicts_the_least_recently_used_blob() -> None:
    host = await Host().start()
    keys = [await host.client.put(OWNER, bytes([n]) * 100) for n in range(3)]
    cache = BlobCache(host.client, max_size=250)
    for index in (0, 1, 0, 2):
        await cache.get(OWNER, keys[index])
    assert cache.size == 200
    host.storage.reads.clear()
    await cache.get(OWNER, keys[0])
    assert host.storage.reads == []
    await cache.get(OWNER, keys[1])
    assert len(host.storage.reads) == 1


@on_virtual_time
async def test_blob_larger_than_the_cache_is_returned_and_not_kept() -> None:
    host = await Host().start()
    small = await host.client.put(OWNER, b"small")
    await host.client.put(OWNER, DATA)
    cache = BlobCache(host.client, max_size=1000)
    await cache.get(OWNER, small)
    assert await cache.get(OWNER, KEY) == DATA
    assert cache.size == small.size


@on_virtual_time
async def test_failed_download_fails_all_waiting_requests_and_the_next_request_retries() -> None:
    host = await Host().start()
    cache = BlobCache(host.client)
    results = await asyncio.gather(
        *(cache.get(OWNER, KEY) for _ in range(2)), return_exceptions=True
    )
    assert [type(result) for result in results] == [BlobNotFoundError] * 2
    await host.client.put(OWNER, DATA)
    assert await cache.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_closing_the_blob_cache_cancels_downloads_and_drops_blobs() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    cache = BlobCache(host.client)
    download = asyncio.ensure_future(cache.get(OWNER, KEY))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await download
    assert await cache.get(OWNER, KEY) == DATA
    await cache.close()
    assert cache.size == 0
