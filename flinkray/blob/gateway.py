"""What a blob server is asked for."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.rpc import RpcGateway, RpcService, ask_timeout
from flinkray.rpc.spec import split_address

BLOB_SERVER = "blobserver"
"""Endpoint id of a process's blob server."""

MAX_CHUNK = 4 * 2**20
"""Bytes that travel in one message at the most."""

_STORAGE_TIMEOUT = 60.0
"""Seconds that a chunk may take: storage can be slow."""


def blob_server_beside(address: str) -> str:
    """Address of the blob server in the process of the endpoint at *address*."""
    process, _ = split_address(address)
    return f"{process}/{BLOB_SERVER}"


def chunk_size(rpc_service: RpcService) -> int:
    """Bytes that fit into one of this service's messages with room for what is around them."""
    return min(MAX_CHUNK, rpc_service.max_frame_size * 3 // 4)


class BlobServerGateway(RpcGateway):
    """Keeps blobs by owner.  Every method can be called again when its answer was lost."""

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def put(self, owner: BlobOwner, key: BlobKey, offset: int, data: bytes) -> int:
        """Add *data*, which begins at *offset* of the blob, to what is here of it.

        Returns how many of its bytes are here now: go on from there, whatever that is, until it is
        ``key.size``, which is answered when the whole is stored and its hash was found right.
        No *data* asks how much is here.

        Raises:
            BlobCorruptError: with this part the blob is complete, and its hash is another; all of
                it was thrown away.
            BlobStoreError: it could not be stored; what was here of it was thrown away.
        """

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def get(self, owner: BlobOwner, key: BlobKey, offset: int, size: int) -> bytes:
        """The bytes from *offset* on: at least one unless that is the end, at most *size*.

        Raises:
            BlobNotFoundError: the owner has no such blob.
            BlobStoreError: it could not be read.
        """

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def retain(self, owner: BlobOwner, keys: tuple[BlobKey, ...]) -> tuple[BlobKey, ...]:
        """Keep the blobs of *owner* until :meth:`delete` or :meth:`release`.

        Without it they go some time after the last upload.  Returns those of *keys* that are not
        here; if there is one, nothing has changed.
        """

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def release(self, owner: BlobOwner) -> None:
        """Take :meth:`retain` back."""

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def delete(self, owner: BlobOwner) -> None:
        """Delete all blobs of *owner*, unfinished ones too.

        Raises:
            BlobStoreError: some of it may be there yet; call again.
        """
