"""Encodes the records in stores: a header with version and checksum, then the record."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from flinkray.core.errors import StoredFormatError, UnreadableRecordError
from flinkray.core.ids import JobID
from flinkray.core.records import decode_record, encode_record
from flinkray.ha.directory import Entries, LostEntryError, TakenOverError
from flinkray.ha.first_format import from_first_format
from flinkray.ha.stores import JobEntry, JobStoreFencedError, StoreError

T = TypeVar("T")
RecordT = TypeVar("RecordT", bound=JobEntry)

_MAGIC = b"flinkray entry\n"
VERSION = 2
"""The version of the format around the record; the record's types have versions of their own."""
_HEADER_SIZE = len(_MAGIC) + 1 + 4


class DamagedEntryError(StoredFormatError):
    """The stored bytes are not the bytes that were written: they were cut short or changed."""


def encode_entry(record: object) -> bytes:
    """Return a record as the bytes of an entry; :func:`decode_entry` is the inverse.

    The bytes are: magic, one byte of version, four bytes of CRC-32 of the body, and the body.

    Raises:
        StoredFormatError: the record holds something that cannot be stored.
    """
    body = encode_record(record)
    return _MAGIC + bytes([VERSION]) + zlib.crc32(body).to_bytes(4, "big") + body


def is_entry(data: bytes) -> bool:
    """Return whether *data* begins like an entry of flinkray."""
    return data.startswith(_MAGIC)


def decode_entry(data: bytes, record_type: type[T]) -> T:
    """Return the record of an entry.

    Raises:
        StoredFormatError: *data* is not such an entry; the text says what is wrong.
    """
    if not is_entry(data) or len(data) < _HEADER_SIZE:
        raise DamagedEntryError("it is no flinkray entry, or is cut short")
    version = data[len(_MAGIC)]
    if version > VERSION:
        raise StoredFormatError(
            f"it has format version {version}, and this flinkray reads versions up to {VERSION}: "
            "a newer flinkray wrote it, and can read it"
        )
    body = data[_HEADER_SIZE:]
    if zlib.crc32(body) != int.from_bytes(data[_HEADER_SIZE - 4 : _HEADER_SIZE], "big"):
        raise DamagedEntryError("its checksum does not match")
    if version < VERSION:
        body = from_first_format(body)
    return decode_record(body, record_type)


def decoded(
    data: bytes | LostEntryError, record_type: type[RecordT], job_id: JobID, location: str
) -> RecordT:
    """Return the job's record in *data*: the content of the entry at *location*, or the error with
    which it was read. Raises UnreadableRecordError."""
    if isinstance(data, LostEntryError):
        raise UnreadableRecordError(job_id, location, str(data)) from data
    try:
        record = decode_entry(data, record_type)
        if record.job_id != job_id:
            raise StoredFormatError(f"it is about job {record.job_id}")
    except StoredFormatError as error:
        raise UnreadableRecordError(job_id, location, str(error)) from error
    return record


class EntryDirectory(Generic[RecordT]):
    """Reads and writes one record per job, in entries named ``<job id hex><suffix>``. Blocking.

    Methods raise StoreError when the storage fails; changes also raise JobStoreFencedError.
    """

    def __init__(self, directory: Entries, record_type: type[RecordT], suffix: str) -> None:
        self._directory = directory
        self._record_type = record_type
        self._suffix = suffix

    def name(self, job_id: JobID) -> str:
        return job_id.hex() + self._suffix

    def write(self, record: RecordT) -> None:
        """Store a record under its job's id, in place of an earlier one. Also raises
        StoredFormatError."""
        self.write_as_stored(record.job_id, encode_entry(record))

    def exists(self, job_id: JobID) -> bool:
        """Return whether the job has an entry, readable or not."""
        return self._read(job_id) is not None

    def read(self, job_id: JobID) -> RecordT | None:
        """Return the job's record; None: there is none. Raises UnreadableRecordError; the entry
        then stays stored."""
        data = self._read(job_id)
        return None if data is None else self._decoded(job_id, data)

    def read_many(self, job_ids: Iterable[JobID]) -> Iterator[RecordT | UnreadableRecordError]:
        """Yield the record of each job that has one; yield the error if it cannot be read."""
        jobs = {self.name(job_id): job_id for job_id in job_ids}
        try:
            for name, data in self._directory.read_many(tuple(jobs)):
                if data is None:
                    continue
                try:
                    record: RecordT | UnreadableRecordError = self._decoded(jobs[name], data)
                except UnreadableRecordError as error:
                    record = error
                yield record
        except OSError as error:
            raise StoreError(f"cannot read {self._directory.location()}: {error}") from error

    def _decoded(self, job_id: JobID, data: bytes | LostEntryError) -> RecordT:
        """Return the record in *data*. Raises UnreadableRecordError."""
        return decoded(data, self._record_type, job_id, self._directory.location(self.name(job_id)))

    def read_as_stored(self, job_id: JobID) -> bytes | None:
        """Return the bytes of the job's entry unchanged, to be written to another directory with
        :meth:`write_as_stored`. None: there is no entry. Raises UnreadableRecordError."""
        data = self._read(job_id)
        if isinstance(data, LostEntryError):
            location = self._directory.location(self.name(job_id))
            raise UnreadableRecordError(job_id, location, str(data)) from data
        return data

    def write_as_stored(self, job_id: JobID, data: bytes) -> None:
        name = self.name(job_id)
        try:
            self._directory.write(name, data)
        except TakenOverError as error:
            raise JobStoreFencedError(str(error)) from error
        except OSError as error:
            raise StoreError(f"cannot write {self._directory.location(name)}: {error}") from error

    def delete(self, job_id: JobID) -> None:
        name = self.name(job_id)
        try:
            self._directory.delete(name)
        except TakenOverError as error:
            raise JobStoreFencedError(str(error)) from error
        except OSError as error:
            raise StoreError(f"cannot delete {self._directory.location(name)}: {error}") from error

    def job_ids(self) -> tuple[JobID, ...]:
        """Return the jobs of all entries, readable or not, in the order of their last writes. Files
        with other names are ignored, because they do not belong to this store."""
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

    def _read(self, job_id: JobID) -> bytes | LostEntryError | None:
        name = self.name(job_id)
        try:
            return self._directory.read(name)
        except LostEntryError as error:
            return error
        except OSError as error:
            raise StoreError(f"cannot read {self._directory.location(name)}: {error}") from error
