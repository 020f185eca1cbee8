"""The directory of an attempt's part of a result, and the manifest in it."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from flinkray.core import disk
from flinkray.core.errors import FlinkRayError

MANIFEST = "_manifest.json"
"""Spark and pyarrow pass over files whose names begin like this."""

_VERSION = 1
_PIECE = 4 << 20
"""Bytes of a file that are copied at a time."""


FilesOpener = Callable[[str], tuple[pyarrow.fs.FileSystem, str]]
"""Takes a URI; returns its file system, and the path in it."""

_schemes: dict[str, FilesOpener] = {}


def register_files(scheme: str, opener: FilesOpener) -> None:
    """Have the URIs of *scheme* opened by *opener*, in this process; pyarrow knows others."""
    _schemes[scheme] = opener


class FileResultLostError(FlinkRayError):
    """A file of a result is not there any more, or not as it was written: its producer has to run
    again."""

    retryable = True

    def __init__(self, text: str, location: str) -> None:
        super().__init__(text)
        self.location = location
        """Of the directory."""


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One Parquet file of a result."""

    name: str
    """Below the directory."""
    size: int
    """Bytes."""
    row_groups: tuple[int, ...]
    """Rows of each."""


class ResultDirectory:
    """At a path of this machine, or a URI that pyarrow or :func:`register_files` knows.

    All methods block, and raise OSError while the storage fails.
    """

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/")
        scheme = urlsplit(location).scheme
        if scheme:
            opener = _schemes.get(scheme, pyarrow.fs.FileSystem.from_uri)
            self.files, path = opener(self.location)
        else:
            self.files, path = pyarrow.fs.LocalFileSystem(), os.path.abspath(self.location)
        self.path: str = path.rstrip("/")
        self.is_local = isinstance(self.files, pyarrow.fs.LocalFileSystem)
        """Closed files and their names survive a cut of the power when they are synchronised; other
        storages keep what is closed."""

    def create(self) -> None:
        """Fine when it is there."""
        self.files.create_dir(self.path, recursive=True)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """A file that is whole or not there, in the place of one of that name."""
        self.create()
        path = f"{self.path}/{name}"
        self._put(path, f"{path}.{uuid.uuid4().hex}", [json.dumps(content).encode()])

    def _put(self, path: str, unfinished: str, pieces: Iterable[bytes]) -> None:
        """A file that is on the disk when it has its name, and its name when this returns."""
        with self.files.open_output_stream(unfinished) as stream:
            for piece in pieces:
                stream.write(piece)
        if self.is_local:
            disk.sync(unfinished)
        self.files.move(unfinished, path)
        if self.is_local:
            disk.sync_names(self.path)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """None: it is not there."""
        try:
            with self.files.open_input_file(f"{self.path}/{name}") as stream:
                content: dict[str, Any] = json.loads(stream.read())
        except FileNotFoundError:
            return None
        return content

    def seal(self, rows: int | None = None) -> tuple[ResultFile, ...]:
        """Make what lies in the directory the result: the manifest is written.

        To be called once, by the writer of the files.

        Args:
            rows: so many were written; None: their writer does not know.

        Raises:
            FileResultLostError: there are others than were written.
        """
        self.create()
        selector = pyarrow.fs.FileSelector(self.path, recursive=True)
        infos = [
            info
            for info in self.files.get_file_info(selector)
            if info.is_file and info.extension == "parquet" and info.base_name[0] not in "_."
        ]
        infos.sort(key=lambda info: str(info.path))
        listed = tuple(self._describe(info) for info in infos)
        there = sum(sum(file.row_groups) for file in listed)
        if rows is not None and there != rows:
            raise self._lost(f"{rows} rows were written, and {there} are there")
        manifest = {"version": _VERSION, "files": [asdict(file) for file in listed]}
        unfinished = f"{self.path}/{MANIFEST}.part"
        with self.files.open_output_stream(unfinished) as stream:
            stream.write(json.dumps(manifest).encode())
        self.files.move(unfinished, f"{self.path}/{MANIFEST}")
        return listed

    def _describe(self, info: pyarrow.fs.FileInfo) -> ResultFile:
        with self.files.open_input_file(info.path) as source:
            metadata = pq.read_metadata(source)
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        return ResultFile(str(info.path).removeprefix(f"{self.path}/"), int(info.size), rows)

    def list(self) -> tuple[ResultFile, ...]:
        """The files of the result, each of them there with the size that it was written with.

        Raises:
            FileResultLostError: the manifest or a file is missing, or is another one.
        """
        try:
            with self.files.open_input_file(f"{self.path}/{MANIFEST}") as stream:
                manifest = json.loads(stream.read())
        except FileNotFoundError:
            raise self._lost("it has no manifest") from None
        except ValueError as error:
            raise self._lost(f"its manifest cannot be read: {error}") from error
        if manifest["version"] != _VERSION:
            version = manifest["version"]
            raise self._lost(f"its manifest is of version {version}, and this knows {_VERSION}")
        listed = tuple(
            ResultFile(file["name"], file["size"], tuple(file["row_groups"]))
            for file in manifest["files"]
        )
        if listed:
            infos = self.files.get_file_info([f"{self.path}/{file.name}" for file in listed])
            for file, info in zip(listed, infos, strict=True):
                if not info.is_file or info.size != file.size:
                    raise self._lost(f"{file.name} is gone, or is not what was written")
        return listed

    def names(self) -> tuple[str, ...]:
        """Of all files of the result, the manifest last.

        Raises:
            FileResultLostError: as of :meth:`list`.
        """
        return (*(file.name for file in self.list()), MANIFEST)

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """The bytes of a file, a piece at a time."""
        with self.files.open_input_stream(f"{self.path}/{name}") as stream:
            while piece := stream.read(_PIECE):
                yield piece

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """A file that is whole or not there, in the place of one of that name."""
        self.create()
        unfinished = f"{self.path}/.{name}.{uuid.uuid4().hex}"
        self._put(f"{self.path}/{name}", unfinished, pieces)

    def sync(self, root: ResultDirectory) -> None:
        """Its files, and the names of the directories from *root* down to it, are on the disk when
        this returns.

        Raises:
            FileResultLostError: it is not there.
        """
        if not self.is_local:
            return
        selector = pyarrow.fs.FileSelector(self.path, recursive=True)
        try:
            infos = self.files.get_file_info(selector)
        except FileNotFoundError:
            raise self._lost("it is gone") from None
        for info in infos:
            (disk.sync if info.is_file else disk.sync_names)(info.path)
        self.sync_names(root)

    def sync_names(self, root: ResultDirectory) -> None:
        """The same of names only: its files', and those of the directories above it."""
        if not self.is_local:
            return
        path = self.path
        while path != root.path:
            disk.sync_names(path)
            path = os.path.dirname(path)
        disk.sync_names(path)

    def open(self, file: ResultFile) -> pq.ParquetFile:
        """Raises FileResultLostError: it is gone, or damaged."""
        with self.reading(file):
            return pq.ParquetFile(self.files.open_input_file(f"{self.path}/{file.name}"))

    @contextmanager
    def reading(self, file: ResultFile) -> Iterator[None]:
        """Inside, what shows that a file is gone or damaged is raised as FileResultLostError."""
        try:
            yield
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise self._lost(f"{file.name} cannot be read: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise  # the storage fails: what is in the file is not known
            raise self._lost(f"{file.name} cannot be read: {error}") from error

    def delete(self) -> None:
        """With all that is in it; fine when it is not there."""
        try:
            self.files.delete_dir(self.path)
        except FileNotFoundError:
            return

    def _lost(self, why: str) -> FileResultLostError:
        return FileResultLostError(f"the result at {self.location} is lost: {why}", self.location)
