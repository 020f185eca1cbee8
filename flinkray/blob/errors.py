"""What can go wrong with blobs."""

from __future__ import annotations

from flinkray.core.blobs import BlobKey, BlobOwner
from flinkray.core.errors import FlinkRayError
from flinkray.ha import StoreError


class BlobNotFoundError(FlinkRayError):
    """The owner has no such blob (any more): it was never uploaded whole, or its owner ended.

    Upload it again if the owner is still to live.
    """

    def __init__(self, owner: BlobOwner, *keys: BlobKey) -> None:
        super().__init__(owner, *keys)
        self.owner = owner
        self.keys = keys

    def __str__(self) -> str:
        return f"{self.owner} has no blob {', '.join(map(str, self.keys))}"


class BlobCorruptError(FlinkRayError):
    """Bytes came that are not those of their key; the text says where that was noticed."""

    retryable = True


class BlobStoreError(StoreError):
    """The storage under the blob server fails (full, not reachable, no permission); the text names
    the place and the cause."""
