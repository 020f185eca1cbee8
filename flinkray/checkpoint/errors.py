"""Errors of stored checkpoints. The text of each names a path, the cause and a solution."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from flinkray.core.errors import FlinkRayError
from flinkray.core.locations import without_secrets


class CheckpointStorageError(FlinkRayError):
    """Checkpoints cannot be written or read; ``path`` names the file or directory."""

    retryable = True

    def __init__(self, path: str, reason: str) -> None:
        path = without_secrets(path)
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class CheckpointNotFoundError(CheckpointStorageError):
    """The file or directory does not exist: it was deleted, moved, or never written."""

    retryable = False


class IncompleteCheckpointError(CheckpointStorageError):
    """The checkpoint is incomplete: its directory has no ``_metadata``, which is written last."""

    retryable = False


class CorruptCheckpointError(CheckpointStorageError):
    """Stored bytes differ from the written bytes: the file was cut short or changed."""

    retryable = False


class UnknownCheckpointFormatError(CheckpointStorageError):
    """The file was not written by flinkray, or was written by a newer version."""

    retryable = False


class NoSuchBucketError(CheckpointStorageError):
    """The bucket of an object store does not exist; flinkray never creates buckets."""

    retryable = False


class CheckpointAccessError(CheckpointStorageError):
    """The storage denies this process reading or writing."""

    retryable = False


class StorageHangsError(CheckpointStorageError):
    """The storage does not respond, for example a mount whose server is unavailable."""

    retryable = False


class UnusableLocationError(CheckpointStorageError):
    """The location is invalid. Its URI has an unknown scheme, cannot be parsed, or is too long."""

    retryable = False


class CheckpointStorageFullError(CheckpointStorageError):
    """The storage has no space; files written so far are removed."""


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM)

# pyarrow reports errors of object stores only in its text, by the names of their SDKs
_NO_BUCKET = "NO_SUCH_BUCKET"
_UNKNOWN_KEY = ("INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "INVALID_CLIENT_TOKEN_ID")
_DENIED = ("ACCESS_DENIED", "HTTP response code 403", "(HTTP status 403)")


@contextmanager
def storage_errors(path: str, what: str) -> Iterator[None]:
    """Return a context manager that converts OSErrors of the storage to errors of this module.
    The errors name *path* and *what*, a verb for the operation on *path*, such as ``delete``."""
    try:
        yield
    except OSError as error:
        raise _translated(path, what, error) from error


def _translated(path: str, what: str, error: OSError) -> CheckpointStorageError:
    if what == "read" and isinstance(error, FileNotFoundError | NotADirectoryError):
        return CheckpointNotFoundError(path, "it is not there; was it deleted, or moved?")
    text = f"cannot {what} it: {error}"
    if error.errno in _FULL:
        return CheckpointStorageFullError(path, f"{text}; make room, or use another directory")
    if error.errno == errno.ENAMETOOLONG:
        return UnusableLocationError(path, f"{text}; use another directory")
    if error.errno == errno.EROFS:
        return CheckpointAccessError(path, f"{text}; mount it for writing, or use another one")
    if error.errno in _REFUSED:
        return CheckpointAccessError(
            path, f"{text}; give the user of this process the right to {what}"
        )
    if _NO_BUCKET in str(error):
        return NoSuchBucketError(path, f"{text}; make the bucket, or use another one")
    if any(name in str(error) for name in _UNKNOWN_KEY):
        return CheckpointAccessError(
            path, f"{text}; these credentials are not valid: give others in the URI or environment"
        )
    if any(name in str(error) for name in _DENIED):
        return CheckpointAccessError(
            path, f"{text}; give whose credentials these are the right to {what}"
        )
    return CheckpointStorageError(path, text)
