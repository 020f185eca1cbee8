"""Encodes texts, bytes or numbers of one type as a column that NumPy and Arrow read at once.

Texts and bytes are stored as their lengths and all their bytes; each length has as few bytes as the
longest text needs. Each integer has as many bytes as the largest integer needs.
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
"""Parts of an encoded column.

(kind of the values, NumPy type of the numbers or text lengths, these numbers, bytes of the texts).
"""


class EncodedArray:
    """A column of texts, bytes or numbers in encoded form, which is written in parts.

    The Arrow type is ``large_string``, ``large_binary``, ``int64`` or ``float64``, without nulls.
    NumPy works on all parts at once, because each call releases the interpreter's lock.
    """

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
        letters = b""
        if self._letters is not None:
            first, last = int(self._offsets[begin]), int(self._offsets[end])
            letters = self._letters[first:last].tobytes()
        return self._what, self._kind, self._numbers[begin:end].tobytes(), letters


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
