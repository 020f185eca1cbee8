"""How long blobs are kept: retained, released, abandoned, deleted.  All on virtual time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from flinkray.blob import BlobKey, BlobServer, BlobStore, BlobStoreError
from flinkray.rpc import LocalNetwork, LocalRpcService
from flinkray.testing.virtual_time import on_virtual_time
from tests.blob.hosts import DATA, KEY, OTHER, OWNER, FaultyDirectory, Host

MISSING = BlobKey.of(b"never uploaded")


@on_virtual_time
async def test_abandoned_upload_is_deleted_after_the_upload_timeout() -> None:
    host = await Host(upload_timeout=100).start()
    server = await host.gateway()
    await server.put(OWNER, KEY, 0, DATA[:1000])
    await asyncio.sleep(90)
    await server.put(OWNER, KEY, 1000, DATA[1000:2000])
    await asyncio.sleep(90)
    assert len(host.entries()) == 2
    await asyncio.sleep(120)
    assert host.entries() == []
    assert await server.put(OWNER, KEY, 0, b"") == 0


@on_virtual_time
async def test_abandoned_upload_of_a_retained_owner_is_deleted_and_its_blobs_are_kept() -> None:
    host = await Host(upload_timeout=100).start()
    server = await host.gateway()
    await host.client.put(OWNER, b"small")
    await server.retain(OWNER, ())
    await server.put(OWNER, KEY, 0, DATA[:1000])
    await asyncio.sleep(250)
    assert [name for name in host.entries() if str(KEY) in name] == []
    assert await host.client.get(OWNER, BlobKey.of(b"small")) == b"small"


@on_virtual_time
async def test_blobs_are_deleted_after_the_timeout_unless_their_owner_is_retained() -> None:
    host = await Host(upload_timeout=100).start()
    server = await host.gateway()
    await host.client.put(OWNER, DATA)
    await host.client.put(OTHER, DATA)
    assert await server.retain(OTHER, (KEY,)) == ()
    await asyncio.sleep(250)
    assert host.entries(OWNER) == []
    assert await host.client.get(OTHER, KEY) == DATA
    await server.release(OTHER)
    await asyncio.sleep(250)
    assert host.entries(OTHER) == []


@on_virtual_time
async def test_retaining_an_owner_with_a_missing_blob_reports_the_blob_and_retains_nothing() -> (
    None
):
    host = await Host(upload_timeout=100).start()
    server = await host.gateway()
    await host.client.put(OWNER, DATA)
    assert await server.retain(OWNER, (KEY, MISSING)) == (MISSING,)
    await asyncio.sleep(250)
    assert host.entries() == []


@on_virtual_time
async def test_restarted_blob_server_keeps_complete_blobs_and_deletes_unfinished_uploads() -> None:
    host = await Host(upload_timeout=100).start()
    await host.client.put(OWNER, DATA)
    complete = host.entries()
    await (await host.gateway()).put(OWNER, MISSING, 0, b"never")
    host.network.crash("blobs")
    await asyncio.sleep(1)
    assert host.entries() == complete
    assert await host.client.get(OWNER, KEY) == DATA
    await asyncio.sleep(250)  # the new server was not told to retain them
    assert host.entries() == []


@on_virtual_time
async def test_closed_blob_server_deletes_unfinished_uploads() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    complete = host.entries()
    await (await host.gateway()).put(OWNER, MISSING, 0, b"never")
    await host.service.stop("blobs")
    assert host.entries() == complete


@on_virtual_time
async def test_paused_blob_server_deletes_nothing_that_its_successor_has() -> None:
    """The unfinished upload was sent to the successor again under the same names, and the past
    server does not know what is retained there."""
    storage = FaultyDirectory()
    is_past = asyncio.Event()

    async def is_in_charge() -> bool:
        return not is_past.is_set()

    network = LocalNetwork()
    first, second = LocalRpcService("first", network), LocalRpcService("second", network)
    past = await BlobServer.create(first, BlobStore(storage), 100.0, is_in_charge)
    past.start()
    small = BlobKey.of(b"small")
    await past.put(OTHER, small, 0, b"small")
    await past.put(OWNER, KEY, 0, DATA[:1000])
    successor = await BlobServer.create(second, BlobStore(storage))
    successor.start()
    is_past.set()
    assert await successor.put(OWNER, KEY, 0, DATA) == KEY.size
    for owner, key in ((OWNER, KEY), (OTHER, small)):
        assert await successor.retain(owner, (key,)) == ()
    before = storage.names()

    await asyncio.sleep(250)  # its sweep is due
    with pytest.raises(BlobStoreError, match="another server has taken over"):
        await past.delete(OTHER)
    await first.close()

    assert storage.names() == before
    assert await successor.get(OWNER, KEY, 0, KEY.size)
    await network.close()


@on_virtual_time
async def test_blob_server_paused_before_its_start_deletes_no_upload_of_its_successor() -> None:
    """Otherwise an accepted job lacks its blob."""
    storage = FaultyDirectory()
    is_in_charge = asyncio.Event()

    async def never() -> bool:
        is_in_charge.set()
        return False

    network = LocalNetwork()
    first, second = LocalRpcService("first", network), LocalRpcService("second", network)
    successor = await BlobServer.create(second, BlobStore(storage))
    successor.start()
    await successor.put(OWNER, KEY, 0, DATA[:1000])
    past = await BlobServer.create(first, BlobStore(storage), 100.0, never)
    past.start()
    await is_in_charge.wait()
    assert await successor.put(OWNER, KEY, 1000, DATA[1000:]) == KEY.size
    before = storage.names()
    await asyncio.sleep(250)
    await first.close()
    assert storage.names() == before
    assert len(before) == 3
    await network.close()


@on_virtual_time
async def test_blob_server_starts_although_unfinished_uploads_cannot_be_deleted() -> None:
    host = await Host(upload_timeout=100).start()
    await host.client.put(OWNER, DATA)
    await (await host.gateway()).retain(OWNER, (KEY,))
    complete = host.entries()
    await (await host.gateway()).put(OWNER, MISSING, 0, b"never")
    host.storage.broken = True
    host.network.crash("blobs")
    await asyncio.sleep(1)
    assert await (await host.gateway()).retain(OWNER, (KEY,)) == ()
    assert await host.client.get(OWNER, KEY) == DATA
    host.storage.broken = False
    await asyncio.sleep(250)
    assert host.entries() == complete


@on_virtual_time
async def test_owner_is_deleted_although_one_of_its_uploads_completes_meanwhile() -> None:
    service, storage = LocalRpcService("blobs"), FaultyDirectory()

    async def is_in_charge() -> bool:
        await server.put(OWNER, KEY, 1000, DATA[1000:])
        return True

    server = await BlobServer.create(service, BlobStore(storage), 100.0, is_in_charge)
    server.start()
    await server.put(OWNER, MISSING, 0, b"never")
    await server.put(OWNER, KEY, 0, DATA[:1000])
    await server.delete(OWNER)
    assert storage.names() == []
    await service.close()


@on_virtual_time
async def test_markers_of_blobs_are_deleted_before_their_parts() -> None:
    """HA-21: a crash in between leaves no blob that lacks parts."""
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    await host.client.put(OWNER, b"small")
    await (await host.gateway()).delete(OWNER)
    are_markers = [name.endswith(".complete") for name in host.storage.deletions]
    assert are_markers == sorted(are_markers, reverse=True)
    assert sum(are_markers) == 2
    assert host.entries() == []


@on_virtual_time
async def test_failed_deletion_of_an_owner_can_be_repeated() -> None:
    host = await Host().start()
    server = await host.gateway()
    await host.client.put(OWNER, DATA)
    host.storage.broken = True
    with pytest.raises(BlobStoreError, match="cannot delete faulty:"):
        await server.delete(OWNER)
    host.storage.broken = False
    await server.delete(OWNER)
    await server.delete(OWNER)
    assert host.entries() == []


@on_virtual_time
async def test_failed_periodic_deletion_of_unretained_blobs_is_repeated() -> None:
    host = await Host(upload_timeout=100).start()
    await host.client.put(OWNER, DATA)
    host.storage.broken = True
    await asyncio.sleep(250)
    assert host.entries() != []
    host.storage.broken = False
    await asyncio.sleep(50)
    assert host.entries() == []


@on_virtual_time
async def test_deletion_of_the_owner_during_an_upload_leaves_a_complete_blob() -> None:
    host = await Host().start()
    server = await host.gateway()
    upload = asyncio.ensure_future(host.client.put(OWNER, DATA))
    while len(host.storage.writes) < 2:  # noqa: ASYNC110 - no event tells of a write
        await asyncio.sleep(0)
    await server.delete(OWNER)
    await upload
    assert await server.retain(OWNER, (KEY,)) == ()
    assert await host.client.get(OWNER, KEY) == DATA


@on_virtual_time
async def test_deletion_of_an_owner_removes_a_part_that_a_cancelled_upload_still_writes() -> None:
    service, storage = LocalRpcService("blobs"), FaultyDirectory()
    server = await BlobServer.create(service, BlobStore(storage))
    server.start()
    put = asyncio.ensure_future(server.put(OWNER, KEY, 0, DATA[:1000]))
    may_go_on = threading.Event()

    def give_up(name: str) -> None:
        service.loop.call_soon_threadsafe(put.cancel)
        may_go_on.wait(10)

    storage.before_write = give_up
    await asyncio.wait([put])
    assert put.cancelled()
    deletion = asyncio.ensure_future(server.delete(OWNER))
    for _ in range(20):
        await asyncio.sleep(0)
    may_go_on.set()
    await deletion
    while not storage.writes:  # noqa: ASYNC110 - no event tells of a write
        await asyncio.sleep(0)
    assert storage.names() == []
    await service.close()
