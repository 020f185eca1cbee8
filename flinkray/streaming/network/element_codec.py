"""Elements as bytes: the content of a buffer that is sent to another process.

Every element has a description (a small tuple in the frame's header) and data (in the frame's
body). Arrow batches are Arrow's own messages: the writer does not copy their memory, and the reader
uses them where they were received. Python values are pickled one block at a time, with large
buffers out of band. The reader copies those buffers that are mutable, such as NumPy arrays. Batches
with dictionaries carry the dictionaries each time.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flinkray.core import cloud_pickle
from flinkray.core.error_text import summary_of
from flinkray.streaming.errors import UnreadableRecordsError, unpicklable
from flinkray.streaming.network.errors import BatchTooLargeError, WireFormatError
from flinkray.streaming.network.frames import MAX_BODY, Part, padding
from flinkray.streaming.records.elements import (
    ACTIVE,
    END_OF_DATA,
    END_OF_INPUT,
    IDLE,
    Barrier,
    Block,
    CancelledBarrier,
    Columns,
    Element,
    EndOfData,
    EndOfInput,
    Origin,
    Watermark,
    WatermarkStatus,
)
from flinkray.streaming.records.in_flight import EncodedElements
from flinkray.streaming.records.row import Row, pack_rows, unpack_rows

# The first item of a description is one of these kinds.
_SCHEMA: Final = 0
_COLUMNS: Final = 1
_COLUMNS_WITH_DICTIONARIES: Final = 2
_BLOCK: Final = 3
_ROWS: Final = 4
_WATERMARK: Final = 5
_STATUS: Final = 6
_BARRIER: Final = 7
_END: Final = 8
_CANCELLED_BARRIER: Final = 9
_END_OF_DATA: Final = 10

SCATTER_FROM: Final = 131_072
"""Bytes. A smaller Arrow batch is copied into one piece. That costs less than many pieces, because
Arrow calls Python for each piece."""


Description = tuple[Any, ...]


class Encoded:
    """Encoded elements: a description of each, and their data, a multiple of 8 bytes."""

    __slots__ = ("descriptions", "parts", "records", "size")

    def __init__(self) -> None:
        self.descriptions: list[Description] = []
        self.parts: list[Part] = []
        self.size = 0
        self.records = 0

    def add(self, part: Part) -> int:
        """Append data and its padding. Return the size in bytes without padding."""
        count = part.nbytes if type(part) is memoryview else len(part)
        self.parts.append(part)
        if count & 7:
            self.parts.append(padding(count))
        self.size += count + (-count & 7)
        return count


class _PartList:
    """A file for pyarrow that keeps the written parts without copying them."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.size = 0

    def write(self, data: bytes | pa.Buffer) -> int:
        count = len(data)
        if count:
            self.parts.append(data if isinstance(data, bytes) else memoryview(data))
            self.size += count
        return count

    def flush(self) -> None:
        """Do nothing: written parts are kept at once (pyarrow calls this)."""

    def close(self) -> None:
        """Do nothing: the parts are only in memory (pyarrow calls this)."""

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


