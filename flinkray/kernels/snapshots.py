"""Columns of plain Python values for snapshots, and the texts of such columns in another order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels.compiled import native

Plain: TypeAlias = "pa.Array | tuple[Plain, ...]"
"""An array without nulls; of tuples, a column for each part."""

_TEXTS = {"str": pa.large_string(), "bytes": pa.large_binary()}
_NUMBERS = {"int": np.dtype(np.int64), "float": np.dtype(np.float64)}


def columns_of(values: Sequence[Any], depth: int) -> Plain | None:
    """Return a column of *values*: texts, bytes, integers of 64 bits, floating-point numbers, or
    tuples of one length of such values, with at most *depth* levels of tuples. The types are exact:
    None if there are other values or values of several types, no values, or no compiled kernels.
    Other threads wait during the call."""
    found = None if native is None else native.columns_of(values, depth)
    return None if found is None else _plain(found, len(values))


def columns_of_entries(
    entries: dict[Any, Any], number: int, depth: int
) -> Iterator[tuple[int, Plain, Plain]]:
    """Yield (number of entries, column of their keys, column of their values) for each *number*
    entries of a dictionary, up to the first ones of which :func:`columns_of` makes no columns.
    The dictionary must not change meanwhile. Each object is read once: this takes half of the time
    of making lists of keys and of values first."""
    position, begin = 0, 0
    while native is not None and begin < len(entries):
        rows = min(number, len(entries) - begin)
        found = native.columns_of_entries(entries, position, rows, depth)
        if found is None:
            return
        keys, values, position = found
        begin += rows
        yield rows, _plain(keys, rows), _plain(values, rows)


def _plain(found: tuple[Any, ...], rows: int) -> Plain:
    kind, *parts = found
    if kind == "tuple":
        return tuple(_plain(part, rows) for part in parts[0])
    if kind in _NUMBERS:
        return pa.array(np.frombuffer(parts[0], _NUMBERS[kind]))
    return pa.Array.from_buffers(_TEXTS[kind], rows, [None, *map(pa.py_buffer, parts)])


def take_texts(arrays: Sequence[pa.Array], order: npt.NDArray[np.intp]) -> pa.Array:
    """Return the values of *arrays*, joined in this order, at the indices *order*.
    *arrays*: of one type, ``large_string`` or ``large_binary``. Raises IndexError: an index is
    negative or too large."""
    if native is None or any(array.null_count for array in arrays):
        return pa.concat_arrays(arrays).take(pa.array(order))
    buffers = tuple(buffer for array in arrays for buffer in _buffers(array))
    found = native.take_texts(buffers, np.ascontiguousarray(order, np.int64))
    return pa.Array.from_buffers(arrays[0].type, len(order), [None, *map(pa.py_buffer, found)])


def _buffers(array: pa.Array) -> tuple[Any, Any]:
    """Return the offsets and the letters of an array of texts."""
    _, offsets, letters = array.buffers()
    part = b"" if not len(array) else offsets.slice(8 * array.offset, 8 * (len(array) + 1))
    return part, b"" if letters is None else letters
