"""The same blobs on every RPC service."""

from __future__ import annotations

import pytest

from flinkray.blob import (
    BLOB_SERVER,
    BlobClient,
    BlobKey,
    BlobNotFoundError,
    BlobServer,
    BlobStore,
)
from flinkray.core.blobs import BlobOwner
from flinkray.ha import MemoryDirectory
from tests.rpc.on_services import Services, on_every_service

OWNER = BlobOwner("owner")


@on_every_service
async def test_blob_above_the_frame_limit_is_transferred_between_processes(
    services: Services,
) -> None:
    server = await BlobServer.create(services.host, BlobStore(MemoryDirectory()))
    server.start()
    client = BlobClient(services.caller, f"host/{BLOB_SERVER}")
    data = b"0123456789" * 1_200_000
    assert len(data) > services.host.max_frame_size
    key = await client.put(OWNER, data)
    assert key == BlobKey.of(data)
    assert await client.get(OWNER, key) == data
    await server.delete(OWNER)
    with pytest.raises(BlobNotFoundError):
        await client.get(OWNER, key)
