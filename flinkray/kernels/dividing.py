"""Divides the rows or records of a batch between channels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels.arrow_columns import layout_of, parts_of
from flinkray.kernels.compiled import native

Times = npt.NDArray[np.int64]
Part = tuple[int, pa.RecordBatch, Times | None]
"""A channel, its rows in their order, and their timestamps."""


def divided(
    batch: pa.RecordBatch, times: Times | None, chosen: npt.NDArray[Any], channels: int
) -> Iterator[Part]:
    """Yield the part of each channel that gets rows. *times*: the timestamp of each row, if any.
    *chosen*: the channel of each row, from 0 to *channels* - 1."""
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
    import pyarrow.compute as pc

    for channel in range(channels):
        places = np.flatnonzero(chosen == channel)
        if len(places):
            stamps = None if times is None else times.take(places)
            yield channel, pc.take(batch, pa.array(places), boundscheck=False), stamps


Lists = list[list[Any] | None]
"""Values, timestamps and keys of records; None: the records have none of these."""


def divided_lists(
    lists: Sequence[Sequence[Any] | None], chosen: list[int], channels: int
) -> Iterator[tuple[int, Lists]]:
    """Yield (channel, its parts of all lists) for each channel that gets records. *chosen*: the
    channel of each record, from 0 to *channels* - 1."""
    if native is None:
        yield from divided_lists_in_python(lists, chosen, channels)
        return
    given = [
        values if type(values) is list else list(values) for values in lists if values is not None
    ]
    found = native.divide_lists(chosen, channels, given)
    for channel, parts in enumerate(zip(*found, strict=True)):
        if parts[0]:
            part = iter(parts)
            yield channel, [None if values is None else next(part) for values in lists]


_IS_CHANNEL = [bytes(code == channel for code in range(256)) for channel in range(8)]
"""Table *c* maps the bytes of channel numbers to 1 where the channel is *c*, else 0."""


def divided_lists_in_python(
    lists: Sequence[Sequence[Any] | None], chosen: list[int], channels: int
) -> Iterator[tuple[int, Lists]]:
    """Yield what :func:`divided_lists` yields, without a compiled kernel."""
    if channels <= len(_IS_CHANNEL):
        codes = bytes(chosen)
        for channel in range(channels):
            mask = codes.translate(_IS_CHANNEL[channel])
            if any(mask):
                yield (
                    channel,
                    [None if values is None else list(compress(values, mask)) for values in lists],
                )
        return
    places: list[list[int]] = [[] for _ in range(channels)]
    for place, channel in enumerate(chosen):
        places[channel].append(place)
    for channel, mine in enumerate(places):
        if mine:
            yield (
                channel,
                [None if values is None else [values[place] for place in mine] for values in lists],
            )
