"""Blobs: bytes too large for a message, kept by a server and fetched by key."""

from flinkray.blob.client import BlobCache, BlobClient
from flinkray.blob.gateway import (
    BLOB_SERVER,
    BlobCorruptError,
    BlobNotFoundError,
    BlobServerGateway,
    BlobStoreError,
    blob_server_beside,
)
from flinkray.blob.server import BlobServer
from flinkray.blob.store import BlobStore
from flinkray.core.blobs import BlobKey, BlobOwner

__all__ = [
    "BLOB_SERVER",
    "BlobCache",
    "BlobClient",
    "BlobCorruptError",
    "BlobKey",
    "BlobNotFoundError",
    "BlobOwner",
    "BlobServer",
    "BlobServerGateway",
    "BlobStore",
    "BlobStoreError",
    "blob_server_beside",
]
