"""Replaces Arrow's views of texts and bytes, which most of Arrow's own functions do not take."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa

Data = TypeVar("Data", pa.RecordBatch, pa.Table)


def without_views(data: Data) -> Data:
    """Return the rows with columns of large texts and large bytes instead of views."""
    for place, kind in enumerate(data.schema.types):
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            plain = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
            name = data.schema.names[place]
            data = data.set_column(place, name, data.column(place).cast(plain))
    return data
