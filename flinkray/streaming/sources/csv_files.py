"""CSV files whose columns' types are found from all of their values, without holding the file.

Arrow finds types in a file's first block, and fails where a later one has other values.  A file of
more than one block is therefore gone through twice.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import pyarrow as pa
import pyarrow.csv as pa_csv

from flinkray.streaming.errors import StreamError
from flinkray.streaming.sources.file_input import bytes_up_to, reading

_BLOCK = 1 << 20
"""Bytes; Arrow's own.  Offsets of splits count batches of this size."""

_LARGEST_BLOCK = 64 << 20
"""Bytes.  Several are in memory at a time, and a quote that is not closed takes all of a file."""

_PARSE = pa_csv.ParseOptions(newlines_in_values=True)


_TOO_SMALL = ("straddles two block boundaries", "Empty CSV file or block")
"""What Arrow says of a row that does not fit into a block, and of a first block without a row."""


def read_csv(path: str, column_names: Sequence[str] | None) -> Iterator[pa.RecordBatch | None]:
    """The rows; None: more will come, and other work may be done in between.

    Args:
        column_names: of a file that begins with a record; None: its first line has the names.

    Raises:
        StreamError: the file is no CSV.
    """
    with reading(path, "CSV"):
        size = bytes_up_to(path, _BLOCK + 1)
        if not size:
            return
        block, schema = _BLOCK, None
        if size > _BLOCK:
            block, schema = yield from _block_and_schema_of(path, column_names)
        with _open(path, _options(column_names, block), schema) as reader:
            yield from reader


def _options(column_names: Sequence[str] | None, block: int) -> pa_csv.ReadOptions:
    return pa_csv.ReadOptions(column_names=column_names, block_size=block)


def _block_and_schema_of(
    path: str, column_names: Sequence[str] | None
) -> Generator[None, None, tuple[int, pa.Schema]]:
    """The size of blocks that the longest row fits into, and the columns' types."""
    block = _BLOCK
    while True:
        try:
            schema = yield from _schema_of(path, _options(column_names, block))
            return block, schema
        except pa.ArrowInvalid as error:
            if not any(text in str(error) for text in _TOO_SMALL):
                raise
            if block >= _LARGEST_BLOCK:
                raise StreamError(
                    f"{path} cannot be read as CSV: it has a row of more than {block} bytes, a "
                    "quote that is not closed, or as many blank lines before the first row"
                ) from error
            block *= 4


def _open(
    path: str, options: pa_csv.ReadOptions, schema: pa.Schema | None
) -> pa_csv.CSVStreamingReader:
    types = pa_csv.ConvertOptions(column_types=schema)
    return pa_csv.open_csv(path, options, _PARSE, types)


def _schema_of(path: str, options: pa_csv.ReadOptions) -> Generator[None, None, pa.Schema]:
    with _open(path, options, None) as reader:
        schema = reader.schema
        try:
            for _ in reader:
                yield None
            return schema
        except pa.ArrowInvalid:
            pass  # a value that is not of its column's type, if it is not worse
    texts = pa.schema([(name, pa.string()) for name in schema.names])
    with _open(path, options, texts) as reader:
        for batch in reader:
            schema = _wider(schema, _found_in(batch))
            yield None
    return schema


def _found_in(batch: pa.RecordBatch) -> pa.Schema:
    """The types that Arrow finds in values by themselves."""
    text = pa.BufferOutputStream()
    pa_csv.write_csv(batch, text)
    values = text.getvalue()
    in_one = pa_csv.ReadOptions(block_size=values.size)
    return pa_csv.read_csv(values, in_one, _PARSE).schema


def _wider(one: pa.Schema, other: pa.Schema) -> pa.Schema:
    return pa.schema(
        [(a.name, _wider_type(a.type, b.type)) for a, b in zip(one, other, strict=True)]
    )


def _wider_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """As Arrow goes on when a value is not of the type that it has tried."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    kinds = {one, other}
    if kinds == {pa.int64(), pa.float64()}:
        return pa.float64()
    times = [pa.date32(), pa.timestamp("s"), pa.timestamp("ns")]
    if kinds <= set(times):
        return max(kinds, key=times.index)
    return pa.string()
