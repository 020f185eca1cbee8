"""Blob servers in processes of their own, on storage that survives them and can fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field

from flinkray.blob import BlobClient, BlobServer, BlobServerGateway, BlobStore
from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.core.message import message
from flinkray.ha import MemoryDirectory
from flinkray.rpc import EndpointSpec, LocalNetwork, LocalRpcService, RpcService

OWNER, OTHER = BlobOwner("owner"), BlobOwner("other")
FRAME = 64 * 1024
DATA = bytes(range(256)) * 1000
"""Six chunks."""
KEY = BlobKey.of(DATA)
SERVER = "blobs/blobserver"


class FaultyDirectory(MemoryDirectory):
    """Fails when it is told to; keeps what was asked of it."""

    def __init__(self) -> None:
        super().__init__("faulty:")
        self.capacity: int | None = None
        """Bytes."""
        self.broken = False
        self.flips = 0
        """How many of the next reads give out a wrong byte."""
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.deletions: list[str] = []
        self.before_write: Callable[[str], None] = lambda name: None

    def read(self, name: str) -> bytes | None:
        self.reads.append(name)
        data = super().read(name)
        if data and self.flips:
            self.flips -= 1
            return bytes([data[0] ^ 1]) + data[1:]
        return data

    def write(self, name: str, data: bytes) -> None:
        self.before_write(name)
        used = sum(len(super(FaultyDirectory, self).read(other) or b"") for other in self.names())
        if self.capacity is not None and used + len(data) > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.writes.append(name)
        super().write(name, data)

    def delete(self, name: str) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        self.deletions.append(name)
        super().delete(name)


@message
class HostArguments:
    """Which storage a server stands on."""

    storage: str
    upload_timeout: float


_storages: dict[str, FaultyDirectory] = {}


async def create_blob_server(rpc_service: RpcService, arguments: HostArguments) -> BlobServer:
    rpc_service.max_frame_size = FRAME
    store = BlobStore(_storages[arguments.storage])
    return await BlobServer.create(rpc_service, store, arguments.upload_timeout)


@dataclass(eq=False)
class Host:
    """A server that is restarted when it dies, and a client in another process."""

    network: LocalNetwork = field(default_factory=LocalNetwork)
    storage: FaultyDirectory = field(default_factory=FaultyDirectory)
    upload_timeout: float = 100.0

    async def start(self) -> Host:
        self.service = LocalRpcService("client", self.network, max_frame_size=FRAME)
        self.client = BlobClient(self.service, SERVER)
        name = f"storage {id(self)}"
        _storages[name] = self.storage
        spec = EndpointSpec(
            kind="Blobs",
            name="blobs",
            factory=f"{__name__}:create_blob_server",
            arguments=HostArguments(name, self.upload_timeout),
            detached=True,
            max_restarts=-1,
        )
        await self.service.spawn(spec)
        return self

    async def gateway(self) -> BlobServerGateway:
        return await self.service.connect(SERVER, BlobServerGateway)

    def entries(self, owner: BlobOwner = OWNER) -> list[str]:
        return [name for name in self.storage.names() if name.startswith(f"{owner}.")]
