"""Files of text, CSV, JSON lines or Parquet, which become visible by being renamed.

A writer writes ``.part-<subtask>-<attempt>-<n>.<id>.inprogress`` and renames it to
``part-<subtask>-<attempt>-<n>.<suffix>`` when it is committed, so a reader of the directory never
sees half a file, and a failed attempt leaves only hidden ones.
"""

from __future__ import annotations

import csv
import io
import json
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from flinkray.streaming.columnar.conversion import block_to_batch
from flinkray.streaming.elements import Block, Columns
from flinkray.streaming.errors import StreamError
from flinkray.streaming.row import Row
from flinkray.streaming.sinks.sink import Committer, Sink, SinkWriter, WriterContext
from flinkray.streaming.typeinfo import TypeInformation


class Rename(NamedTuple):
    """A finished file, and what it is to be called."""

    hidden: str
    visible: str


class FileFormat(ABC):
    """How records become bytes."""

    suffix: str

    @abstractmethod
    def open(self, path: Path) -> PartFile:
        """Begin a file."""


class PartFile(ABC):
    """A file that is being written."""

    @abstractmethod
    def write(self, block: Block) -> None: ...

    @abstractmethod
    def write_columns(self, columns: Columns) -> None: ...

    @abstractmethod
    def size(self) -> int:
        """Bytes, or about as many."""

    @abstractmethod
    def finish(self) -> None:
        """Everything is on the disk."""


class _TextPart(PartFile):
    def __init__(self, path: Path, encode: Any) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._encode = encode

    def write(self, block: Block) -> None:
        encode = self._encode
        records = iter(block.values)
        self._file.write("".join([encode(value) for value in records]))

    def write_columns(self, columns: Columns) -> None:
        self.write(columns.to_block())

    def size(self) -> int:
        return self._file.tell()

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class TextFormat(FileFormat):
    """``str(value)`` on a line."""

    suffix = "txt"

    def open(self, path: Path) -> PartFile:
        return _TextPart(path, lambda value: f"{value}\n")


class JsonFormat(FileFormat):
    """A JSON document on a line; rows with names become objects."""

    suffix = "json"

    def open(self, path: Path) -> PartFile:
        return _TextPart(path, lambda value: json.dumps(_plain(value), default=str) + "\n")


class CsvFormat(FileFormat):
    """Comma-separated values; one column for what is no row or tuple."""

    suffix = "csv"

    def open(self, path: Path) -> PartFile:
        return _TextPart(path, _csv_line)


def _csv_line(value: Any) -> str:
    line = io.StringIO()
    fields = value if isinstance(value, Row | tuple | list) else [value]
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue()


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return list(value) if value._fields is None else value.as_dict(True)
    return value


class _ParquetPart(PartFile):
    def __init__(self, path: Path, type_info: TypeInformation | None) -> None:
        self._path = path
        self._type_info = type_info
        self._writer: pq.ParquetWriter | None = None
        self._bytes = 0

    def write(self, block: Block) -> None:
        self._write(block_to_batch(block, self._type_info))

    def write_columns(self, columns: Columns) -> None:
        self._write(columns.batch)

    def _write(self, batch: pa.RecordBatch) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, batch.schema)
        elif batch.schema != self._writer.schema:
            batch = pa.Table.from_batches([batch]).cast(self._writer.schema).to_batches()[0]
        self._writer.write_batch(batch)
        self._bytes += batch.nbytes

    def size(self) -> int:
        return self._bytes

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.close()


class ParquetFormat(FileFormat):
    """Parquet, with the schema of the declared row type or of the first batch."""

    suffix = "parquet"

    def __init__(self, type_info: TypeInformation | None = None) -> None:
        self._type_info = type_info

    def open(self, path: Path) -> PartFile:
        return _ParquetPart(path, self._type_info)


FORMATS: dict[str, type[FileFormat]] = {
    "text": TextFormat,
    "json": JsonFormat,
    "csv": CsvFormat,
    "parquet": ParquetFormat,
}


class FileSink(Sink[Rename]):
    """Writes a directory of files.

    Args:
        path: the directory; made if it is not there.
        file_format: ``text``, ``csv``, ``json``, ``parquet``, or a FileFormat.
        roll_size: a file that reached so many bytes is followed by a new one.
        prefix, suffix: of the files' names; by default ``part`` and the format's own.
    """

    def __init__(
        self,
        path: str | Path,
        file_format: str | FileFormat = "text",
        roll_size: int = 128 * 2**20,
        prefix: str = "part",
        suffix: str | None = None,
    ) -> None:
        if isinstance(file_format, str):
            if file_format not in FORMATS:
                raise StreamError(
                    f"unknown file format {file_format!r}; there are {', '.join(FORMATS)}"
                )
            file_format = FORMATS[file_format]()
        self._path = str(path)
        self._format = file_format
        self._roll_size = roll_size
        self._prefix = prefix
        self._suffix = f".{file_format.suffix}" if suffix is None else suffix

    def create_writer(self, context: WriterContext) -> SinkWriter[Rename]:
        names = f"{self._prefix}-{context.subtask_index}-{context.attempt_number}", self._suffix
        return _FileWriter(Path(self._path), self._format, self._roll_size, names)

    def create_committer(self) -> Committer[Rename]:
        return RenamingCommitter()


class _FileWriter(SinkWriter[Rename]):
    def __init__(
        self, directory: Path, file_format: FileFormat, roll_size: int, names: tuple[str, str]
    ) -> None:
        self._directory = directory
        self._format = file_format
        self._roll_size = roll_size
        self._prefix, self._suffix = names
        self._number = 0
        self._part: PartFile | None = None
        self._names: Rename | None = None
        self._finished: list[Rename] = []
        directory.mkdir(parents=True, exist_ok=True)

    def _open(self) -> PartFile:
        if self._part is None:
            name = f"{self._prefix}-{self._number}"
            self._number += 1
            self._names = Rename(
                str(self._directory / f".{name}.{uuid.uuid4().hex[:12]}.inprogress"),
                str(self._directory / f"{name}{self._suffix}"),
            )
            self._part = self._format.open(Path(self._names.hidden))
        return self._part

    def write(self, block: Block) -> None:
        self._open().write(block)
        self._roll_if_full()

    def write_columns(self, columns: Columns) -> None:
        self._open().write_columns(columns)
        self._roll_if_full()

    def _roll_if_full(self) -> None:
        if self._part is not None and self._part.size() >= self._roll_size:
            self._finish()

    def _finish(self) -> None:
        if self._part is not None and self._names is not None:
            self._part.finish()
            self._finished.append(self._names)
            self._part = None

    def prepare_commit(self, end_of_input: bool) -> list[Rename]:
        self._finish()
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        if self._part is not None and self._names is not None:
            self._part.finish()
            Path(self._names.hidden).unlink(missing_ok=True)
            self._part = None


class RenamingCommitter(Committer[Rename]):
    """Renaming again what was renamed already does nothing."""

    def commit(self, committables: Sequence[Rename]) -> None:
        for hidden, visible in committables:
            if os.path.exists(hidden):
                os.replace(hidden, visible)
