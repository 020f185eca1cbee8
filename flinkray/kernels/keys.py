"""Numbers and key groups of keys in Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels.arrow_columns import layout_of, parts_of
from flinkray.kernels.compiled import native

Int32s = npt.NDArray[np.int32]

_SEED = hash(__name__) & (1 << 64) - 1
"""Differs between processes, so that nobody can choose keys that a hash table finds slowly."""

NumbersOf = Callable[[list[Any]], Iterable[int]]
"""Returns the numbers of keys, which are in Python's form, and decides which keys are equal."""


class NumberedKeys:
    """Finds a number for each row of a column of keys. With compiled kernels, it remembers the keys
    with their numbers. *limit*: when more keys of a type are known, they are forgotten before the
    next column. None: no limit."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._known: dict[pa.DataType, _KnownKeys] = {}

    def of(self, column: pa.Array, numbers_of: NumbersOf) -> Int32s:
        """Return the number of each row's key; null is a key. *numbers_of* gets the keys that are
        not known, in the order in which they first occur. It must not call this method."""
        if pa.types.is_dictionary(column.type):
            if column.null_count == 0:
                return self._of_entries(column, numbers_of)
            column = column.cast(column.type.value_type)
        layout = layout_of(column.type)
        if native is None or layout is None:
            return encoded_numbers(column, numbers_of)
        # After an error the table may have keys without a number, and is not put back.
        known = self._known.pop(column.type, None)
        if known is None or (self._limit is not None and known.count > self._limit):
            known = _KnownKeys(layout)
        numbers = known.numbers(column, numbers_of)
        self._known[column.type] = known
        return numbers

    def number_known(self, kind: pa.DataType) -> int:
        """Return how many keys of columns of a type are known."""
        return self._known[kind].count if kind in self._known else 0

    def _of_entries(self, column: pa.DictionaryArray, numbers_of: NumbersOf) -> Int32s:
        """Return the number of each row's key. A dictionary's entry that no row uses is no key."""
        entries, indices = column.dictionary, column.indices.to_numpy(zero_copy_only=False)
        is_used = np.zeros(len(entries), np.bool_)
        is_used[indices] = True
        numbers = np.full(len(entries), -1, np.int32)
        numbers[is_used] = self.of(entries.filter(pa.array(is_used)), numbers_of)
        of_rows: Int32s = numbers.take(indices)
        return of_rows


def encoded_numbers(column: pa.Array, numbers_of: NumbersOf) -> Int32s:
    """Return the number of each row's key. *numbers_of* gets all keys of the column."""
    import pyarrow.compute as pc

    encoded = pc.dictionary_encode(column, null_encoding="encode")
    keys = encoded.dictionary.to_pylist()
    numbers = np.fromiter(numbers_of(keys), np.int32, len(keys))
    of_rows: Int32s = numbers.take(encoded.indices.to_numpy(zero_copy_only=False))
    return of_rows


class _KnownKeys:
    """The keys of one type of column in a compiled hash table, which numbers them from 0 on, and
    the number that each key has elsewhere."""

    def __init__(self, layout: int) -> None:
        assert native is not None
        self._table = native.KeyTable(layout, _SEED)
        self._layout = layout
        self.count = 0
        self._numbers: Int32s = np.empty(64, np.int32)
        self._are_equal = True
        """Whether each key has the same number in the table and elsewhere."""

    def numbers(self, column: pa.Array, numbers_of: NumbersOf) -> Int32s:
        places, first = np.empty(len(column), np.int32), np.empty(len(column), np.int32)
        new = self._table.add(parts_of(column, self._layout), places, first)
        if new:
            keys = column.take(pa.array(first[:new])).to_pylist()
            self._append(np.fromiter(numbers_of(keys), np.int32, new))
        return places if self._are_equal else self._numbers.take(places)

    def _append(self, numbers: Int32s) -> None:
        before, self.count = self.count, self.count + len(numbers)
        if self.count > len(self._numbers):
            self._numbers = np.resize(self._numbers, 2 * self.count)
        self._numbers[before : self.count] = numbers
        self._are_equal &= bool((numbers == np.arange(before, self.count)).all())


def looked_up(keys: npt.NDArray[Any], table: Int32s, base: int) -> Int32s | None:
    """Return ``table[key - base]`` for each of *keys*, which are integers. None if a key is outside
    of the table, or its number in the table is negative, or no compiled kernel can do this."""
    if native is None or keys.dtype == np.uint64:
        return None
    if not -(1 << 63) <= base < (1 << 63) - len(table):
        return None
    numbers = np.empty(len(keys), np.int32)
    is_complete = native.look_up(np.ascontiguousarray(keys, np.int64), table, base, numbers)
    return numbers if is_complete else None


def owners_of_keys(
    column: pa.Array, owners: Int32s, group_of_null: Callable[[], int]
) -> Int32s | None:
    """Return ``owners[key group]`` for each row of a column of texts, or of integers that hash as
    Java's ``long``. There are as many key groups as *owners*. *group_of_null*: returns the key
    group of null. None if no compiled kernel can do this: other types, 64-bit integers without
    sign, or texts that are not UTF-8."""
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    is_integer = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    if native is None or not (is_text or is_integer):
        return None
    of_rows = np.empty(len(column), np.int32)
    of_null = int(owners[group_of_null()]) if column.null_count else 0
    if is_text:
        parts = parts_of(column, layout_of(kind) or 0)
        return of_rows if native.owners_of_texts(parts, owners, of_null, of_rows) else None
    values = column.fill_null(0) if column.null_count else column
    keys = np.ascontiguousarray(values.to_numpy(zero_copy_only=False), np.int64)
    native.owners_of_integers(keys, owners, 0, of_rows)
    if column.null_count:
        of_rows[column.is_null().to_numpy(zero_copy_only=False)] = of_null
    return of_rows
