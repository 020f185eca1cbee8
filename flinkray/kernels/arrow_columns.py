"""How compiled kernels are given Arrow arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

Parts = tuple[int, int, int, Any, Any, Any]
"""Layout, offset and length of an array, and its buffers of validity, offsets and data (None:
there is none). The layout is the number of bytes of a value, 0 for a bit, or -4 or -8 for values of
any length with offsets of 4 or 8 bytes."""

BIT = 0
_LAYOUTS: dict[int, int] = {
    pa.bool_().id: BIT,
    pa.string().id: -4,
    pa.binary().id: -4,
    pa.large_string().id: -8,
    pa.large_binary().id: -8,
}
_FIXED = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.decimal128(1), pa.decimal256(1)),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us")),
        *(pa.duration("us"), pa.binary(1), pa.month_day_nano_interval()),
    )
)
"""Types whose values have a fixed number of bytes."""


def layout_of(kind: pa.DataType) -> int | None:
    """Return the layout (see :data:`Parts`) of arrays of a type. None: nested or other types, whose
    arrays kernels do not take."""
    if kind.id in _FIXED:
        return int(kind.bit_width) // 8 or None
    return _LAYOUTS.get(kind.id)


def parts_of(array: pa.Array, layout: int) -> Parts:
    """Return the buffers of an array, for a kernel. *layout*: the layout of the array's type."""
    buffers = array.buffers()
    validity = buffers[0] if array.null_count else None
    offsets = buffers[1] if layout < 0 else None
    return layout, array.offset, len(array), validity, offsets, buffers[-1]
