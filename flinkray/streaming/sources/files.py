"""Files and directories: text, CSV, JSON lines, Parquet; read once, or watched for new files."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from flinkray.core.arguments import path_of
from flinkray.core.clock import Clock
from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Block, Columns, Origin
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.csv_files import read_csv
from flinkray.streaming.sources.file_input import open_text, reading, reading_text
from flinkray.streaming.sources.reader import SequentialReader
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)


class FileSplit(NamedTuple):
    """A file, from which *offset* is the next to be read: lines of text and JSON, batches with rows
    of CSV and Parquet."""

    path: str
    offset: int


class RecordFormat(ABC):
    """How a file is read record by record.

    An instance is used by several readers, also in other processes.
    """

    type_info: TypeInformation | None = None
    """Of the records."""

    @abstractmethod
    def read(self, path: str) -> Generator[Any, None, None]:
        """The records of a file, which is closed with the generator."""


FORMATS = ("text", "csv", "json", "parquet")

_OF_PATHS = "; several are given one by one, and a format is given as file_format="


class FileSource(Source[FileSplit]):
    """Reads files.

    Text gives strings without the line's end, JSON lines the parsed value, CSV and Parquet batches
    of columns.  A column of a CSV file has one type, which holds all values of that file.  Hidden
    files (``.`` and ``_`` in front) are left out.  Files of which the name ends with ``.gz``,
    ``.bz2``, ``.lz4`` or ``.zst`` are decompressed, but not Parquet and those that a RecordFormat
    opens.

    Args:
        paths: files and directories; directories are searched to any depth, also behind links, and
            each is read once.  One that cannot be listed is an error.
        file_format: ``text``, ``csv``, ``json``, ``parquet``, or a RecordFormat.
        discovery_interval: look for new files that often, without end; None reads what is there.
        column_names: of CSV files that begin with a record, as those of a FileSink do; None: the
            first line of each file has the names.
    """

    def __init__(
        self,
        *paths: str | Path,
        file_format: str | RecordFormat = "text",
        discovery_interval: Duration | Time | int | None = None,
        column_names: Sequence[str] | None = None,
    ) -> None:
        if isinstance(file_format, str) and file_format not in FORMATS:
            raise StreamError(
                f"unknown file format {file_format!r}; there are {', '.join(FORMATS)}"
            )
        if not isinstance(file_format, str | RecordFormat):
            raise TypeError(
                f"file_format of a FileSource is one of {', '.join(map(repr, FORMATS))}, or a "
                f"RecordFormat, got {file_format!r}"
            )
        if not paths:
            raise StreamError("a file source needs at least one path")
        if column_names is not None and file_format != "csv":
            raise StreamError(f"column names are of CSV files, not of {file_format}")
        if isinstance(column_names, str):
            raise TypeError(f"column_names is a list of texts, got {column_names!r}")
        if file_format == "text":
            _refuse_formats_in(paths[1:])
        self._column_names = None if column_names is None else list(column_names)
        self._paths = [path_of(path, "a FileSource", _OF_PATHS) for path in paths]
        self._format = file_format
        self._interval = None if discovery_interval is None else milliseconds(discovery_interval)

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    def get_produced_type(self) -> TypeInformation | None:
        return self._format.type_info if isinstance(self._format, RecordFormat) else None

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], clock: Clock
    ) -> SplitEnumerator[FileSplit]:
        return FileEnumerator(context, self._paths, self._interval, clock)

    def create_reader(self, context: ReaderContext) -> SourceReader[FileSplit]:
        return _FileReader(context, self._format, self._column_names)


def _refuse_formats_in(paths: Sequence[object]) -> None:
    """
    Raises:
        StreamError: the name of a format is among paths.
    """
    for path in paths:
        if isinstance(path, str) and path.lower() in FORMATS:
            raise StreamError(
                f"FileSource takes paths without names, and {path!r} in their place looks like "
                f"the format: give file_format={path.lower()!r}, or './{path}' for a file or "
                "directory of that name"
            )


def find_files(paths: Sequence[str]) -> list[str]:
    """All files below *paths*, in the order of their names.

    Raises:
        StreamError: a path that does not exist.
        OSError: a directory that cannot be listed.
    """
    found: list[str] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            found += map(str, sorted(_files_below(text)))
        elif path.exists():
            found.append(str(path))
        else:
            raise StreamError(f"there is no file or directory {text}")
    return found


def _files_below(directory: str) -> Iterator[Path]:
    """Those that are not hidden.

    Directories behind links come after the others, and by their own paths: so a file has one path,
    whichever links there are to its directory, and is not read again because of another link.
    """
    walked: set[str] = set()
    waiting = deque([directory])
    while waiting:
        for folder, folders, files in os.walk(waiting.popleft(), onerror=_raise):
            place = os.path.realpath(folder)
            if place in walked:
                folders.clear()
                continue
            walked.add(place)
            folders[:] = filter(_is_shown, folders)
            inner = [os.path.join(folder, name) for name in folders]
            waiting += [os.path.realpath(path) for path in inner if os.path.islink(path)]
            for name in filter(_is_shown, files):
                path = Path(folder, name)
                if path.is_file():
                    yield path


def _is_shown(name: str) -> bool:
    return not name.startswith((".", "_"))


def _raise(error: OSError) -> None:
    raise error


class FileEnumerator(FixedSplitsEnumerator[FileSplit]):
    """A split for each file; a watched directory is looked through again and again."""

    def __init__(
        self,
        context: EnumeratorContext[FileSplit],
        paths: Sequence[str],
        interval: int | None,
        clock: Clock,
    ) -> None:
        super().__init__(context, [])
        self._paths = paths
        self._interval = interval
        self._clock = clock
        self._seen: dict[str, None] = {}
        self._waiting: dict[int, None] = {}
        self._next = 0.0

    def start(self) -> None:
        self._search()

    def _search(self) -> None:
        for path in find_files(self._paths):
            if path not in self._seen:
                self._seen[path] = None
                self._remaining.append(FileSplit(path, 0))
        if self._interval is not None:
            self._next = self._clock.time() + self._interval / 1000

    def next_discovery_time(self) -> float | None:
        return None if self._interval is None else self._next

    def discover(self) -> None:
        self._search()
        while self._waiting and self._remaining:
            subtask = next(iter(self._waiting))
            del self._waiting[subtask]
            self.handle_split_request(subtask)

    def handle_split_request(self, subtask: int) -> None:
        if self._interval is None:
            super().handle_split_request(subtask)
        elif self._remaining:
            self.context.assign_split(self._remaining.pop(0), subtask)
        else:
            self._waiting[subtask] = None

    def add_splits_back(self, splits: Sequence[FileSplit], subtask: int) -> None:
        self._remaining = [*splits, *self._remaining]

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return list(self._seen), list(self._remaining)

    def restore(self, checkpoint: Any) -> None:
        seen, remaining = checkpoint
        self._seen = dict.fromkeys(seen)
        self._remaining = list(remaining)


class _FileReader(SequentialReader[FileSplit]):
    def __init__(
        self,
        context: ReaderContext,
        file_format: str | RecordFormat,
        column_names: list[str] | None,
    ) -> None:
        super().__init__(context)
        self._format = file_format
        self._column_names = column_names
        self._batches: Iterator[Block | Columns] = iter(())
        self._path = ""
        self._offset = self._read_on = 0

    def open_split(self, split: FileSplit) -> None:
        self._path, self._offset = split
        if isinstance(self._format, RecordFormat):
            self._batches = self._read_records(self._format, split)
        elif self._format in ("text", "json"):
            self._batches = self._read_lines(split)
        else:
            is_parquet = self._format == "parquet"
            batches = (
                _parquet(split.path) if is_parquet else read_csv(split.path, self._column_names)
            )
            self._batches = _after(split.offset, batches)

    def _read_records(self, records: RecordFormat, split: FileSplit) -> Iterator[Block | Columns]:
        with closing(records.read(split.path)) as iterator:
            number = 0
            while values := list(islice(iterator, self._lines_per_block)):
                kept = values[max(0, split.offset - number) :]
                number += len(values)
                self._read_on = number
                yield Block(kept)

    def _read_lines(self, split: FileSplit) -> Iterator[Block | Columns]:
        parse = json.loads if self._format == "json" else None
        with reading_text(split.path), open_text(split.path) as file:
            lines: list[Any] = []
            for number, line in enumerate(file):
                if number < split.offset:
                    continue
                self._read_on = number + 1
                text = line.rstrip("\r\n")
                if parse is None:
                    lines.append(text)
                elif text:
                    try:
                        lines.append(parse(text))
                    except ValueError as error:
                        raise StreamError(
                            f"{split.path}, line {number + 1}, is no JSON: {error}"
                        ) from error
                if len(lines) >= self._lines_per_block:
                    yield Block(lines)
                    lines = []
            if lines:
                yield Block(lines)

    _lines_per_block = 4096

    def split_id(self, split: FileSplit) -> str:
        return split.path

    def read(self, max_records: int) -> Polled:
        batch = next(self._batches, None)
        if batch is None:
            return END_OF_INPUT
        if len(batch):
            batch.origin = Origin(self._path, self._offset)
            self._offset = self._read_on if isinstance(batch, Block) else self._offset + 1
        return batch

    def remaining(self) -> FileSplit:
        return FileSplit(self._path, self._offset)


def _parquet(path: str) -> Iterator[pa.RecordBatch]:
    with reading(path, "Parquet"), pq.ParquetFile(path) as file:
        yield from file.iter_batches(1 << 16)


def _after(offset: int, batches: Iterator[pa.RecordBatch | None]) -> Iterator[Block | Columns]:
    """The batches from that number on; in place of what is not one to be given out, no records.

    Those without rows, which Arrow makes of blank lines, have no number: a reader counts what it
    has given out.
    """
    for batch in batches:
        if batch is None or not batch.num_rows:
            yield Block(())
        elif offset:
            offset -= 1
            yield Block(())
        else:
            yield Columns(batch)
