"""Texts, bytes and numbers of one type as bytes: a column that NumPy and Arrow read at once.

Texts and bytes are their lengths, in as few bytes each as the longest one needs, and all of their
letters.  Integers have as many bytes as the largest of them needs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TEXTS, _BYTES, _NUMBERS = "texts", "bytes", "numbers"
_WHOLE = ("<i1", "<i2", "<i4", "<i8")
_LENGTHS = ("<u1", "<u2", "<u4")
_KINDS = frozenset({*_WHOLE, "<f8"})

Encoded = tuple[str, str, bytes, bytes]
"""What they are, of which type the numbers (or lengths) are, these, and the letters."""


def encode_array(array: pa.Array) -> Encoded:
    """Of ``large_string``, ``large_binary``, ``int64`` or ``float64``, without nulls."""
    kind = array.type
    if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)):
        numbers = array.to_numpy()
        if pa.types.is_integer(kind):
            numbers = _narrow(numbers, _WHOLE)
        return _NUMBERS, _name_of(numbers), numbers.tobytes(), b""
    _, ends, letters = array.buffers()
    offsets = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    lengths = _narrow(np.diff(offsets), _LENGTHS)
    first, last = int(offsets[0]), int(offsets[-1])
    data = b"" if letters is None else memoryview(letters)[first:last].tobytes()
    what = _TEXTS if pa.types.is_large_string(kind) else _BYTES
    return what, _name_of(lengths), lengths.tobytes(), data


def _narrow(numbers: npt.NDArray[np.int64], kinds: tuple[str, ...]) -> npt.NDArray[Any]:
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    for kind in kinds:
        info = np.iinfo(kind)
        if info.min <= low and high <= info.max:
            return numbers.astype(kind)
    raise AssertionError(kinds)


def _name_of(numbers: npt.NDArray[Any]) -> str:
    kind: str = numbers.dtype.str
    return "<" + kind[1:]  # numpy has "|" where there is no order of bytes


def decode_array(what: str, kind: str, numbers: bytes, letters: bytes) -> list[Any]:
    """The values.

    Raises:
        ValueError, TypeError: this is not what :func:`encode_array` gave.
    """
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
