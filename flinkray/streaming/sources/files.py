"""Sources of files and directories (text, CSV, JSON lines, Parquet), read once or watched."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple

import pyarrow as pa

from flinkray.core.arguments import first_twice, path_of
from flinkray.core.clock import Clock
from flinkray.core.durations import Duration, Time, milliseconds
from flinkray.streaming.errors import FileNotReadyError, StreamError
from flinkray.streaming.records.elements import Block, Columns, Origin
from flinkray.streaming.records.json_text import parse_json
from flinkray.streaming.records.typeinfo import TypeInformation
from flinkray.streaming.sources.csv_files import (
    Classes,
    CsvOptions,
    csv_schema,
    find_classes,
    read_csv,
)
from flinkray.streaming.sources.file_input import (
    Reading,
    check_encoding,
    compression_of,
    misread,
    open_text,
    shown,
)
from flinkray.streaming.sources.parquet_files import add_columns, parquet_schema, read_parquet
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SourceReader,
    SplitEnumerator,
    T,
    U,
)

logger = logging.getLogger(__name__)


class FileSplit(NamedTuple):
    """A file to read. *offset*: number of its lines (text, JSON) or non-empty batches (CSV,
    Parquet) that were read already."""

    path: str
    offset: int
    schema: bytes = b""
    """The columns of the source, as a serialized Arrow schema.
    Empty for formats without columns, and before the split is assigned."""


class RecordFormat(ABC):
    """Reads files in one format; base class of formats of users.
    Several readers use the instance, also in other processes."""

    type_info: TypeInformation | None = None
    """Type of the records."""

    @abstractmethod
    def read(self, path: str) -> Generator[Any, None, None]:
        """Yield the records of a file. The file is closed with the generator."""


@dataclass(frozen=True)
class StreamFormat(Generic[T]):
    """Format for reading files record by record of type T."""

    file_format: str | RecordFormat
    encoding: str | None = None
    """Character set of text files. A byte order mark in a file overrides it."""

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat[str]:
        """Return the format that gives a string for each line."""
        return StreamFormat("text", check_encoding(charset_name))


FORMATS = ("text", "csv", "json", "parquet")
_OF_ALL = "flinkray.found-from-all"
"""Key in the metadata of a schema: all fields of all files were examined."""
_OF_COLUMNS = ("csv", "parquet")
"""Formats whose files have a schema."""

_OF_PATHS = "; several are given one by one, and a format is given as file_format="


class FileSource(Source[T, FileSplit]):
    """Reads files.

    Text gives strings without the line end, JSON lines give parsed values, CSV and Parquet give
    batches of columns. Hidden files (names that begin with ``.`` or ``_``) are skipped. Files are
    decompressed if their names end with ``.gz``, ``.gzip``, ``.bz2``, ``.lz4``, ``.zst``, ``.zstd``
    or ``.xz``. A user's RecordFormat opens its files itself.

    All files share one schema. It has the columns of all files, in the order in which they first
    appear. A column that a file lacks is null in its rows. Types of CSV files are found from all
    fields before the first file is read. Types of Parquet files are widened until they hold all
    values. Data that does not fit later fails the job: a field beyond *sample_size*, or a file that
    appears later.

    Args:
        paths: files and directories. Directories are searched recursively, also through links, and
            each is read once. A directory that cannot be listed is an error.
        file_format: ``text``, ``csv``, ``json``, ``parquet``, or a RecordFormat.
        discovery_interval: how often to look for new files, without end. None: read files once.
        column_names: column names of CSV files that begin with a record, as those of a FileSink do.
            None: the first line of each file has the names.
        column_types: types of columns of CSV and Parquet files that are not to be found from the
            files, from ``Types`` or Arrow.
        encoding: encoding of text, CSV and JSON files without a byte order mark. None: UTF-8.
        sample_size: decompressed bytes of CSV files from which types are found. If the files are
            larger, the beginning of each is examined. None: all bytes.
    """

    def __init__(
        self,
        *paths: str | Path,
        file_format: str | RecordFormat = "text",
        discovery_interval: Duration | Time | int | None = None,
        column_names: Sequence[str] | None = None,
        column_types: Mapping[str, TypeInformation | pa.DataType] | None = None,
        encoding: str | None = None,
        sample_size: int | None = 64 << 20,
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
        if column_names is not None:
            if file_format != "csv":
                raise StreamError(f"column names are of CSV files, not of {file_format}")
            _check_names(column_names)
        if column_types is not None and file_format not in _OF_COLUMNS:
            raise StreamError(f"column types are of CSV and Parquet files, not of {file_format}")
        if encoding is not None:
            if file_format not in ("text", "csv", "json"):
                raise StreamError(f"an encoding is of text, CSV and JSON, not of {file_format}")
            check_encoding(encoding)
        if file_format == "text":
            _refuse_formats_in(paths[1:])
        self._paths = [path_of(path, "a FileSource", _OF_PATHS) for path in paths]
        self._format = file_format
        self._interval = None if discovery_interval is None else milliseconds(discovery_interval)
        self._sample_size = sample_size
        self._options = CsvOptions(
            None if column_names is None else tuple(column_names),
            encoding,
            {name: _arrow_type(name, kind) for name, kind in (column_types or {}).items()},
        )
        self.waits_for_splits = self._interval is None

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._interval is None else Boundedness.CONTINUOUS_UNBOUNDED

    def get_produced_type(self) -> TypeInformation | None:
        return self._format.type_info if isinstance(self._format, RecordFormat) else None

    def create_enumerator(
        self, context: EnumeratorContext[FileSplit], clock: Clock
    ) -> SplitEnumerator[FileSplit]:
        find_schema = self._find_schema if self._format in _OF_COLUMNS else None
        return FileEnumerator(context, self._paths, self._interval, clock, find_schema)

    def _find_schema(self, paths: Sequence[str]) -> bytes:
        """Return the serialized schema of the files. Empty: the files have no columns."""
        is_of_all = False
        if self._format == "csv":
            schema, is_of_all = _csv_schema(paths, self._options, self._sample_size)
        else:
            schema = _parquet_schema(paths, self._options.column_types)
        if not schema.names:
            return b""
        declared = self._options.column_types.items()
        missing = [pa.field(name, kind) for name, kind in declared if name not in schema.names]
        # In a watched directory, files may be added later.
        notes = {_OF_ALL: ""} if is_of_all and self._interval is None else None
        return bytes(pa.schema([*schema, *missing], notes).serialize())

    def create_reader(self, context: ReaderContext) -> SourceReader[FileSplit]:
        return _FileReader(context, self._format, self._options, self._find_schema)

    @staticmethod
    def for_record_stream_format(
        stream_format: StreamFormat[U], *paths: str
    ) -> FileSourceBuilder[U]:
        """Return the builder of a source that reads *paths* in that format."""
        return FileSourceBuilder(stream_format.file_format, paths, encoding=stream_format.encoding)


@dataclass(frozen=True)
class FileEnumeratorProvider:
    """Says how files are divided into splits.
    Here a split is always a whole file, so the value has no effect on the results."""

    splittable: bool

    @staticmethod
    def default_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Return the kind of enumerator that divides large files in Flink; here a split is a whole
        file."""
        return FileEnumeratorProvider(splittable=True)

    @staticmethod
    def default_non_splittable_file_enumerator() -> FileEnumeratorProvider:
        """Return the kind of enumerator that makes one split of each file."""
        return FileEnumeratorProvider(splittable=False)


