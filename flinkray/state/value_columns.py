"""Columns of many values, which are sorted, divided and encoded without a call per value.

A column is made from a few thousand values at once, while holding the interpreter's lock. Further
operations are done by Arrow and NumPy, which let other threads run. Texts, bytes and numbers are
arrays. Tuples are a column for each part. All other values are an array of objects.

Texts and bytes are stored as their lengths and all their bytes; each length has as few bytes as the
longest text needs. Each integer has as many bytes as the largest integer needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels import snapshots
from flinkray.kernels.snapshots import Plain

Order = npt.NDArray[np.intp]

_ARRAYS: dict[type, pa.DataType] = {
    str: pa.large_string(),
    bytes: pa.large_binary(),
    int: pa.int64(),
    float: pa.float64(),
}
_MOST_NESTED = 4
"""Number of levels of nested tuples that are divided into columns."""


class ValueColumn(ABC):
    """Base class of columns: many values of state, to be sorted, divided and encoded together."""

    @property
    @abstractmethod
    def shape(self) -> Hashable:
        """A value that two columns have in common if, and only if, they can be concatenated."""

    has_objects = False
    """Whether the column has values that may be mutable."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, order: Order) -> ValueColumn:
        """Return a column of the values at the indices *order*, in this order."""

    @abstractmethod
    def slice(self, begin: int, end: int) -> ValueColumn:
        """Return a part of the column, which shares memory with the whole."""


class ArrayColumn(ValueColumn):
    """A column of texts, bytes, integers or floating-point numbers, without nulls.
    *arrays*: one or several arrays of one type, one after another."""

    def __init__(self, *arrays: pa.Array) -> None:
        self.arrays = arrays

    @property
    def array(self) -> pa.Array:
        """The column as one array."""
        if len(self.arrays) > 1:
            self.arrays = (pa.concat_arrays(self.arrays),)
        return self.arrays[0]

    @property
    def shape(self) -> Hashable:
        kind: Hashable = self.arrays[0].type
        return kind

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    def take(self, order: Order) -> ArrayColumn:
        return ArrayColumn(self.array.take(pa.array(order)))

    def slice(self, begin: int, end: int) -> ArrayColumn:
        return ArrayColumn(self.array.slice(begin, end - begin))


class EncodedColumn(ValueColumn):
    """A range of an :class:`ArrayColumn` in its stored form, which was encoded as a whole."""

    def __init__(self, array: EncodedArray, begin: int, end: int) -> None:
        self._array = array
        self._begin = begin
        self._end = end

    @property
    def shape(self) -> Hashable:
        raise TypeError("it is divided, and not put together")

    def __len__(self) -> int:
        return self._end - self._begin

    def take(self, order: Order) -> ValueColumn:
        raise TypeError("it is in order")

    def slice(self, begin: int, end: int) -> EncodedColumn:
        return EncodedColumn(self._array, self._begin + begin, self._begin + end)

    def stored(self) -> Encoded:
        return self._array.part(self._begin, self._end)


class TupleColumn(ValueColumn):
    """A column of tuples of one length, which has a column for each part."""

    def __init__(self, number: int, parts: Sequence[ValueColumn]) -> None:
        self._number = number
        self.parts = parts
        self.has_objects = any(part.has_objects for part in parts)

    @property
    def shape(self) -> Hashable:
        return tuple(part.shape for part in self.parts)

    def __len__(self) -> int:
        return self._number

    def take(self, order: Order) -> TupleColumn:
        return TupleColumn(len(order), [part.take(order) for part in self.parts])

    def slice(self, begin: int, end: int) -> TupleColumn:
        return TupleColumn(end - begin, [part.slice(begin, end) for part in self.parts])


class ObjectColumn(ValueColumn):
    """A column of values of any types, as an array of objects."""

    has_objects = True

    def __init__(self, objects: npt.NDArray[Any]) -> None:
        self.objects = objects

    @property
    def shape(self) -> Hashable:
        return None

    def __len__(self) -> int:
        return len(self.objects)

    def take(self, order: Order) -> ObjectColumn:
        return ObjectColumn(self.objects[order])

    def slice(self, begin: int, end: int) -> ObjectColumn:
        return ObjectColumn(self.objects[begin:end])


def column_of(values: Sequence[Any] | ValueColumn, depth: int = 0) -> ValueColumn:
    """Return a column of the values, or *values* if it is one.
    Give only some thousand values, since other threads wait during the call (0.1 us for a text)."""
    if isinstance(values, ValueColumn):
        return values
    plain = snapshots.columns_of(values, _MOST_NESTED - depth)
    if plain is not None:
        return _plain_column(plain, len(values))
    kinds = set(map(type, values))
    if len(kinds) == 1:
        (kind,) = kinds
        array = _array_of(kind, values)
        if array is not None:
            return ArrayColumn(array)
        if kind is tuple and depth < _MOST_NESTED and len(set(map(len, values))) == 1:
            parts = [column_of(part, depth + 1) for part in zip(*values, strict=True)]
            return TupleColumn(len(values), parts)
    return ObjectColumn(np.fromiter(values, object, len(values)))


def columns_of_entries(
    entries: dict[Any, Any], number: int
) -> Iterator[tuple[ValueColumn, ValueColumn]]:
    """Yield columns of the keys and of the values of a dictionary, *number* entries at a time, up
    to the first ones that are not all plain (texts, bytes, numbers, and tuples of these).
    The dictionary must not change meanwhile; other threads wait for each portion."""
    for rows, keys, values in snapshots.columns_of_entries(entries, number, _MOST_NESTED):
        yield _plain_column(keys, rows), _plain_column(values, rows)


