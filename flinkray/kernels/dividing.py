"""Divides the rows of a batch between channels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.kernels.arrow_columns import layout_of, parts_of
from flinkray.kernels.compiled import native

Times = npt.NDArray[np.int64]
Part = tuple[int, pa.RecordBatch, Times | None]
"""A channel, its rows in their order, and their timestamps."""


def divided(
    batch: pa.RecordBatch, times: Times | None, chosen: npt.NDArray[Any], channels: int
) -> Iterator[Part]:
    """Yield the part of each channel that gets rows. *times*: the timestamp of each row, if any.
    *chosen*: the channel of each row. Raises IndexError: a row has a channel
    that is not below *channels*."""
    rows = len(chosen)
    if native is None or not rows or not batch.num_columns:
        yield from divided_by_arrow(batch, times, chosen, channels)
        return
    order, bounds = np.empty(rows, np.int32), np.empty(channels + 1, np.int64)
    columns = [(column, column.type, layout_of(column.type)) for column in batch.columns]
    parts = [parts_of(column, layout) for column, _, layout in columns if layout is not None]
    if times is not None:
        parts.append((8, 0, rows, None, None, np.ascontiguousarray(times, np.int64)))
    chosen = np.ascontiguousarray(chosen, np.int32)
    found = native.divide(chosen, order, bounds, parts, pa.allocate_buffer)
    ends = bounds.tolist()
    getting = [channel for channel in range(channels) if ends[channel] < ends[channel + 1]]
    if len(getting) == 1:
        yield getting[0], batch, times
        return
    for place, channel in enumerate(getting):
        mine = order[ends[channel] : ends[channel + 1]]
        taken = (of_channels[place] for of_channels in found)
        arrays = [
            column.take(pa.array(mine))
            if layout is None
            else pa.Array.from_buffers(kind, len(mine), *next(taken))
            for column, kind, layout in columns
        ]
        stamps = None if times is None else np.frombuffer(next(taken)[0][-1], np.int64)
        yield channel, pa.RecordBatch.from_arrays(arrays, schema=batch.schema), stamps


def divided_by_arrow(
    batch: pa.RecordBatch, times: Times | None, chosen: npt.NDArray[Any], channels: int
) -> Iterator[Part]:
    """Yield what :func:`divided` yields, without a compiled kernel."""
    for channel in range(channels):
        places = np.flatnonzero(chosen == channel)
        if len(places):
            stamps = None if times is None else times.take(places)
            yield channel, pc.take(batch, pa.array(places), boundscheck=False), stamps