@dataclass(frozen=True)
class FileSplitAssignerProvider:
    """Says which split a subtask gets next.
    Here it is always the next split, because files are equally far from all subtasks."""

    @staticmethod
    def locality_aware_split_assigner() -> FileSplitAssignerProvider:
        """Return the only assigner that Flink has."""
        return FileSplitAssignerProvider()


@dataclass
class FileSourceBuilder(Generic[T]):
    """Builder of a :class:`FileSource`."""

    file_format: str | RecordFormat
    paths: tuple[str, ...]
    interval: Duration | None = None
    encoding: str | None = None

    def monitor_continuously(self, discovery_interval: Duration) -> FileSourceBuilder[T]:
        """Look for new files at this interval, without end."""
        self.interval = discovery_interval
        return self

    def process_static_file_set(self) -> FileSourceBuilder[T]:
        """Read the files that exist at the start (the default)."""
        self.interval = None
        return self

    def set_file_enumerator(self, file_enumerator: FileEnumeratorProvider) -> FileSourceBuilder[T]:
        """Accept a setting that does not change the results (:class:`FileEnumeratorProvider`)."""
        return self

    def set_split_assigner(self, split_assigner: FileSplitAssignerProvider) -> FileSourceBuilder[T]:
        """Accept a setting that does not change the results.
        See :class:`FileSplitAssignerProvider`."""
        return self

    def build(self) -> FileSource[T]:
        """Build the source."""
        return FileSource(
            *self.paths,
            file_format=self.file_format,
            discovery_interval=self.interval,
            encoding=self.encoding,
        )


