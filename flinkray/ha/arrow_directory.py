"""Implements directories of small entries on S3, GCS, HDFS and all other file systems of
pyarrow.
"""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs

from flinkray.core.locations import without_secrets
from flinkray.ha.directory import UNFINISHED, Directory

_OBJECT_STORES = frozenset({"s3", "gcs", "abfs"})

_KNOWS_DELAYED_OPEN = int(pa.__version__.partition(".")[0]) >= 21


def is_object_store(file_system: pyarrow.fs.FileSystem) -> bool:
    """Return whether the file system is an object store.

    In an object store, an object becomes visible as a whole when it is closed, and directories
    are only parts of object names.
    """
    return file_system.type_name in _OBJECT_STORES


def arrow_file_system(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a URI, and the path in it.

    On S3, a small file is stored by one request instead of three (pyarrow 21 and later).
    Credentials, region and endpoint come from the URI or the environment, as pyarrow defines.
    Raises ValueError (unknown scheme, or unreadable URI) or OSError (the region of a bucket cannot
    be found out).
    """
    parts = urlsplit(uri)
    if parts.scheme == "s3" and _KNOWS_DELAYED_OPEN:
        query = {"allow_delayed_open": "true", **dict(parse_qsl(parts.query))}
        uri = urlunsplit(parts._replace(query=urlencode(query)))
    file_system, path = pyarrow.fs.FileSystem.from_uri(uri)
    return file_system, path


class ArrowDirectory(Directory):
    """A directory on any file system that pyarrow supports."""

    def __init__(self, file_system: pyarrow.fs.FileSystem, path: str, uri: str) -> None:
        self._file_system = file_system
        self._path = path.rstrip("/")
        self._uri = uri

    @classmethod
    def from_uri(cls, uri: str) -> ArrowDirectory:
        """Return the directory at *uri*. Raises the errors of :func:`arrow_file_system`."""
        file_system, path = arrow_file_system(uri)
        return cls(file_system, path, uri)

    def location(self, name: str = "") -> str:
        return without_secrets(_below(self._uri, name))

    def read(self, name: str) -> bytes | None:
        try:
            with self._file_system.open_input_file(f"{self._path}/{name}") as file:
                data: bytes = file.read()
        except FileNotFoundError:
            return None
        return data

    def write(self, name: str, data: bytes) -> None:
        if is_object_store(self._file_system):
            self._put(f"{self._path}/{name}", data)
            return
        self._file_system.create_dir(self._path, recursive=True)
        unfinished = f"{self._path}/{name}.{os.getpid()}{UNFINISHED}"
        try:
            self._put(unfinished, data)
            self._file_system.move(unfinished, f"{self._path}/{name}")
        except OSError:
            with suppress(OSError):
                self._file_system.delete_file(unfinished)
            raise

    def _put(self, path: str, data: bytes) -> None:
        with self._file_system.open_output_stream(path) as file:
            file.write(data)

    def delete(self, name: str) -> None:
        try:
            self._file_system.delete_file(f"{self._path}/{name}")
        except FileNotFoundError:
            return

    def names(self) -> list[str]:
        selector = pyarrow.fs.FileSelector(self._path, allow_not_found=True)
        infos = [info for info in self._file_system.get_file_info(selector) if info.is_file]
        infos.sort(key=lambda info: (info.mtime_ns or 0, info.base_name))
        return [info.base_name for info in infos if not info.base_name.endswith(UNFINISHED)]

    def subdirectory(self, name: str) -> ArrowDirectory:
        return ArrowDirectory(self._file_system, f"{self._path}/{name}", _below(self._uri, name))

    def delete_all(self) -> None:
        self._file_system.delete_dir_contents(self._path, missing_dir_ok=True)


def _below(uri: str, name: str) -> str:
    parts = urlsplit(uri)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=f"{path}/{name}" if name else path))