def _plain_column(plain: Plain, number: int) -> ValueColumn:
    if isinstance(plain, tuple):
        return TupleColumn(number, [_plain_column(part, number) for part in plain])
    return ArrayColumn(plain)


def _array_of(kind: type, values: Sequence[Any]) -> pa.Array | None:
    arrow = _ARRAYS.get(kind)
    if arrow is None:
        return None
    try:
        return pa.array(values, arrow)
    except (UnicodeEncodeError, OverflowError, pa.ArrowInvalid):  # nothing that Arrow has
        return None


def concatenated(columns: Sequence[ValueColumn]) -> ValueColumn:
    first = columns[0]
    if len(columns) == 1:
        return first
    if isinstance(first, ArrayColumn):
        return ArrayColumn(*chain.from_iterable(column.arrays for column in columns))  # type: ignore[attr-defined]
    if isinstance(first, TupleColumn):
        parts = zip(*(column.parts for column in columns), strict=True)  # type: ignore[attr-defined]
        return TupleColumn(sum(map(len, columns)), list(map(concatenated, parts)))
    return ObjectColumn(np.concatenate([column.objects for column in columns]))  # type: ignore[attr-defined]


def divisible(column: ValueColumn) -> ValueColumn:
    """Return a column with the same values, of which slices can be written to storage one by one.
    Arrays, also those within tuples, become an :class:`EncodedColumn`."""
    if isinstance(column, ArrayColumn):
        return EncodedColumn(EncodedArray(column.array), 0, len(column))
    if isinstance(column, TupleColumn):
        return TupleColumn(len(column), list(map(divisible, column.parts)))
    return column


def values_of(column: ValueColumn) -> list[Any]:
    if isinstance(column, ArrayColumn):
        values: list[Any] = column.array.to_pylist()
        return values
    if isinstance(column, TupleColumn):
        if not column.parts:
            return [()] * len(column)
        return list(zip(*map(values_of, column.parts), strict=True))
    assert isinstance(column, ObjectColumn)
    objects: list[Any] = column.objects.tolist()
    return objects


_TEXTS, _BYTES, _NUMBERS = "texts", "bytes", "numbers"
_WHOLE = ("<i1", "<i2", "<i4", "<i8")
_LENGTHS = ("<u1", "<u2", "<u4")
_KINDS = frozenset({*_WHOLE, "<f8"})

Encoded = tuple[str, str, bytes | memoryview, bytes | memoryview]
"""Parts of an encoded column. (kind of the values, NumPy type of the numbers or text lengths, these
numbers, bytes of the texts)."""


class EncodedArray:
    """A whole column of texts, bytes or numbers in encoded form, of which ranges are written one by
    one.
    The Arrow type is ``large_string``, ``large_binary``, ``int64`` or ``float64``, without nulls.
    NumPy encodes the whole column at once, because each call releases the interpreter's lock."""

    def __init__(self, array: pa.Array) -> None:
        kind = array.type
        self._letters: memoryview | None = None
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            self._what = _TEXTS if pa.types.is_large_string(kind) else _BYTES
            _, ends, letters = array.buffers()
            offsets = np.frombuffer(ends, np.int64)
            self._offsets = offsets[array.offset : array.offset + len(array) + 1]
            self._letters = memoryview(b"" if letters is None else letters)
            self._numbers = _narrow(np.diff(self._offsets), _LENGTHS)
        else:
            self._what = _NUMBERS
            numbers = array.to_numpy()
            self._numbers = _narrow(numbers, _WHOLE) if pa.types.is_integer(kind) else numbers
        kind_of_numbers: str = self._numbers.dtype.str
        self._kind = "<" + kind_of_numbers[1:]  # NumPy writes "|" if there is no byte order

    def __len__(self) -> int:
        return len(self._numbers)

    def part(self, begin: int, end: int) -> Encoded:
        """Return a range of the column; its numbers and letters share memory with the column."""
        letters: bytes | memoryview = b""
        if self._letters is not None:
            letters = self._letters[int(self._offsets[begin]) : int(self._offsets[end])]
        return self._what, self._kind, self._numbers[begin:end].view(np.uint8).data, letters


def _narrow(numbers: npt.NDArray[np.int64], kinds: tuple[str, ...]) -> npt.NDArray[Any]:
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    for kind in kinds:
        info = np.iinfo(kind)
        if info.min <= low and high <= info.max:
            return numbers.astype(kind)
    raise AssertionError(kinds)


def decode_array(what: str, kind: str, numbers: bytes, letters: bytes) -> list[Any]:
    """Return the values of a column that was stored as an :class:`EncodedArray`.
    The arguments are the parts of the encoded column (:data:`Encoded`).
    Raises ValueError or TypeError if the arguments are not the parts of an encoded column."""
    if what == _NUMBERS:
        if kind not in _KINDS:
            raise ValueError(f"there are no numbers of type {kind}")
        values: list[Any] = np.frombuffer(numbers, kind).tolist()
        return values
    if what not in (_TEXTS, _BYTES) or kind not in _LENGTHS:
        raise ValueError(f"there are no {what} with lengths of type {kind}")
    lengths = np.frombuffer(numbers, kind)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] != len(letters):
        raise ValueError(f"{offsets[-1]} bytes of {what} are said to be {len(letters)}")
    arrow = pa.large_string() if what == _TEXTS else pa.large_binary()
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(letters)]
    found: list[Any] = pa.Array.from_buffers(arrow, len(lengths), buffers).to_pylist()
    return found
