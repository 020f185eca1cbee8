"""The RPC interface of the blob server."""

from __future__ import annotations

from abc import abstractmethod

from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.core.errors import FlinkRayError
from flinkray.ha import StoreError
from flinkray.rpc import RpcGateway, RpcService, ask_timeout
from flinkray.rpc.spec import split_address

BLOB_SERVER = "blobserver"
"""Endpoint id of a process's blob server."""

MAX_CHUNK = 4 * 2**20
"""Largest number of bytes in one message."""

_STORAGE_TIMEOUT = 60.0
"""Seconds that one request may take; storage can be slow."""


def blob_server_beside(address: str) -> str:
    """Return the address of the blob server in the process of the endpoint at *address*."""
    process, _ = split_address(address)
    return f"{process}/{BLOB_SERVER}"


def chunk_size(rpc_service: RpcService) -> int:
    """Return how many bytes to send in one message of this service, with room for the envelope."""
    return min(MAX_CHUNK, rpc_service.max_frame_size * 3 // 4)


class BlobServerGateway(RpcGateway):
    """The RPC interface of a blob server, which keeps the blobs of each owner. If the answer to a
    call is lost, the caller can repeat the call, whatever the method."""

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def put(self, owner: BlobOwner, key: BlobKey, offset: int, data: bytes) -> int:
        """Append *data*, which begins at *offset* of the blob, to the received part of the blob.

        Returns how many bytes of the blob the server has now. Continue from that offset, whatever
        it is, until it equals ``key.size``: then the blob is stored and its hash was checked. A
        call with empty *data* asks how many bytes the server has.

        Raises:
            BlobCorruptError: the blob is complete now, but its hash is wrong; the server has
                discarded it.
            BlobStoreError: the storage fails; the server has discarded the received part.
        """

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def get(self, owner: BlobOwner, key: BlobKey, offset: int, size: int) -> bytes:
        """Return bytes of a blob from *offset* on: at most *size*, and at least one before the end.

        Raises BlobNotFoundError, or BlobStoreError if the blob cannot be read.
        """

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def retain(self, owner: BlobOwner, keys: tuple[BlobKey, ...]) -> tuple[BlobKey, ...]:
        """Keep the blobs of *owner* until :meth:`delete` or :meth:`release`. Blobs that are not
        retained are deleted some time after the last upload. Returns those *keys* that the server
        does not have; if there are any, nothing is changed."""

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def release(self, owner: BlobOwner) -> None:
        """Undo :meth:`retain`: the blobs of *owner* are deleted after some time without use."""

    @abstractmethod
    @ask_timeout(_STORAGE_TIMEOUT)
    async def delete(self, owner: BlobOwner) -> None:
        """Delete all blobs and uploads of *owner*. Idempotent.

        Raises:
            BlobStoreError: some blobs may be left; call again.
        """


class BlobNotFoundError(FlinkRayError):
    """Raised when the owner does not have this blob: the upload was never completed, or the owner
    was deleted. If the owner is still in use, upload the blob again."""

    def __init__(self, owner: BlobOwner, *keys: BlobKey) -> None:
        super().__init__(owner, *keys)
        self.owner = owner
        self.keys = keys

    def __str__(self) -> str:
        return f"{self.owner} has no blob {', '.join(map(str, self.keys))}"


class BlobCorruptError(FlinkRayError):
    """Raised when received bytes do not match the hash of their key. The text says where."""

    retryable = True


class BlobStoreError(StoreError):
    """Raised when the storage of the blob server fails (full, not reachable, no permission). The
    text names the location and the cause."""
