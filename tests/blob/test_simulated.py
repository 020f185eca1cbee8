"""Blobs while processes die, the network breaks and the storage fails and tears; every seed another
story."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress

from flinkray.blob import (
    BlobClient,
    BlobKey,
    BlobNotFoundError,
    BlobOwner,
    BlobServer,
    BlobServerGateway,
    BlobStore,
)
from flinkray.core.errors import FlinkRayError, RpcError
from flinkray.ha import open_directory
from flinkray.rpc import EndpointSpec, RpcService
from flinkray.testing.simulation import Faults, Simulation, simulate

STORAGE = "simulated://shared/blobs"
SERVER = "blobs/blobserver"
FRAME = 4096
UPLOAD_TIMEOUT = 300.0
"""Seconds; longer than the faults, as nothing is retained until they are over."""
FAULTS = Faults(
    loss=0.02,
    duplication=0.05,
    breaks_before=0.02,
    breaks_after=0.02,
    delay=0.05,
    reset_every=5.0,
    crash_every=4.0,
    hang_every=10.0,
    slow_every=10.0,
    partition_every=10.0,
    storage_every=10.0,
    torn_writes=0.05,
    longest=10.0,
    since=0.5,
    until=60.0,
    spare=("client",),
)


async def create_server(rpc_service: RpcService, arguments: object) -> BlobServer:
    rpc_service.max_frame_size = FRAME
    store = BlobStore(open_directory(STORAGE))
    return await BlobServer.create(rpc_service, store, UPLOAD_TIMEOUT)


def entries_of(owner: BlobOwner) -> list[str]:
    return [name for name in open_directory(STORAGE).names() if name.startswith(f"{owner}.")]


async def insist(what: Awaitable[None]) -> bool:
    """Whether it was done; the faults may be in its way."""
    with suppress(FlinkRayError):
        await what
        return True
    return False


@simulate(seeds=100, faults=FAULTS)
async def test_simulated_blob_server_returns_stored_blobs_and_no_deleted_blobs(
    simulation: Simulation,
) -> None:
    random = simulation.random
    service = simulation.service("client")
    service.max_frame_size = FRAME
    spec = EndpointSpec(
        "Blobs", "blobs", f"{__name__}:create_server", None, detached=True, max_restarts=-1
    )
    await service.spawn(spec)
    client = BlobClient(service, SERVER, patience=20.0)
    stored: dict[BlobOwner, tuple[BlobKey, bytes]] = {}
    deleted: dict[BlobOwner, BlobKey] = {}

    async def work(owner: BlobOwner, data: bytes, *, delete: bool) -> None:
        key = await client.put(owner, data)
        stored[owner] = key, data
        assert await client.get(owner, key) == data
        if delete:
            del stored[owner]  # whatever comes of the deletion
            server = await service.connect(SERVER, BlobServerGateway)
            await server.delete(owner)
            deleted[owner] = key

    async def user(number: int) -> None:
        for job in range(6):
            await asyncio.sleep(random.uniform(0, 8))
            owner = BlobOwner(f"job-{number}-{job}")
            data = random.randbytes(random.choice((0, 100, 10_000, 25_000)))
            await insist(work(owner, data, delete=random.random() < 0.5))

    await asyncio.gather(*map(user, range(3)))
    await simulation.quiet()
    server = await simulation.eventually(
        lambda: service.connect(SERVER, BlobServerGateway), within=30, retry_on=(RpcError,)
    )
    for owner, (key, data) in stored.items():
        assert await server.retain(owner, (key,)) == ()
        assert await client.get(owner, key) == data
    for owner, key in deleted.items():
        with suppress(BlobNotFoundError):
            await client.get(owner, key)
            raise AssertionError(f"{owner} was deleted and gives out {key}")
        assert not [name for name in entries_of(owner) if name.endswith(".complete")]
    await asyncio.sleep(3 * UPLOAD_TIMEOUT)
    remaining = {owner for owner in stored if entries_of(owner)}
    assert remaining == set(stored)
    assert len(open_directory(STORAGE).names()) == sum(len(entries_of(owner)) for owner in stored)
