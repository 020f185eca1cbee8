"""The Parquet files of a result: one attempt's directory and manifest, its writer, its readers."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from flinkray.core import disk
from flinkray.core.errors import FlinkRayError
from flinkray.core.private_files import create_empty, restrict
from flinkray.ha.arrow_directory import ArrowDirectory
from flinkray.ha.directory import Directory, LocalDirectory
from flinkray.ha.epoch_directory import EpochDirectory

MANIFEST = "_manifest.json"
"""File name of the manifest. Spark and pyarrow ignore files whose names begin with ``_``."""

_VERSION = 2
"""Version of the manifest. In version 1, files have neither ``written_by`` nor ``schema``."""
_PIECE = 4 << 20
"""Bytes of a file that are copied at a time."""


FilesOpener = Callable[[str], tuple[pyarrow.fs.FileSystem, str]]
"""Takes a URI; returns its file system, and the path in that file system."""

_schemes: dict[str, FilesOpener] = {}


def register_files(scheme: str, opener: FilesOpener) -> None:
    """Use *opener* for URIs of *scheme*, in this process. pyarrow opens URIs of other schemes."""
    _schemes[scheme] = opener


class FileResultLostError(FlinkRayError):
    """Raised when a file of a result is missing or was changed. The producer must run again."""

    retryable = True

    def __init__(self, text: str, location: str) -> None:
        super().__init__(text, location)
        self.location = location
        """Location of the result's directory."""

    def __str__(self) -> str:
        text: str = self.args[0]
        return text


@dataclass(frozen=True, slots=True)
class ResultFile:
    """One Parquet file of a result."""

    name: str
    """Path of the file, relative to the directory."""
    size: int
    """Size of the file in bytes."""
    row_groups: tuple[int, ...]
    """Number of rows in each row group."""
    written_by: str = ""
    """Task that has written the file, such as ``clean (1/2)#0``. Empty if it is not known."""
    schema: str = ""
    """Arrow schema of the rows, serialized, as hexadecimal digits. Empty if it is not known."""


