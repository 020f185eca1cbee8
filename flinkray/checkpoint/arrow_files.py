"""State files on storages for which pyarrow has a file system, such as S3. All calls block."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from urllib.parse import unquote

import pyarrow.fs

from flinkray.checkpoint import locations
from flinkray.checkpoint.errors import CheckpointStorageError, UnusableLocationError
from flinkray.checkpoint.files import Buffer, InputFile, OutputFile, StateFiles
from flinkray.ha.arrow_directory import ArrowDirectory, arrow_file_system, is_object_store
from flinkray.ha.directory import Directory


class _ArrowOutput:
    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str) -> None:
        self._file_system = file_system
        self._path = path
        self._file = file_system.open_output_stream(path)

    def write(self, data: Buffer) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(FileNotFoundError):
            self._file_system.delete_file(self._path)


class _ArrowInput:
    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str) -> None:
        self._file = file_system.open_input_file(path)
        self.size: int = self._file.size()

    def read(self, offset: int, length: int) -> bytes:
        if length <= 0 or offset >= self.size:
            return b""
        data: bytes = self._file.read_at(min(length, self.size - offset), offset)
        return data

    def close(self) -> None:
        self._file.close()


class ArrowStateFiles(StateFiles):
    """The :class:`StateFiles` of a storage that is read and written through pyarrow.

    Args:
        location: the location (URI) by which the file system was opened.
        path: the path that pyarrow returned for *location*. The path of any other location in the
            storage is derived from it: it lies at the same relative path.
    """

    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str, location: str) -> None:
        self._file_system = file_system
        self._path = path
        self._location = location

    @classmethod
    def of(cls, location: str) -> ArrowStateFiles:
        """Return the storage that contains the location.
        Raises UnusableLocationError if pyarrow does not know the scheme or cannot parse the URI,
        CheckpointStorageError if pyarrow cannot open the file system now, but perhaps later."""
        try:
            file_system, path = arrow_file_system(location)
        except (ValueError, NotImplementedError, OSError) as error:
            text = str(error)
            if "@" in location:  # the error text of pyarrow contains the whole URI
                text = "it cannot be read; write / as %2F in keys and secrets"
            may_help = isinstance(error, OSError)
            kind = CheckpointStorageError if may_help else UnusableLocationError
            raise kind(location, f"pyarrow has no file system for it: {text}") from error
        return cls(file_system, path, location)

    def create(self, location: str) -> OutputFile:
        path = self._of(location)
        if not is_object_store(self._file_system):
            self._file_system.create_dir(posixpath.dirname(path), recursive=True)
        return _ArrowOutput(self._file_system, path)

    def open(self, location: str) -> InputFile:
        return _ArrowInput(self._file_system, self._of(location))

    def delete(self, location: str) -> None:
        with suppress(FileNotFoundError):
            self._file_system.delete_file(self._of(location))

    def names(self, location: str) -> list[str]:
        if not self.is_directory(location):
            return []
        selector = pyarrow.fs.FileSelector(self._of(location), allow_not_found=True)
        return sorted(info.base_name for info in self._file_system.get_file_info(selector))

    def sizes(self, location: str) -> dict[str, int]:
        if not self.is_directory(location):
            return {}
        selector = pyarrow.fs.FileSelector(self._of(location), allow_not_found=True)
        found = self._file_system.get_file_info(selector)
        return {each.base_name: each.size for each in found if each.is_file}

    def is_directory(self, location: str) -> bool:
        info = self._file_system.get_file_info(self._of(location))
        return bool(info.type == pyarrow.fs.FileType.Directory)

    def remove_if_empty(self, location: str) -> None:
        with suppress(FileNotFoundError):
            if self.is_directory(location) and not self.names(location):
                self._file_system.delete_dir(self._of(location))

    def entries(self, location: str) -> Directory:
        return ArrowDirectory(self._file_system, self._of(location), location)

    def _of(self, location: str) -> str:
        way = posixpath.relpath(*map(_path_in_storage, (location, self._location)))
        return posixpath.normpath(posixpath.join(self._path, way))


def _path_in_storage(location: str) -> str:
    """Return the path of a URI in its file system, with percent-escapes decoded as in pyarrow."""
    return unquote(locations.path_of(location))
