"""Makes a simulated disk available as a file system of pyarrow."""

from __future__ import annotations

import errno
import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol
from weakref import proxy

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSystemHandler, FileType, PyFileSystem


class Disk(Protocol):
    """Interface to the needed part of :class:`~flinkray.testing.simulation.disk.SimulatedDisk`."""

    def make_directory(self, path: str) -> None: ...
    def read(self, path: str) -> bytes | None: ...
    def list(self, directory: str) -> list[str]: ...
    def write(self, path: str, data: bytes) -> None: ...
    def sync(self, path: str) -> None: ...
    def rename(self, path: str, new_path: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def delete_tree(self, directory: str) -> None: ...
    def sync_directory(self, directory: str) -> None: ...
    def unsynced(self, directory: str) -> Sequence[str]: ...


def arrow_file_system(disk: Disk) -> PyFileSystem:
    """Return a file system for reading and writing Parquet files; use it in blocking work."""
    return PyFileSystem(_DiskHandler(disk))


class _DiskHandler(FileSystemHandler):  # type: ignore[misc]
    """An Arrow file system that behaves like an object store.

    A file exists, and is durable, when it is closed. Deleted files are gone for good. Selectors see
    the files directly in a directory.

    The handler holds only a weak reference to its disk: Python's garbage collector does not see
    references through Arrow, and a disk refers to its whole run, which refers to the user of the
    file system.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk: Disk = proxy(disk)

    def get_type_name(self) -> str:
        return "simulated"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: list[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        data = self._disk.read(path)
        if data is None:
            return FileInfo(path, FileType.NotFound)
        return FileInfo(path, FileType.File, size=len(data))

    def get_file_info_selector(self, selector: Any) -> list[FileInfo]:
        folder = selector.base_dir.strip("/")
        return [self._info(f"{folder}/{name}") for name in self._disk.list(folder)]

    def create_dir(self, path: str, recursive: bool) -> None:
        parts = path.split("/")
        for depth in range(1 if recursive else len(parts), len(parts) + 1):
            self._disk.make_directory("/".join(parts[:depth]))
            self._disk.sync_directory("/".join(parts[: depth - 1]))

    def delete_dir(self, path: str) -> None:
        self._disk.delete_tree(path)
        for folder in self._disk.unsynced(path):  # also the changes of an earlier, failed attempt
            self._disk.sync_directory(folder)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        self.delete_dir(path)

    def delete_root_dir_contents(self) -> None:
        raise OSError(errno.EPERM, "somebody wants to delete all of a disk")

    def delete_file(self, path: str) -> None:
        self._disk.delete(path)
        self._disk.sync_directory(_folder(path))

    def move(self, src: str, dest: str) -> None:
        self._disk.rename(src, dest)
        self._disk.sync_directory(_folder(dest))

    def copy_file(self, src: str, dest: str) -> None:
        self._write(dest, self._read(src))

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._read(path))

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._read(path))

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_Unwritten(self, path), mode="w")

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise OSError(errno.ENOTSUP, "files are written as a whole", path)

    def _read(self, path: str) -> bytes:
        data = self._disk.read(path)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return data

    def _write(self, path: str, data: bytes) -> None:
        self._disk.write(path, data)
        self._disk.sync(path)
        self._disk.sync_directory(_folder(path))


class _Unwritten(io.BytesIO):
    """A file that is being written; the disk gets the file when it is closed."""

    def __init__(self, handler: _DiskHandler, path: str) -> None:
        super().__init__()
        self._handler = handler
        self._path = path

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            # The garbage collector closes files that a killed process left open, maybe after the
            # run.
            with suppress(ReferenceError):
                self._handler._write(self._path, data)


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
