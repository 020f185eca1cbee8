"""Sums by slot of the rows of a batch. A slot is the number of a key."""

from __future__ import annotations

import numpy as np

from flinkray.kernels import numpy_aggregates
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_aggregates import Slots, Values


def running_sums(slots: Slots, values: Values, state: Values) -> Values:
    """Return, for each record, the sum of its group so far.
    *state*: the sum of each group before these records; is updated. Raises IndexError: *state* has
    no sum for a slot."""
    if native is None or not _fit(slots, values, state):
        return numpy_aggregates.running_sums(slots, values, state)
    running = np.empty(len(values), state.dtype)
    values = np.ascontiguousarray(values, state.dtype)
    native.running_sums(state.dtype.kind == "f", slots, values, state, running)
    return running


def sums_by_group(slots: Slots, values: Values, number: int) -> Values:
    """Return the sum of each of *number* groups. *slots*: the group of each value.
    Sums of integers are exact (modulo 2**64)."""
    sums = np.zeros(number, np.float64 if values.dtype.kind == "f" else np.int64)
    if native is None or not _fit(slots, values, sums):
        return numpy_aggregates.sums_by_group(slots, values, number)
    native.add_sums(sums.dtype.kind == "f", slots, np.ascontiguousarray(values, sums.dtype), sums)
    return sums


def _fit(slots: Slots, values: Values, state: Values) -> bool:
    """Return whether the compiled kernel takes these arrays: 32-bit slots, and sums of 64 bits of
    the same kind as the values."""
    is_double = values.dtype.kind == "f" and values.dtype.itemsize <= 8
    return (
        slots.dtype == np.int32
        and slots.flags.c_contiguous
        and state.flags.c_contiguous
        and len(slots) == len(values)
        and (
            (state.dtype == np.float64 and is_double)
            or (state.dtype == np.int64 and values.dtype.kind in "iu")
        )
    )
