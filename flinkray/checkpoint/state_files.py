"""Files of state: finds the storage of a location, writes state, and reads it in ranges."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import (
    CheckpointStorageError,
    CorruptCheckpointError,
    UnknownCheckpointFormatError,
    storage_errors,
)
from flinkray.checkpoint.files import Buffer, InputFile, LocalStateFiles, OutputFile, StateFiles
from flinkray.checkpoint.handles import CarriedFile, FileState, InlineState, StateLocation
from flinkray.core.ids import random_bytes

INLINE = "state in a handle"
"""Name of inline state in error messages, in place of a path."""

_BYTES_MAGIC = b"flinkray state\n"
_BYTES_VERSION = 1
_PIECE = 4 << 20
"""Number of bytes of a carried file that are in memory at a time."""
_BYTES_HEADER = len(_BYTES_MAGIC) + 1 + 4


def go_on() -> None:
    """Do nothing. The default *check* of a writer, for a writer that is never stopped."""


def random_name() -> str:
    """Return a random file name of 128 bits, which therefore no other file has."""
    return random_bytes(16).hex()


class StateOutput:
    """A file object that takes the bytes of one state of a checkpoint.

    State of fewer than *threshold* bytes stays in memory and is stored in the handle; larger state
    is written to a file. As a context manager, the output removes its file if :meth:`finish` was
    not called. All methods raise CheckpointStorageError, and ``write`` also raises the errors of
    *check*.
    """

    def __init__(self, path: str, threshold: int, check: Callable[[], None] = go_on) -> None:
        self._path = path
        self._threshold = threshold
        self._check = check
        self._small: bytearray | None = bytearray()
        self._file: OutputFile | None = None
        self._size = 0

    def write(self, data: Buffer) -> None:
        self._check()
        self._size += len(data)
        if self._small is not None:
            if self._size < self._threshold:
                self._small += data
                return
            begin, self._small = self._small, None
            with storage_errors(self._path, "write"):
                self._file = files_at(self._path).create(self._path)
                if begin:
                    self._file.write(begin)
        with storage_errors(self._path, "write"):
            assert self._file is not None
            self._file.write(data)

    def finish(self) -> StateLocation:
        """Finish the output and return the location of the state, which is durable on return."""
        if self._small is not None:
            return InlineState(bytes(self._small))
        assert self._file is not None
        with storage_errors(self._path, "write"):
            self._file.close()
        self._file = None
        return FileState(self._path, self._size)

    def discard(self) -> None:
        """Remove the written file, if there is one and :meth:`finish` was not called."""
        file, self._file = self._file, None
        if file is not None:
            with storage_errors(self._path, "remove"):
                file.discard()

    def __enter__(self) -> StateOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.discard()
            return
        try:
            self.discard()
        except CheckpointStorageError as another:  # the first error is the cause
            assert error is not None
            error.__context__ = another


class StateWriter:
    """Creates the files with the state of one checkpoint. Several threads may use it.

    Args:
        exclusive: directory of files that belong to this checkpoint only.
        shared: directory of files to which later checkpoints may refer; for a savepoint, the same
            as *exclusive*.
        threshold: state with fewer bytes is stored in its handle.
        name: returns the name for a new file.
        check: called before each piece is written; an error that it raises ends the writing.
    """

    def __init__(
        self,
        exclusive: str,
        shared: str,
        threshold: int,
        name: Callable[[], str] = random_name,
        check: Callable[[], None] = go_on,
    ) -> None:
        self._exclusive = exclusive
        self._shared = shared
        self._threshold = threshold
        self._name = name
        self._check = check

    def exclusive(self) -> StateOutput:
        """Return an output for state that is deleted together with its checkpoint."""
        return self._output(self._exclusive)

    def shared(self) -> StateOutput:
        """Return an output for state that is deleted when no checkpoint refers to it any more."""
        return self._output(self._shared)

    def _output(self, directory: str) -> StateOutput:
        return StateOutput(locations.join(directory, self._name()), self._threshold, self._check)

    def write_bytes(self, data: bytes) -> StateLocation:
        """Write *data* with a checksum, as one state, and return its location for
        :func:`read_bytes`."""
        with self.exclusive() as output:
            checksum = zlib.crc32(data).to_bytes(4, "big")
            output.write(_BYTES_MAGIC + bytes([_BYTES_VERSION]) + checksum)
            output.write(data)
            return output.finish()

    def write_carried(self, name: str, pieces: Iterable[bytes]) -> CarriedFile:
        """Write a copy of the file *name* of an operator, and return a description of the copy for
        :func:`read_carried`. Even a small copy is a file: many copies might not fit into the
        message with the handles."""
        checksum = 0
        path = locations.join(self._exclusive, self._name())
        with StateOutput(path, 0, self._check) as output:
            for piece in pieces:
                checksum = zlib.crc32(piece, checksum)
                output.write(piece)
            return CarriedFile(name, output.finish(), checksum)


class StateInput(Protocol):
    """Stored state that is open for reading; each call reads a range of its bytes."""

    @property
    def name(self) -> str:
        """Name of the state for error messages."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> bytes:
        """Return *length* bytes from *offset*.
        Raises CheckpointStorageError if the state is shorter or cannot be read."""


