"""Columns of plain Python values for snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
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
