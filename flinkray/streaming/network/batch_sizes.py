"""Batch sizes: small batches are merged, large batches are split."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flinkray.streaming.records.elements import Block, Columns, Element

_SPLIT_ABOVE: Final = 16 * 2**20
"""Bytes. Larger batches are sent in pieces, so that other channels do not wait for long."""


def in_pieces(element: Element, size: int) -> list[Element]:
    """Split a batch of *size* bytes into pieces of about :data:`_SPLIT_ABOVE` bytes.
    Smaller batches and elements that are no batches are returned whole."""
    if size <= _SPLIT_ABOVE or not isinstance(element, Block | Columns):
        return [element]
    rows = max(1, len(element) * _SPLIT_ABOVE // size)
    return [element.part(begin, begin + rows) for begin in range(0, len(element), rows)]


def in_halves(element: Element) -> list[Element]:
    """Split a batch of more than one record into two or more pieces."""
    return in_pieces(element, 2 * _SPLIT_ABOVE)


def together(elements: Sequence[Element]) -> list[Element]:
    """Return the elements, with consecutive batches of one kind merged into one batch."""
    merged: list[Element] = []
    run: list[Any] = []
    for element in chain(elements, (None,)):
        if run and not (element is not None and _may_join(run[0], element)):
            merged.append(run[0] if len(run) == 1 else _joined(run))
            run = []
        if element is None:
            break
        if isinstance(element, Block | Columns):
            run.append(element)
        else:
            merged.append(element)
    return merged


def _may_join(first: Any, second: Any) -> bool:
    if type(first) is not type(second) or (first.timestamps is None) != (second.timestamps is None):
        return False
    if isinstance(first, Block):
        return (first.keys is None) == (second.keys is None)
    schema: pa.Schema = first.batch.schema
    return first.scalar == second.scalar and bool(
        schema.equals(second.batch.schema, check_metadata=True)
    )


def _joined(run: list[Any]) -> Element:
    first = run[0]
    times: Any = None
    if isinstance(first, Block):
        values = list(chain.from_iterable(block.values for block in run))
        keys = None
        if first.timestamps is not None:
            times = list(chain.from_iterable(block.timestamps for block in run))
        if first.keys is not None:
            keys = list(chain.from_iterable(block.keys for block in run))
        return Block(values, times, keys, first.origin)
    if first.timestamps is not None:
        times = np.concatenate([part.timestamps for part in run])
    table = pa.Table.from_batches([part.batch for part in run]).combine_chunks()
    batch = next(iter(table.to_batches()), first.batch)
    return Columns(batch, times, first.origin, first.scalar)
