"""Numbers the keys of a stream, so that state can be kept in arrays.

The numbers ("slots") are given in the order in which keys first occur. Integer keys within a dense
range are looked up in an array. Other keys are looked up in a dictionary, which decides which keys
are equal. With compiled kernels, this happens once for each key and type of column; without, once
for each key of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels.keys import NumberedKeys, looked_up
from flinkray.state.key_values import are_plain, as_key

Slots = npt.NDArray[np.int32]

DENSE_RANGE = 1 << 22
"""Largest range of integer keys that is looked up in an array (16 MB)."""


class KeyNumbers:
    """Gives each key a number from 0 on, its slot, and remembers the keys with their slots."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        """Keys by slot."""
        self._slot_of: dict[Any, int] = {}
        self._dense: Slots | None = None
        self._dense_base = 0
        self._numbered = NumberedKeys()
        self.key_type: pa.DataType | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def slots_of(self, column: pa.Array) -> Slots:
        """Return the slot (number) of each row's key; new keys get slots."""
        self.key_type = column.type
        if pa.types.is_integer(column.type) and column.null_count == 0 and len(column):
            values = column.to_numpy(zero_copy_only=False)
            dense = None
            if self._dense is not None:
                dense = looked_up(values, self._dense, self._dense_base)
            if dense is None:
                dense = self._dense_slots(values)
            if dense is not None:
                return dense
        return self._numbered.of(column, self._slots_of_keys)

    def slot_of(self, key: Any) -> int:
        """Return the slot (number) of a key; a new key gets a slot.
        NaN is one key, as in Flink. Raises UnsupportedKeyError."""
        key = as_key(key)
        slot = self._slot_of.get(key)
        if slot is None:
            slot = len(self.keys)
            self._slot_of[key] = slot
            self.keys.append(key)
        return slot

    def _dense_slots(self, values: npt.NDArray[Any]) -> Slots | None:
        low, high = int(values.min()), int(values.max())
        if not self._make_room(low, high):
            return None
        dense, base = self._dense, self._dense_base
        assert dense is not None
        if base and (base < 0 or values.dtype != np.uint64):
            # A narrow type may be unable to hold the difference or the base.
            values = values.astype(np.int64, copy=False)
        places = values - base if base else values
        if places.dtype == np.uint64:  # NumPy 1 does not accept uint64 here
            places = places.astype(np.intp)
        slots: Slots = dense.take(places)  # as dense[places], in half the time
        if slots.min() < 0:
            missing = values[slots < 0]
            _, first = np.unique(missing, return_index=True)
            fresh = missing[np.sort(first)]
            # Some may be known from before, when the array did not cover them.
            found = [self.slot_of(key) for key in fresh.tolist()]
            dense[fresh - base] = found
            slots = dense.take(places)
        return slots

    def _make_room(self, low: int, high: int) -> bool:
        """Extend the lookup array so that it covers integer keys from *low* to *high*. Returns
        False if the array would become too large; then keys are looked up in the dictionary."""
        dense = self._dense
        if dense is None:
            if high - low >= DENSE_RANGE:
                return False
            base, end = min(low, 0) if low > -DENSE_RANGE // 2 else low, high + 1
            if end - base > DENSE_RANGE:
                base = low
            self._dense_base = base
            self._dense = np.full(max(1024, (end - base) * 2), -1, np.int32)
            return True
        base, end = self._dense_base, self._dense_base + len(dense)
        if base <= low and high < end:
            return True
        new_base, new_end = min(base, low), max(end, high + 1)
        if new_end - new_base > DENSE_RANGE:
            return False
        grown = np.full(min(DENSE_RANGE, (new_end - new_base) * 2), -1, np.int32)
        grown[base - new_base : base - new_base + len(dense)] = dense
        self._dense, self._dense_base = grown, new_base
        return True

    def _slots_of_keys(self, keys: list[Any]) -> Iterable[int]:
        """Return the slot (number) of each key; new keys get slots."""
        if are_plain(keys):
            known = list(map(self._slot_of.get, keys))
            if None not in known:
                return known  # type: ignore[return-value]
        return map(self.slot_of, keys)
