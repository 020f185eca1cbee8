"""Whole blobs there and back, and what happens to them on the way.  All on virtual time."""

from __future__ import annotations

import asyncio

import pytest

from flinkray.blob import (
    BlobClient,
    BlobCorruptError,
    BlobKey,
    BlobNotFoundError,
    BlobStoreError,
)
from flinkray.core.errors import RpcConnectionError
from flinkray.testing.virtual_time import on_virtual_time
from tests.blob.hosts import DATA, FRAME, KEY, OTHER, OWNER, SERVER, Host


@on_virtual_time
async def test_blob_larger_than_a_frame_is_downloaded_unchanged() -> None:
    host = await Host().start()
    assert len(DATA) > 3 * FRAME
    assert await host.client.put(OWNER, DATA) == KEY
    assert await host.client.get(OWNER, KEY) == DATA
    assert max(len(host.storage.read(name) or b"") for name in host.entries()) < FRAME


@pytest.mark.parametrize("data", [b"", b"x", bytes(FRAME)])
def test_blob_of_any_size_is_downloaded_unchanged(data: bytes) -> None:
    @on_virtual_time
    async def there_and_back() -> None:
        host = await Host().start()
        key = await host.client.put(OWNER, data)
        assert key == BlobKey.of(data)
        assert await host.client.get(OWNER, key) == data
        with pytest.raises(BlobNotFoundError):
            await host.client.get(OTHER, key)

    there_and_back()


@on_virtual_time
async def test_upload_of_an_existing_blob_sends_no_data() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    written = len(host.storage.writes)
    await host.client.put(OWNER, DATA)
    assert len(host.storage.writes) == written


@on_virtual_time
async def test_deleting_a_blob_of_one_owner_keeps_the_same_blob_of_another_owner() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    await host.client.put(OTHER, DATA)
    await (await host.gateway()).delete(OWNER)
    assert host.entries(OWNER) == []
    assert await host.client.get(OTHER, KEY) == DATA
    with pytest.raises(BlobNotFoundError, match=f"owner has no blob {KEY}"):
        await host.client.get(OWNER, KEY)


@on_virtual_time
async def test_concurrent_uploads_of_the_same_blob_write_each_part_once() -> None:
    host = await Host().start()
    other = BlobClient(host.service, SERVER)
    await asyncio.gather(host.client.put(OWNER, DATA), other.put(OWNER, DATA))
    parts = [name for name in host.storage.writes if not name.endswith("complete")]
    assert len(parts) == len(set(parts))
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_blob_part_sent_twice_or_too_early_is_answered_with_the_offset_to_send_next() -> None:
    """A client that has missed an answer sends a part again."""
    host = await Host().start()
    server = await host.gateway()
    assert await server.put(OWNER, KEY, 0, DATA[:1000]) == 1000
    assert await server.put(OWNER, KEY, 0, DATA[:1000]) == 1000
    assert await server.put(OWNER, KEY, 5000, DATA[5000:6000]) == 1000
    assert await server.put(OWNER, KEY, 500, DATA[500:1500]) == 1500
    assert await server.put(OWNER, KEY, 0, b"") == 1500
    await host.client.put(OWNER, DATA)
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_upload_completes_although_the_blob_server_dies_in_its_middle() -> None:
    host = Host()
    host.network.restart_delay = 2.0
    await host.start()

    def crash_once(name: str) -> None:
        if len(host.storage.writes) == 3:
            host.storage.before_write = lambda name: None
            host.service.loop.call_soon_threadsafe(host.network.crash, "blobs")

    host.storage.before_write = crash_once
    assert await host.client.put(OWNER, DATA) == KEY
    assert host.service.loop.time() >= 2.0
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_download_continues_at_the_part_where_the_blob_server_died() -> None:
    host = Host()
    host.network.restart_delay = 2.0
    await host.start()
    await host.client.put(OWNER, DATA)
    host.storage.reads.clear()
    download = asyncio.ensure_future(host.client.get(OWNER, KEY))
    while len(host.storage.reads) < 3:  # noqa: ASYNC110 - no event tells of a read
        await asyncio.sleep(0)
    host.network.crash("blobs")
    assert await download == DATA
    parts = len(host.entries()) - 1
    reads = [name for name in host.storage.reads if not name.endswith(".complete")]
    assert len(reads) <= parts + 1


@on_virtual_time
async def test_upload_to_a_server_that_stays_away_fails_with_its_address() -> None:
    host = Host()
    host.network.restart_delay = 1000.0
    await host.start()
    host.network.crash("blobs")
    client = BlobClient(host.service, SERVER, patience=30.0)
    with pytest.raises(RpcConnectionError, match=SERVER):
        await client.put(OWNER, DATA)
    assert 30 <= host.service.loop.time() <= 32


@on_virtual_time
async def test_upload_with_a_wrong_checksum_is_refused_and_deleted() -> None:
    host = await Host().start()
    server = await host.gateway()
    await server.put(OWNER, KEY, 0, bytes(10_000))
    last = len(DATA) - 10_000
    for offset in range(10_000, last, 10_000):
        await server.put(OWNER, KEY, offset, DATA[offset : min(offset + 10_000, last)])
    with pytest.raises(BlobCorruptError, match="SHA-256"):
        await server.put(OWNER, KEY, last, DATA[last:])
    assert host.entries() == []
    await host.client.put(OWNER, DATA)
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_upload_succeeds_after_another_uploader_sent_wrong_bytes() -> None:
    host = await Host().start()
    await (await host.gateway()).put(OWNER, KEY, 0, bytes(10_000))
    await host.client.put(OWNER, DATA)
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_upload_of_more_bytes_than_the_key_says_is_refused() -> None:
    host = await Host().start()
    key = BlobKey(KEY.digest, 100)
    with pytest.raises(BlobCorruptError, match="more bytes"):
        await (await host.gateway()).put(OWNER, key, 0, bytes(200))
    assert host.entries() == []


@on_virtual_time
async def test_chunk_that_is_corrupt_once_is_downloaded_again() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    host.storage.flips = 1
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_download_of_a_blob_that_stays_corrupt_raises_an_error() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    host.storage.flips = 10_000
    with pytest.raises(BlobCorruptError, match="may be damaged"):
        await host.client.get(OWNER, KEY)


@pytest.mark.parametrize("damage", ["missing", "cut short"])
def test_missing_or_short_part_raises_an_error_with_its_location(damage: str) -> None:
    @on_virtual_time
    async def download() -> None:
        host = await Host().start()
        await host.client.put(OWNER, DATA)
        name = host.entries()[1]
        host.storage.delete(name)
        if damage == "cut short":
            host.storage.write(name, b"x")
        with pytest.raises(BlobStoreError, match=r"faulty:.*part"):
            await host.client.get(OWNER, KEY)

    download()


@on_virtual_time
async def test_upload_to_a_full_disk_raises_an_error_and_frees_the_space_it_used() -> None:
    host = await Host().start()
    host.storage.capacity = len(DATA) // 2
    with pytest.raises(BlobStoreError, match=r"cannot write faulty:.*No space left on device"):
        await host.client.put(OWNER, DATA)
    assert host.entries() == []
    host.storage.capacity = None
    await host.client.put(OWNER, DATA)
    assert await host.client.get(OWNER, KEY) == DATA