class ResultDirectory:
    """The directory of a result, at a path of this machine or a URI.
    All methods block, and raise OSError while the storage fails."""

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
        """Whether the files are on this machine.
        They and their names survive a power failure only after a sync; other storage keeps them."""

    def create(self) -> None:
        """Create the directory and its parents, if missing. Their names are durable on return."""
        if self.is_local:
            disk.make_directories(self.path)
        else:
            self.files.create_dir(self.path, recursive=True)

    def write_json(self, name: str, content: dict[str, Any], *, once: bool = False) -> None:
        """Replace the file *name* in one step: readers see the old file or the new one.

        With *once*, an existing file stays. On storage that is not local, two processes that write
        at the same time may not see each other; then the later file stays.
        """
        self.create()
        path = f"{self.path}/{name}"
        if once and self.files.get_file_info(path).is_file:
            return
        unfinished = f"{path}.{uuid.uuid4().hex}"
        self._put(path, unfinished, [json.dumps(content).encode()], once=once)

    def epochs(self, kind: str, adopted: Collection[str]) -> EpochDirectory:
        """Return a store of small files in this directory that one process at a time may change.

        A later process can take the store over; from then on, changes by the earlier one fail.
        *kind*: name of the store, since a directory can have several. *adopted*: names of files of
        earlier versions of flinkray that belong to the store.
        """
        directory: Directory
        if self.is_local:
            directory = LocalDirectory(Path(self.path))
        else:
            directory = ArrowDirectory(self.files, self.path, self.location)
        return EpochDirectory(directory, kind, lambda name: name in adopted)

    def output(self, path: str) -> pa.NativeFile:
        """Return a new file to be written. Other users of this machine cannot read the file."""
        self.prepare(path)
        return self.files.open_output_stream(path)

    def prepare(self, path: str) -> None:
        """Create an empty file that other users of this machine cannot read; a library then opens
        the file by its path. Does nothing on storage that is not local."""
        if self.is_local:
            create_empty(path)

    def _put(
        self, path: str, unfinished: str, pieces: Iterable[bytes], *, once: bool = False
    ) -> None:
        """Write *pieces* to the file *unfinished*, and then rename that file to *path*.

        The content is durable before the file has its name, and the name is durable on return.
        *once*: keep an existing file at *path*.
        """
        with self.output(unfinished) as stream:
            for piece in pieces:
                stream.write(piece)
        if self.is_local:
            disk.sync(unfinished)
        if self.is_local and once:
            with suppress(FileExistsError):
                os.link(unfinished, path)
            os.unlink(unfinished)
        else:
            self.files.move(unfinished, path)
        if self.is_local:
            disk.sync_names(self.path)

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of the file; None if it does not exist."""
        try:
            with self.files.open_input_file(f"{self.path}/{name}") as stream:
                content: dict[str, Any] = json.loads(stream.read())
        except FileNotFoundError:
            return None
        return content

    def restrict(self) -> None:
        """Set the permissions of files that Spark wrote to those of the cluster's other files."""
        if self.is_local:
            restrict(self.path)

    def seal(
        self, rows: int | None = None, *, written_by: str = "", schema: pa.Schema | None = None
    ) -> tuple[ResultFile, ...]:
        """Write the manifest, which makes the files in the directory the result, and return these
        files; called once. *rows*: number of rows that were written; None if the writer does not
        know. *written_by* and *schema* of all files are noted for :func:`list_files`. Raises
        FileResultLostError if the files have another number of rows."""
        self.create()
        self.restrict()
        selector = pyarrow.fs.FileSelector(self.path, recursive=True)
        infos = [
            info
            for info in self.files.get_file_info(selector)
            if info.is_file and info.extension == "parquet" and info.base_name[0] not in "_."
        ]
        infos.sort(key=lambda info: str(info.path))
        noted = "" if schema is None else schema.serialize().to_pybytes().hex()
        listed = tuple(
            replace(self._describe(info), written_by=written_by, schema=noted) for info in infos
        )
        there = sum(sum(file.row_groups) for file in listed)
        if rows is not None and there != rows:
            raise self._lost(f"{rows} rows were written, and {there} are there")
        manifest = {"version": _VERSION, "files": [asdict(file) for file in listed]}
        unfinished = f"{self.path}/{MANIFEST}.part"
        with self.output(unfinished) as stream:
            stream.write(json.dumps(manifest).encode())
        self.files.move(unfinished, f"{self.path}/{MANIFEST}")
        return listed

    def _describe(self, info: pyarrow.fs.FileInfo) -> ResultFile:
        with self.files.open_input_file(info.path) as source:
            metadata = pq.read_metadata(source)
        rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
        return ResultFile(str(info.path).removeprefix(f"{self.path}/"), int(info.size), rows)

    def list(self) -> tuple[ResultFile, ...]:
        """Return the files of the result, after checking that each has the size that was written.
        Raises FileResultLostError if the manifest or a file is missing or was changed."""
        try:
            with self.files.open_input_file(f"{self.path}/{MANIFEST}") as stream:
                manifest = json.loads(stream.read())
        except FileNotFoundError:
            raise self._lost("it has no manifest") from None
        except ValueError as error:
            raise self._lost(f"its manifest cannot be read: {error}") from error
        if not 1 <= manifest["version"] <= _VERSION:
            version = manifest["version"]
            raise self._lost(f"its manifest is of version {version}, and this knows {_VERSION}")
        listed = tuple(
            ResultFile(**{**file, "row_groups": tuple(file["row_groups"])})
            for file in manifest["files"]
        )
        if listed:
            infos = self.files.get_file_info([f"{self.path}/{file.name}" for file in listed])
            for file, info in zip(listed, infos, strict=True):
                if not info.is_file or info.size != file.size:
                    raise self._lost(f"{file.name} is gone, or is not what was written")
        return listed

    def names(self) -> tuple[str, ...]:
        """Return the names of all files of the result, the manifest last.
        Raises FileResultLostError as :meth:`list` does."""
        return (*(file.name for file in self.list()), MANIFEST)

    def read_pieces(self, name: str) -> Iterator[bytes]:
        """Yield the bytes of a file, one piece at a time."""
        with self.files.open_input_stream(f"{self.path}/{name}") as stream:
            while piece := stream.read(_PIECE):
                yield piece

    def write_pieces(self, name: str, pieces: Iterable[bytes]) -> None:
        """Replace the file *name* in one step: readers see the old file or the new one."""
        self.create()
        unfinished = f"{self.path}/.{name}.{uuid.uuid4().hex}"
        self._put(f"{self.path}/{name}", unfinished, pieces)

    def sync(self) -> None:
        """Make the files in the directory durable, and all names on the path from the root to them.
        Does nothing on non-local storage. Raises FileResultLostError if the directory is gone."""
        if not self.is_local:
            return
        selector = pyarrow.fs.FileSelector(self.path, recursive=True)
        try:
            infos = self.files.get_file_info(selector)
        except FileNotFoundError:
            raise self._lost("it is gone") from None
        for info in infos:
            (disk.sync if info.is_file else disk.sync_names)(info.path)
        self.sync_names()

    def sync_names(self) -> None:
        """Make the names of the files here durable, and those of the directory and its parents."""
        if self.is_local:
            disk.sync_names_to_root([self.path])

    def open(self, file: ResultFile) -> pq.ParquetFile:
        """Return a reader of *file*. Raises FileResultLostError: missing or damaged."""
        with self.reading(file):
            return pq.ParquetFile(self.files.open_input_file(f"{self.path}/{file.name}"))

    @contextmanager
    def reading(self, file: ResultFile) -> Iterator[None]:
        """Context manager: errors that show a lost or damaged file become FileResultLostError."""
        try:
            yield
        except (FileNotFoundError, pa.ArrowInvalid) as error:
            raise self._lost(f"{file.name} cannot be read: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise  # the storage fails, so nothing is known about the file
            raise self._lost(f"{file.name} cannot be read: {error}") from error

    def delete(self) -> None:
        """Delete the directory with all its contents; no error if it does not exist."""
        try:
            self.files.delete_dir(self.path)
        except FileNotFoundError:
            return

    def _lost(self, why: str) -> FileResultLostError:
        return FileResultLostError(f"the result at {self.location} is lost: {why}", self.location)


@dataclass(frozen=True, slots=True)
class RowGroupSplit:
    """The numbers of some row groups of one Parquet file, which one reader reads."""

    directory: ResultDirectory
    file: ResultFile
    row_groups: tuple[int, ...]


def list_files(
    directories: Iterable[ResultDirectory],
) -> list[tuple[ResultDirectory, ResultFile]]:
    """Return the files of a result whose parts are in these directories, after checking that all
    tasks have written the same columns, of types that have a common type.

    Raises:
        FileResultLostError: a directory is not complete.
        ResultSchemaError: two tasks have written different columns.
    """
    files = [(directory, file) for directory in directories for file in directory.list()]
    with_schema = [file for _, file in files if file.schema]
    columns: dict[str, pa.Schema] = {}
    for file in with_schema:
        if file.schema in columns:
            continue
        schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(file.schema)))
        if columns and not _are_alike([*columns.values(), schema]):
            first = with_schema[0]
            raise ResultSchemaError(
                f"the tasks of one stage have written different columns: {first.written_by} "
                f"has written {_columns(columns[first.schema])}, and {file.written_by} has written "
                f"{_columns(schema)}: give all batches of a stage the same columns and types, in "
                "the same order"
            )
        columns[file.schema] = schema
    return files