class ElementEncoder:
    """Encodes the elements of one partition. Not thread-safe."""

    def __init__(self) -> None:
        self.writer = "", ""
        """Operator and subtask that emit the encoded elements, for errors."""
        self._schemas: list[pa.Schema] = []
        self._has_dictionaries: list[bool] = []
        self._writers: list[tuple[_PartList, Any]] = []
        self._needs_cloudpickle = False

    def encode(self, elements: Sequence[Element], known_schemas: set[int]) -> Encoded:
        """Return the encoded elements of one subpartition. *known_schemas*: numbers of the schemas
        that the receiver has; schemas that the receiver needs are sent along and added. Raises
        UnpicklableRecordsError, and BatchTooLargeError if a frame cannot hold the data."""
        encoded = Encoded()
        for element in elements:
            kind = type(element)
            if kind is Columns:
                self._columns(encoded, element, known_schemas)  # type: ignore[arg-type]
            elif kind is Block:
                self._block(encoded, element)  # type: ignore[arg-type]
            else:
                encoded.descriptions.append(_describe_sign(element))
        if encoded.size > MAX_BODY:
            raise BatchTooLargeError(
                f"{encoded.records} records take {encoded.size} bytes, and at most {MAX_BODY} can "
                "be sent together: emit smaller records or batches"
            )
        return encoded

    def decoder(self) -> ElementDecoder:
        return ElementDecoder(self._schemas)

    def schema(self, number: int) -> pa.Schema:
        return self._schemas[number]

    def _columns(self, encoded: Encoded, columns: Columns, known_schemas: set[int]) -> None:
        batch = columns.batch
        schema = batch.schema
        for number, known in enumerate(self._schemas):
            if known.equals(schema, check_metadata=True):
                schema_id = number
                break
        else:
            schema_id = self._add_schema(schema)
        times = columns.timestamps
        if self._has_dictionaries[schema_id]:
            kind = _COLUMNS_WITH_DICTIONARIES
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, schema) as stream:
                stream.write_batch(batch)
            size = encoded.add(memoryview(sink.getvalue()))
        else:
            kind = _COLUMNS
            if schema_id not in known_schemas:
                known_schemas.add(schema_id)
                data = memoryview(schema.serialize())
                encoded.descriptions.append((_SCHEMA, schema_id, encoded.add(data)))
            if batch.get_total_buffer_size() < SCATTER_FROM:
                size = encoded.add(memoryview(batch.serialize()))
            else:
                taken, writer = self._writers[schema_id]
                writer.write_batch(batch)
                size = taken.size
                encoded.parts += taken.parts
                encoded.size += size
                taken.parts, taken.size = [], 0
        time_size = 0
        if times is not None:
            time_size = encoded.add(np.ascontiguousarray(times).data.cast("B"))
        encoded.records += batch.num_rows
        encoded.descriptions.append(
            (kind, schema_id, size, time_size, times is not None, columns.scalar, columns.origin)
        )

    def _add_schema(self, schema: pa.Schema) -> int:
        self._schemas.append(schema)
        self._has_dictionaries.append(any(_has_dictionary(field.type) for field in schema))
        parts = _PartList()
        writer = pa.ipc.new_stream(pa.PythonFile(parts, mode="w"), schema)
        writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
        parts.parts, parts.size = [], 0  # without the schema (sent separately) and the empty batch
        self._writers.append((parts, writer))
        return len(self._schemas) - 1

    def _block(self, encoded: Encoded, block: Block) -> None:
        values: Any = block.values
        kind = _BLOCK
        if values and type(values[0]) is Row:
            packed = pack_rows(values)
            if packed is not None:
                kind, values = _ROWS, packed
        try:
            data, buffers = self._pickle((values, block.keys))
        except Exception as error:
            raise unpicklable(block.values, error, block.origin, *self.writer) from error
        size = encoded.add(data)
        times = block.timestamps
        time_size = 0 if times is None else encoded.add(array("q", times).tobytes())
        sizes = tuple(
            ~encoded.add(buffer) if buffer.readonly else encoded.add(buffer) for buffer in buffers
        )
        encoded.records += len(block)
        encoded.descriptions.append(
            (kind, size, time_size, times is not None, block.origin, *sizes)
        )

    def _pickle(self, content: object) -> tuple[bytes, list[memoryview]]:
        buffers: list[pickle.PickleBuffer] = []
        if not self._needs_cloudpickle:
            try:
                data = pickle.dumps(content, 5, buffer_callback=buffers.append)
            except (pickle.PicklingError, AttributeError, TypeError):
                # the class is known only in this process, for example a class of the user's main
                # program
                self._needs_cloudpickle = True
                buffers.clear()
        if self._needs_cloudpickle:
            data = cloud_pickle.dumps(content, 5, buffer_callback=buffers.append)
        return data, [buffer.raw() for buffer in buffers]


def _describe_sign(element: Element) -> Description:
    if isinstance(element, Watermark):
        return (_WATERMARK, element.timestamp)
    if isinstance(element, WatermarkStatus):
        return (_STATUS, element.idle)
    if isinstance(element, Barrier):
        return (_BARRIER, *astuple(element))
    if isinstance(element, CancelledBarrier):
        return (_CANCELLED_BARRIER, element.checkpoint_id)
    if isinstance(element, EndOfData):
        return (_END_OF_DATA,)
    if isinstance(element, EndOfInput):
        return (_END,)
    raise TypeError(f"no element of a stream: {element!r}")


def is_event(descriptions: Sequence[Description]) -> bool:
    """Return whether the buffer is a barrier, a cancelled barrier, or the end of data or input."""
    return descriptions[0][0] in (_BARRIER, _CANCELLED_BARRIER, _END_OF_DATA, _END)


def is_end_of_input(descriptions: Sequence[Description]) -> bool:
    """Return whether the buffer is the end of the input, after which nothing follows."""
    return descriptions[0][0] in (_END,)


def barrier_of(descriptions: Sequence[Description]) -> Barrier | None:
    """Return the barrier that a buffer without data holds; None if it holds something else."""
    kind, *fields = descriptions[0]
    return Barrier(*fields) if kind == _BARRIER else None


def schemas_in(descriptions: Sequence[Description], known: set[int]) -> list[int]:
    """Return the numbers of the schemas that a receiver of elements lacks: they are neither sent
    among the elements (*descriptions*) nor in *known*, those that the receiver has. Adds all
    schemas of the elements to *known*."""
    missing: list[int] = []
    for description in descriptions:
        if description[0] == _SCHEMA:
            known.add(description[1])
        elif description[0] == _COLUMNS and description[1] not in known:
            known.add(description[1])
            missing.append(description[1])
    return missing


