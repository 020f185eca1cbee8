"""Estimates the memory of records from a sample, so that channels can limit the bytes that wait in
them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any

from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.row import Row

_SAMPLE = 4
"""Number of sampled records per batch, and of sampled parts per record."""
_DEPTH = 4
"""Levels of a record that are examined."""
_LEAF = 32
"""Bytes of a number or another small object."""


def bytes_of(batch: Block | Columns) -> int:
    if isinstance(batch, Columns):
        return int(batch.batch.nbytes)
    values = batch.values
    count = len(values)
    if isinstance(values, range) or not count:
        return count * _LEAF
    if count <= _SAMPLE:
        return sum([_bytes_of(value, _DEPTH) for value in values])
    step = count // _SAMPLE
    sampled = [_bytes_of(values[place * step], _DEPTH) for place in range(_SAMPLE)]
    return sum(sampled) * count // _SAMPLE


def _bytes_of(value: Any, depth: int) -> int:
    if isinstance(value, int | float | bool) or value is None:
        return _LEAF
    if isinstance(value, str | bytes | bytearray | memoryview):
        return sys.getsizeof(value)
    size = getattr(value, "nbytes", None)  # NumPy and Arrow objects have it
    if isinstance(size, int):
        return size + _LEAF
    if not depth:
        return _LEAF
    if isinstance(value, Row):
        return _LEAF + _bytes_of(value._values, depth - 1)
    if isinstance(value, Mapping):
        return sys.getsizeof(value) + _of_parts(list(islice(value.items(), _SAMPLE)), value, depth)
    if isinstance(value, Collection):
        return sys.getsizeof(value) + _of_parts(list(islice(value, _SAMPLE)), value, depth)
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        return _LEAF + sum([_bytes_of(part, depth - 1) for part in attributes.values()])
    return _LEAF


def _of_parts(sample: list[Any], whole: Collection[Any], depth: int) -> int:
    if not sample:
        return 0
    return sum([_bytes_of(part, depth - 1) for part in sample]) * len(whole) // len(sample)
