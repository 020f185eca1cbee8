"""How a record lies in a store: a header with version and checksum, then the wire codec's bytes."""

from __future__ import annotations

import zlib
from typing import Generic, TypeVar

from flinkray.core.errors import RpcSerializationError
from flinkray.core.ids import JobID
from flinkray.ha.directory import Directory
from flinkray.ha.stores import CorruptEntryError, JobRecord, StoreError
from flinkray.rpc.wire import codec

RecordT = TypeVar("RecordT", bound=JobRecord)

_MAGIC = b"flinkray entry\n"
VERSION = 1
_HEADER_SIZE = len(_MAGIC) + 1 + 4
CORRUPT = "corrupt"
"""Subdirectory for what was set aside."""


def encode_entry(record: object) -> bytes:
    """Magic, one byte version, four bytes CRC-32 of the body, body.

    Raises:
        RpcSerializationError: the record holds something that the codec does not know.
    """
    body = codec.encode(record)
    return _MAGIC + bytes([VERSION]) + zlib.crc32(body).to_bytes(4, "big") + body


def decode_entry(data: bytes, record_type: type[RecordT]) -> RecordT:
    """Raises ValueError: not such an entry; the text says what is wrong with it."""
    if not data.startswith(_MAGIC) or len(data) < _HEADER_SIZE:
        raise ValueError("it is no flinkray entry, or is cut short")
    version = data[len(_MAGIC)]
    if version != VERSION:
        raise ValueError(f"it has format version {version}; this flinkray reads {VERSION}")
    body = data[_HEADER_SIZE:]
    if zlib.crc32(body) != int.from_bytes(data[_HEADER_SIZE - 4 : _HEADER_SIZE], "big"):
        raise ValueError("its checksum does not match")
    try:
        record = codec.decode(body)
    except RpcSerializationError as error:
        raise ValueError(f"it cannot be decoded: {error}") from error
    if not isinstance(record, record_type):
        raise ValueError(f"it holds a {type(record).__name__}, not a {record_type.__name__}")
    return record


class EntryDirectory(Generic[RecordT]):
    """Records in a directory, one entry per job, named ``<job id hex><suffix>``.  Blocking.

    All methods raise StoreError when the storage fails.
    """

    def __init__(self, directory: Directory, record_type: type[RecordT], suffix: str) -> None:
        self._directory = directory
        self._record_type = record_type
        self._suffix = suffix

    def name(self, job_id: JobID) -> str:
        return job_id.hex() + self._suffix

    def write(self, record: RecordT) -> None:
        """Raises RpcSerializationError, too."""
        name = self.name(record.job_id)
        data = encode_entry(record)
        try:
            self._directory.write(name, data)
        except OSError as error:
            raise StoreError(f"cannot write {self._directory.location(name)}: {error}") from error

    def exists(self, job_id: JobID) -> bool:
        return self._read(self.name(job_id)) is not None

    def read(self, job_id: JobID) -> RecordT | None:
        """Raises CorruptEntryError after having set the entry aside."""
        name = self.name(job_id)
        data = self._read(name)
        if data is None:
            return None
        try:
            record = decode_entry(data, self._record_type)
            if record.job_id != job_id:
                raise ValueError(f"it is about job {record.job_id}")
        except ValueError as error:
            raise CorruptEntryError(
                f"{self._directory.location(name)} is not readable: {error}. It was moved to "
                f"{self._set_aside(name, data)}; the job it stood for is not known any more"
            ) from error
        return record

    def delete(self, job_id: JobID) -> None:
        name = self.name(job_id)
        try:
            self._directory.delete(name)
        except OSError as error:
            raise StoreError(f"cannot delete {self._directory.location(name)}: {error}") from error

    def job_ids(self) -> tuple[JobID, ...]:
        """Of the stored entries, readable or not, in the order in which they were written last;
        files of other names are not ours and are left alone."""
        try:
            names = self._directory.names()
        except OSError as error:
            raise StoreError(f"cannot list {self._directory.location()}: {error}") from error
        ids = []
        for name in names:
            if name.endswith(self._suffix):
                try:
                    ids.append(JobID.from_hex(name.removesuffix(self._suffix)))
                except ValueError:
                    continue
        return tuple(ids)

    def _read(self, name: str) -> bytes | None:
        try:
            return self._directory.read(name)
        except OSError as error:
            raise StoreError(f"cannot read {self._directory.location(name)}: {error}") from error

    def _set_aside(self, name: str, data: bytes) -> str:
        corrupt = self._directory.subdirectory(CORRUPT)
        try:
            corrupt.write(name, data)
            self._directory.delete(name)
        except OSError as error:
            raise StoreError(
                f"cannot move the unreadable {self._directory.location(name)} to "
                f"{corrupt.location(name)}: {error}"
            ) from error
        return corrupt.location(name)
