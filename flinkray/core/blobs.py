"""Defines the names of blobs: byte strings that are too large for a message.

A message contains only the name of a blob; the blob server has the content.
"""

from __future__ import annotations

import hashlib
import re

from flinkray.core.ids import JobID
from flinkray.core.message import message, register
from flinkray.core.schema import stored

DIGEST_SIZE = 32
"""Bytes of a SHA-256."""

_OWNER = re.compile(r"[A-Za-z0-9-]{1,64}")


@stored("BlobKey")
@message
class BlobKey:
    """Names a blob by its content: equal contents have equal keys."""

    digest: bytes
    """SHA-256 of the content."""
    size: int
    """Size of the content in bytes."""

    def __post_init__(self) -> None:
        if len(self.digest) != DIGEST_SIZE or self.size < 0:
            raise ValueError(f"not a blob key: {self.digest!r}, size {self.size}")

    @classmethod
    def of(cls, data: bytes) -> BlobKey:
        """Return the key of *data*. Hashing 30 MB takes 20 to 100 ms."""
        return cls(hashlib.sha256(data).digest(), len(data))

    @classmethod
    def parse(cls, text: str) -> BlobKey:
        """Parse the text that ``str`` makes of a key.
        Raises ValueError: *text* is not a blob key."""
        digest, separator, size = text.partition("-")
        if not separator or not size.isdecimal():
            raise ValueError(f"not a blob key: {text!r}")
        return cls(bytes.fromhex(digest), int(size))

    def matches(self, data: bytes) -> bool:
        return len(data) == self.size and hashlib.sha256(data).digest() == self.digest

    def __str__(self) -> str:
        return f"{self.digest.hex()}-{self.size}"


@register
class BlobOwner(str):
    """Names the owner of blobs that are deleted together: 1 to 64 letters, digits and hyphens."""

    __slots__ = ()

    def __new__(cls, text: str) -> BlobOwner:
        if not _OWNER.fullmatch(text):
            raise ValueError(
                f"not an owner of blobs: {text!r} (expected 1 to 64 letters, digits and hyphens)"
            )
        return super().__new__(cls, text)

    @classmethod
    def of_job(cls, job_id: JobID) -> BlobOwner:
        return cls(f"job-{job_id}")
