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
async def test_an_abandoned_upload_is_deleted_after_the_timeout() -> None:
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
async def test_an_abandoned_upload_of_a_retained_owner_is_deleted_too() -> None:
    host = await Host(upload_timeout=100).start()
    server = await host.gateway()
    await host.client.put(OWNER, b"small")
    await server.retain(OWNER, ())
    await server.put(OWNER, KEY, 0, DATA[:1000])
    await asyncio.sleep(250)
    assert [name for name in host.entries() if str(KEY) in name] == []
    assert await host.client.get(OWNER, BlobKey.of(b"small")) == b"small"


@on_virtual_time
async def test_blobs_that_nobody_retains_go_and_retained_ones_stay() -> None:
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
async def test_retaining_names_what_is_missing_and_retains_nothing_then() -> None:
    host = await Host(upload_timeout=100).start()
    server = await host.gateway()
    await host.client.put(OWNER, DATA)
    assert await server.retain(OWNER, (KEY, MISSING)) == (MISSING,)
    await asyncio.sleep(250)
    assert host.entries() == []


@on_virtual_time
async def test_a_restart_keeps_complete_blobs_and_deletes_parts() -> None:
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
async def test_a_closed_server_leaves_no_unfinished_upload() -> None:
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    complete = host.entries()
    await (await host.gateway()).put(OWNER, MISSING, 0, b"never")
    await host.service.stop("blobs")
    assert host.entries() == complete


@on_virtual_time
async def test_a_server_that_was_paused_deletes_nothing_that_its_successor_has() -> None:
    """What it was sent half of was sent to the successor again, under the same names; and it does
    not know what is retained there."""
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
async def test_a_server_that_was_paused_before_it_began_deletes_nothing_either() -> None:
    """What it takes for the unfinished uploads of its predecessor is its successor's by then: a
    job that was accepted lacked its blob."""
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
async def test_unfinished_uploads_that_cannot_be_deleted_keep_no_server_from_starting() -> None:
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
async def test_an_owner_is_deleted_while_one_of_its_uploads_is_completed() -> None:
    """It was looked for where it was no longer, once another upload had been deleted."""
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
async def test_markers_are_deleted_before_parts() -> None:
    """HA-21: what a crash in between leaves is no blob, and no blob lacks its parts."""
    host = await Host().start()
    await host.client.put(OWNER, DATA)
    await host.client.put(OWNER, b"small")
    await (await host.gateway()).delete(OWNER)
    are_markers = [name.endswith(".complete") for name in host.storage.deletions]
    assert are_markers == sorted(are_markers, reverse=True)
    assert sum(are_markers) == 2
    assert host.entries() == []


@on_virtual_time
async def test_a_deletion_that_failed_can_be_repeated() -> None:
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
async def test_a_sweep_that_failed_is_repeated() -> None:
    host = await Host(upload_timeout=100).start()
    await host.client.put(OWNER, DATA)
    host.storage.broken = True
    await asyncio.sleep(250)
    assert host.entries() != []
    host.storage.broken = False
    await asyncio.sleep(50)
    assert host.entries() == []


@on_virtual_time
async def test_a_deletion_in_the_middle_of_an_upload_leaves_nothing_half() -> None:
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
async def test_a_part_whose_uploader_gave_up_while_it_was_written_is_deleted_too() -> None:
    """The storage is still busy with it when the owner is deleted."""
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