class _InlineInput:
    name = INLINE

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, length: int) -> bytes:
        return _complete(self.name, self._data[offset : offset + length], offset, length)


class _FileInput:
    def __init__(self, name: str, file: InputFile) -> None:
        self.name = name
        self.size = file.size
        self._file = file

    def read(self, offset: int, length: int) -> bytes:
        with storage_errors(self.name, "read"):
            data = self._file.read(offset, length)
        return _complete(self.name, data, offset, length)


def _complete(name: str, data: bytes, offset: int, length: int) -> bytes:
    if len(data) != length:
        raise CorruptCheckpointError(
            name,
            f"it is cut short: {length} bytes from byte {offset} on are wanted, and "
            f"{len(data)} are there; restore an earlier checkpoint",
        )
    return data


@contextmanager
def open_state(location: StateLocation) -> Iterator[StateInput]:
    """Context manager: open the state at a location, to be read in ranges. Raises
    CheckpointStorageError if the state does not exist, has another size than its handle says, or
    cannot be read."""
    if isinstance(location, InlineState):
        yield _InlineInput(location.data)
        return
    with opened(location.path) as file:
        if file.size != location.size:
            raise CorruptCheckpointError(
                location.path,
                f"it has {file.size} bytes, and its handle says {location.size}; restore an "
                "earlier checkpoint",
            )
        yield _FileInput(location.path, file)


def read_bytes(location: StateLocation) -> bytes:
    """Return the bytes given to :meth:`StateWriter.write_bytes`. Raises CheckpointStorageError."""
    with open_state(location) as state:
        data = state.read(0, state.size)
        name = state.name
    check_format(name, data, _BYTES_MAGIC, _BYTES_VERSION)
    check_bytes(name, data[_BYTES_HEADER:], data[_BYTES_HEADER - 4 : _BYTES_HEADER])
    return data[_BYTES_HEADER:]


def read_carried(file: CarriedFile) -> Iterator[bytes]:
    """Yield the bytes given to :meth:`StateWriter.write_carried`, piece by piece.
    Raises CheckpointStorageError; a changed byte is noticed only after the last piece."""
    checksum = 0
    with open_state(file.location) as state:
        for offset in range(0, state.size, _PIECE):
            data = state.read(offset, min(_PIECE, state.size - offset))
            checksum = zlib.crc32(data, checksum)
            yield data
        check_checksum(state.name, checksum.to_bytes(4, "big"), file.checksum.to_bytes(4, "big"))


def check_format(name: str, data: bytes, magic: bytes, version: int) -> None:
    """Check that *data* begins with *magic* and a version up to *version*.
    Raises UnknownCheckpointFormatError or CorruptCheckpointError."""
    if not data.startswith(magic):
        raise UnknownCheckpointFormatError(
            name, f"it does not begin with {magic!r}: it is no such file of flinkray's"
        )
    if len(data) == len(magic):
        raise CorruptCheckpointError(name, "it is cut short; restore an earlier checkpoint")
    found = data[len(magic)]
    if not 1 <= found <= version:
        raise UnknownCheckpointFormatError(
            name,
            f"it has format version {found}, and this flinkray reads versions up to {version}; "
            "restore it with the flinkray that wrote it",
        )


def check_bytes(name: str, data: bytes | memoryview, checksum: bytes) -> None:
    """Check the CRC-32 of *data*. Raises CorruptCheckpointError if it differs from *checksum*."""
    check_checksum(name, zlib.crc32(data).to_bytes(4, "big"), checksum)


def check_checksum(name: str, found: bytes, checksum: bytes) -> None:
    """Raise :class:`CorruptCheckpointError` if the checksum *found* differs from *checksum*."""
    if found != checksum:
        raise CorruptCheckpointError(
            name, "its checksum does not match: it was changed; restore an earlier checkpoint"
        )


def delete_state(location: StateLocation) -> None:
    """Delete the file of a state, if it has a file; no error if it is missing.
    Raises CheckpointStorageError."""
    if isinstance(location, FileState):
        with storage_errors(location.path, "delete"):
            files_at(location.path).delete(location.path)


_LOCAL = LocalStateFiles()
_known: dict[tuple[str, str, str], StateFiles] = {}
_schemes: dict[str, Callable[[str], StateFiles]] = {}


def register_state_files(scheme: str, opener: Callable[[str], StateFiles]) -> None:
    """Register a storage for a URI scheme in this process.
    :func:`files_at` calls *opener* with each URI of *scheme*."""
    _schemes[scheme] = opener


def files_at(location: str) -> StateFiles:
    """Return the storage that contains a location. A storage of pyarrow is opened once per process.
    Raises CheckpointStorageError."""
    if locations.is_local(location):
        return _LOCAL
    storage = locations.storage_of(location)
    if storage[0] in _schemes:
        return _schemes[storage[0]](location)
    if storage not in _known:
        from flinkray.checkpoint.arrow_files import ArrowStateFiles  # pyarrow takes its time

        _known[storage] = ArrowStateFiles.of(location)
    return _known[storage]


@contextmanager
def opened(location: str) -> Iterator[InputFile]:
    """Context manager: open the file at *location* for reading, and close it at the end. Raises
    CheckpointStorageError if the file cannot be opened."""
    with storage_errors(location, "read"):
        file = files_at(location).open(location)
    try:
        yield file
    finally:
        file.close()