def _check_names(column_names: Sequence[str]) -> None:
    if isinstance(column_names, str):
        raise TypeError(f"column_names is a list of texts, got {column_names!r}")
    twice = first_twice(column_names)
    if twice is not None:
        raise StreamError(f"two columns cannot have one name, got {twice!r} in column_names")


def _arrow_type(name: str, kind: TypeInformation | pa.DataType) -> pa.DataType:
    arrow = kind.to_arrow() if isinstance(kind, TypeInformation) else kind
    if not isinstance(arrow, pa.DataType):
        raise TypeError(
            f"column_types has a type for each name, such as Types.STRING(), got {kind!r} for "
            f"{name!r}"
        )
    return arrow


_MOST_SAMPLED = 4096
"""Most files whose beginnings are examined, if the files have more than *sample_size* bytes."""
_LEAST_SAMPLE = 1 << 16
"""Least bytes to examine per file."""


_PACKED = 8
"""Assumed ratio of decompressed to compressed size."""


def _csv_schema(
    paths: Sequence[str], options: CsvOptions, most: int | None
) -> tuple[pa.Schema, bool]:
    """Find the schema of CSV files.
    All files are read, or, if they have more than *most* bytes, the beginnings of evenly spaced
    files. Returns the schema, and whether all fields were examined."""
    found: dict[str, Classes] = {}
    limit = None if most is None else _limit([_size(path) for path in paths], most)
    step = 1 if limit is None else -(-len(paths) // _MOST_SAMPLED)
    is_of_all = step == 1
    for path in paths[::step]:
        is_whole = limit is None or (_size(path) <= limit and not compression_of(path))
        find_classes(path, options, found, None if is_whole else limit)
        is_of_all &= is_whole
    return csv_schema(found, options), is_of_all


def _size(path: str) -> int:
    """Return the size of a file in bytes when it is decompressed, as an estimate."""
    size = os.path.getsize(path)
    return size * _PACKED if compression_of(path) else size


def _limit(sizes: Sequence[int], most: int) -> int:
    """Return the most bytes to examine of each file, so that all files (of *sizes* bytes) together
    have about *most* bytes."""
    left, number = most, len(sizes)
    for size in sorted(sizes):
        if size * number > left:
            return max(left // number, _LEAST_SAMPLE)
        left -= size
        number -= 1
    return most


def _parquet_schema(paths: Sequence[str], declared: Mapping[str, pa.DataType]) -> pa.Schema:
    schema = pa.schema([])
    for path in paths:
        schema = add_columns(schema, parquet_schema(path), path, declared)
    return schema


def _refuse_formats_in(paths: Sequence[object]) -> None:
    """Refuse a format name that was given in place of a path.
    Raises StreamError: *paths* has the name of a format."""
    for path in paths:
        if isinstance(path, str) and path.lower() in FORMATS:
            raise StreamError(
                f"FileSource takes paths without names, and {path!r} in their place looks like "
                f"the format: give file_format={path.lower()!r}, or './{path}' for a file or "
                "directory of that name"
            )


def find_files(paths: Sequence[str]) -> list[str]:
    """Return all files below *paths*, sorted by name within each path.
    Raises FileNotReadyError: a path does not exist. OSError: a directory cannot be listed."""
    found: list[str] = []
    for text in paths:
        path = Path(text)
        if path.is_dir():
            found += map(str, sorted(_files_below(text)))
        elif path.exists():
            found.append(str(path))
        else:
            raise FileNotReadyError(f"there is no file or directory {text}")
    return found


def _files_below(directory: str) -> Iterator[Path]:
    """Yield the files below a directory that are not hidden.
    Directories behind links come after the others, and by their own paths. So a file has one path,
    whatever links lead to its directory, and is not read again because of another link."""
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
    """Hands out a split for each file. With *interval*, looks for new files again and again."""

    def __init__(
        self,
        context: EnumeratorContext[FileSplit],
        paths: Sequence[str],
        interval: int | None,
        clock: Clock,
        find_schema: Callable[[Sequence[str]], bytes] | None,
    ) -> None:
        super().__init__(context, [])
        self._find_schema = find_schema
        self._schema = b""
        """Serialized schema of all files, later ones included. Empty: not found yet."""
        self._paths = paths
        self._interval = interval
        self._clock = clock
        self._seen: dict[str, None] = {}
        self._waiting: dict[int, None] = {}
        self._next = 0.0
        self._has_begun = False
        self._knows_all = interval is None

    def start(self) -> None:
        self._search(self._found_again() if self._has_begun else find_files(self._paths))
        self._has_begun = True

    def _found_again(self) -> list[str]:
        """Return the files that exist now, or an empty list (with a warning) if the search fails.
        A running job does not fail because of a missing directory."""
        try:
            return find_files(self._paths)
        except (StreamError, OSError) as error:
            logger.warning("no new files are looked for this time: %s", error)
            return []

    def _search(self, found: Sequence[str]) -> None:
        for path in found:
            if path not in self._seen:
                self._seen[path] = None
                self._remaining.append(FileSplit(path, 0))
        if self._find_schema is not None and self._seen and not self._schema:
            self._schema = self._find_schema(list(filter(os.path.exists, self._seen)))
        self._remaining = [split._replace(schema=self._schema) for split in self._remaining]
        if self._interval is not None:
            self._next = self._clock.time() + self._interval / 1000

    def next_discovery_time(self) -> float | None:
        return None if self._interval is None else self._next

    def discover(self) -> None:
        self._search(self._found_again())
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
        remaining = [split._replace(schema=b"") for split in self._remaining]
        return list(self._seen), remaining, self._schema

    def restore(self, checkpoint: Any) -> None:
        seen, remaining, *schema = checkpoint  # versions before 0.2 stored no schema
        self._seen = dict.fromkeys(seen)
        self._schema = schema[0] if schema else b""
        self._remaining = list(remaining)
        self._has_begun = True


class _FileReader(SequentialReader[FileSplit]):
    def __init__(
        self,
        context: ReaderContext,
        file_format: str | RecordFormat,
        options: CsvOptions,
        find_schema: Callable[[Sequence[str]], bytes],
    ) -> None:
        super().__init__(context)
        self._format = file_format
        self._options = options
        self._find_schema = find_schema
        self._batches: Iterator[Block | Columns] = iter(())
        self._path = ""
        self._schema = b""
        self._offset = self._read_on = 0

    def open_split(self, split: FileSplit) -> None:
        self._path, self._offset, self._schema = split
        if isinstance(self._format, RecordFormat):
            self._batches = self._read_records(self._format, split)
        elif self._format in ("text", "json"):
            self._batches = self._read_lines(split)
        else:
            self._batches = _after(split.offset, self._read_columns(split))

    def _read_columns(self, split: FileSplit) -> Iterator[pa.RecordBatch]:
        # A split from a checkpoint of an earlier version has no schema.
        found = split.schema or self._find_schema([split.path])
        if not found:
            return
        schema, options = pa.ipc.read_schema(pa.py_buffer(found)), self._options
        is_of_all = _OF_ALL.encode() in (schema.metadata or {})
        schema = schema.remove_metadata()
        if self._format == "csv":
            yield from read_csv(split.path, schema, options, is_of_all)
        else:
            yield from read_parquet(split.path, schema, options.column_types)

    def _read_records(self, records: RecordFormat, split: FileSplit) -> Iterator[Block | Columns]:
        with closing(records.read(split.path)) as iterator:
            number = 0
            while values := list(islice(iterator, self._lines_per_block)):
                kept = values[max(0, split.offset - number) :]
                number += len(values)
                self._read_on = number
                yield Block(kept)

    def _read_lines(self, split: FileSplit) -> Iterator[Block | Columns]:
        is_json, encoding = self._format == "json", self._options.encoding
        with Reading(split.path, "text", encoding), open_text(split.path, encoding) as file:
            lines: list[Any] = []
            for number, line in enumerate(file):
                if number < split.offset:
                    continue
                self._read_on = number + 1
                text = line.rstrip("\r\n")
                if not is_json:
                    lines.append(text)
                elif text.strip():
                    try:
                        lines.append(parse_json(text))
                    except (ValueError, RecursionError) as error:
                        raise misread(split.path, encoding, number + 1)(
                            f"{shown(split.path)}, line {number + 1}, is no JSON: {error}"
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
            batch.origin = Origin(shown(self._path), self._offset)
            self._offset = self._read_on if isinstance(batch, Block) else self._offset + 1
        return batch

    def remaining(self) -> FileSplit:
        return FileSplit(self._path, self._offset, self._schema)


def _after(offset: int, batches: Iterator[pa.RecordBatch]) -> Iterator[Block | Columns]:
    """Yield the batches from number *offset* on; empty batches have no number.
    An empty block is yielded in place of each earlier batch and of each empty one."""
    for batch in batches:
        if not batch.num_rows:
            yield Block(())
        elif offset:
            offset -= 1
            yield Block(())
        else:
            yield Columns(batch)