def _are_alike(schemas: list[pa.Schema]) -> bool:
    try:
        pa.unify_schemas(schemas, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return False
    return all(schema.names == schemas[0].names for schema in schemas)


def share_of(
    directories: Iterable[ResultDirectory], reader: int, number_of_readers: int
) -> list[RowGroupSplit]:
    """Return the share of reader number *reader*. Together, the readers read every row once.

    Row groups are dealt out in turn, in the order of directories and files. So the shares are the
    same in every call, and one large file is read by several readers.
    Raises the errors of :func:`list_files`.
    """
    if not 0 <= reader < number_of_readers:
        raise ValueError(f"there is no reader {reader} of {number_of_readers}")
    share = []
    number = 0
    for directory, file in list_files(directories):
        mine = []
        for row_group in range(len(file.row_groups)):
            if number % number_of_readers == reader:
                mine.append(row_group)
            number += 1
        if mine:
            share.append(RowGroupSplit(directory, file, tuple(mine)))
    return share


def read_batches(
    splits: Iterable[RowGroupSplit], batch_size: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the splits, in their order; blocks.
    Raises FileResultLostError if a file is missing or damaged."""
    for split in splits:
        with split.directory.open(split.file) as file:
            batches = file.iter_batches(batch_size, row_groups=list(split.row_groups))
            while True:
                with split.directory.reading(split.file):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch


_ROWS_PER_FILE = 4_000_000
_ROWS_PER_GROUP = 131_072
"""Rows in a row group, the smallest unit that one reader reads."""


class ResultSchemaError(FlinkRayError):
    """Raised when a stage writes batches with different columns, or two columns of one name."""


class ResultWriter:
    """Writes the part of a result that one attempt of a subtask produces. All calls come from one
    thread and block. Without *schema*, that of the first batch is used. With *schema* there is
    always a file, so that readers know the columns even if there are no rows."""

    def __init__(
        self, directory: ResultDirectory, schema: pa.Schema | None = None, *, task: str = ""
    ) -> None:
        """Create a writer without files. *task*: the name of the attempt, for errors of readers."""
        self._directory = directory
        self._task = task
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_file = 0
        self._files = 0
        self.rows = 0
        """Number of rows written so far."""

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Add rows.
        Raises ResultSchemaError if the columns differ from the schema, or two have one name."""
        if self._schema is None:
            twice = [name for name, count in Counter(data.schema.names).items() if count > 1]
            if twice:
                raise ResultSchemaError(
                    f"a result has several columns of the name {twice[0]!r}, of the columns "
                    f"{_columns(data.schema)}: give each column a name of its own"
                )
            self._schema = data.schema.remove_metadata()
        if not data.schema.equals(self._schema):
            raise ResultSchemaError(
                f"a result of columns {_columns(self._schema)} was given rows of columns "
                f"{_columns(data.schema)}: give every batch the same columns and types, in the "
                "same order"
            )
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        writer = self._open() if self._writer is None else self._writer
        writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        self.rows += table.num_rows
        self._rows_in_file += table.num_rows
        if self._rows_in_file >= _ROWS_PER_FILE:
            self._close_file()

    def finish(self) -> None:
        """Close the last file and write the manifest, so that the result can be read. Raises
        FileResultLostError if some of the written rows are missing."""
        if self._files == 0 and self._schema is not None:
            self._open()
        self._close_file()
        self._directory.seal(self.rows, written_by=self._task, schema=self._schema)

    def abandon(self) -> None:
        """Delete what this attempt has written, because the attempt has failed."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._directory.delete()

    def _open(self) -> pq.ParquetWriter:
        if self._files == 0:
            self._directory.create()
        path = f"{self._directory.path}/part-{self._files:05d}.parquet"
        self._files += 1
        self._rows_in_file = 0
        self._directory.prepare(path)
        self._writer = pq.ParquetWriter(path, self._schema, filesystem=self._directory.files)
        return self._writer

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