def with_schemas(
    elements: EncodedElements, numbers: Sequence[int]
) -> tuple[list[Description], list[Any]]:
    """Return (descriptions, data): first the schemas numbered *numbers*, then *elements*."""
    ahead = Encoded()
    for number in numbers:
        data = memoryview(elements.source.schema(number).serialize())
        ahead.descriptions.append((_SCHEMA, number, ahead.add(data)))
    return [*ahead.descriptions, *elements.descriptions], [*ahead.parts, *elements.parts]


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(index).type) for index in range(kind.num_fields))


class ElementDecoder:
    """Decodes the buffers of one channel."""

    def __init__(self, schemas: Sequence[pa.Schema] = ()) -> None:
        """Make a decoder for one channel.
        *schemas*: schemas that the channel does not send; the index is the schema's number."""
        self._schemas: dict[int, pa.Schema] = dict(enumerate(schemas))

    def schema(self, number: int) -> pa.Schema:
        return self._schemas[number]

    def decode(self, descriptions: Sequence[Description], body: pa.Buffer | None) -> list[Element]:
        """Return the elements of one buffer. Raises WireFormatError: the data does not match the
        descriptions. UnreadableRecordsError: the records cannot be unpickled here."""
        elements: list[Element] = []
        at = 0
        try:
            for description in descriptions:
                kind = description[0]
                if kind in (_COLUMNS, _COLUMNS_WITH_DICTIONARIES):
                    columns, at = self._columns(description, body, at)
                    elements.append(columns)
                elif kind in (_BLOCK, _ROWS):
                    block, at = _block(description, body, at)
                    elements.append(block)
                elif kind == _SCHEMA:
                    _, number, size = description
                    self._schemas[number] = pa.ipc.read_schema(_piece(body, at, size))
                    at = _after(at, size)
                else:
                    elements.append(_sign(description))
        except (IndexError, KeyError, TypeError, ValueError, OSError) as error:
            raise WireFormatError(f"a damaged buffer came: {error!r}") from error
        return elements

    def _columns(
        self, description: Description, body: pa.Buffer | None, at: int
    ) -> tuple[Columns, int]:
        kind, schema_id, size, time_size, has_times, scalar, origin = description
        data = body if body is not None and size == body.size else _piece(body, at, size)
        at += size + (-size & 7)
        if kind == _COLUMNS:
            batch = pa.ipc.read_record_batch(data, self._schemas[schema_id])
        else:
            batch = pa.ipc.open_stream(pa.BufferReader(data)).read_next_batch()
        times = None
        if has_times:
            times = np.frombuffer(_piece(body, at, time_size), np.int64)
            at = _after(at, time_size)
        return Columns(batch, times, None if origin is None else Origin(*origin), scalar), at


def _block(description: Description, body: pa.Buffer | None, at: int) -> tuple[Block, int]:
    kind, size, time_size, has_times, origin, *sizes = description
    data = memoryview(_piece(body, at, size))
    at = _after(at, size)
    times = None
    if has_times:
        times = array("q")
        times.frombytes(memoryview(_piece(body, at, time_size)))
        at = _after(at, time_size)
    buffers: list[memoryview | bytearray] = []
    for buffer_size in sizes:
        if buffer_size < 0:  # the buffer was read-only at the sender
            buffer_size = ~buffer_size
            buffers.append(memoryview(_piece(body, at, buffer_size)))
        else:
            buffers.append(bytearray(_piece(body, at, buffer_size)))
        at = _after(at, buffer_size)
    values, keys = _unpickled(data, buffers)
    if kind == _ROWS:
        values = unpack_rows(values)
    return Block(
        values,
        None if times is None else times.tolist(),
        keys,
        None if origin is None else Origin(*origin),
    ), at


def _unpickled(data: memoryview, buffers: list[memoryview | bytearray]) -> Any:
    try:
        return pickle.loads(data, buffers=buffers)
    except Exception as error:
        raise UnreadableRecordsError(summary_of(error)) from error


def _sign(description: Description) -> Element:
    kind = description[0]
    if kind == _WATERMARK:
        return Watermark(description[1])
    if kind == _STATUS:
        return IDLE if description[1] else ACTIVE
    if kind == _BARRIER:
        return Barrier(*description[1:])
    if kind == _CANCELLED_BARRIER:
        return CancelledBarrier(*description[1:])
    if kind == _END_OF_DATA:
        return END_OF_DATA
    if kind == _END:
        return END_OF_INPUT
    raise ValueError(f"unknown element: {description!r}")


def _piece(body: pa.Buffer | None, at: int, size: int) -> pa.Buffer:
    if size < 0 or at + size > (0 if body is None else body.size):
        raise ValueError(f"{size} bytes at {at} are not there")
    return pa.py_buffer(b"") if body is None else body.slice(at, size)


def _after(at: int, size: int) -> int:
    return at + size + (-size & 7)
