"""Sums and extremes by slot of the rows of a batch. A slot is the number of a key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from flinkray.kernels import numpy_aggregates
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_aggregates import Slots, Values


def running_sums(slots: Slots, values: Values, state: Values) -> Values:
    """Return, for each record, the sum of its group so far.
    *state*: the sum of each group before these records; is updated. Raises IndexError: *state* has
    no sum for a slot."""
    taken = None if native is None else taken_values("sum", slots, values, state)
    if native is None or taken is None:
        return numpy_aggregates.running_sums(slots, values, state)
    running = np.empty(len(values), state.dtype)
    native.aggregate(f"sum {code_of(taken)}", slots, taken, state, running)
    return running


def sums_by_group(slots: Slots, values: Values, number: int) -> Values:
    """Return the sum of each of *number* groups. *slots*: the group of each value.
    Sums of integers are exact (modulo 2**64)."""
    sums = np.zeros(number, np.float64 if values.dtype.kind == "f" else np.int64)
    taken = None if native is None else taken_values("sum", slots, values, sums)
    if native is None or taken is None:
        return numpy_aggregates.sums_by_group(slots, values, number)
    native.aggregate(f"sum {code_of(taken)}", slots, taken, sums, None)
    return sums


def running_extremes(how: str, slots: Slots, values: Values, state: Values) -> Values:
    """Return, for each record, the minimum or maximum (*how*) of its group so far.
    *state*: the minimum or maximum of each group before these records; is updated. NaN is greater
    than every number. Of 0.0 and -0.0 either may be the minimum or maximum."""
    taken = None if native is None else taken_values(how, slots, values, state)
    if native is None or taken is None:
        return numpy_aggregates.running_extremes(how, slots, values, state)
    running = np.empty(len(values), state.dtype)
    native.aggregate(f"{how} {code_of(taken)}", slots, taken, state, running)
    return running


def extremes_by_group(how: str, slots: Slots, values: Values, state: Values) -> None:
    """Update *state* with the minimum or maximum (*how*) of the values of each group.
    NaN is greater than every number. Of 0.0 and -0.0 either may be the minimum or maximum."""
    taken = None if native is None else taken_values(how, slots, values, state)
    if native is None or taken is None:
        numpy_aggregates.extremes_by_group(how, slots, values, state)
        return
    native.aggregate(f"{how} {code_of(taken)}", slots, taken, state, None)


def code_of(values: Values) -> str:
    """Return the name that compiled kernels have for the type of the values."""
    return f"{values.dtype.kind}{values.dtype.itemsize}"


def plain(array: npt.NDArray[Any], kind: Any) -> npt.NDArray[Any]:
    """Return the array as compiled kernels take arrays: contiguous, aligned and of the type *kind*.
    It is copied only if it is not so yet."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype == kind:
        return array
    return np.require(array, kind, ["C", "A"])


def taken_values(how: str, slots: Slots, values: Values, state: Values) -> Values | None:
    """Return the values as the compiled kernels take them, copied only if they are not contiguous
    or of another type. None: the kernels do not take these arrays."""
    kind, size = values.dtype.kind, values.dtype.itemsize
    if (
        slots.dtype != np.int32
        or not (slots.flags.c_contiguous and slots.flags.aligned)
        or not state.flags.carray  # contiguous, aligned, and may be written
        or len(slots) != len(values)
        or kind not in "iuf"
        or size not in ((4, 8) if kind == "f" else (1, 2, 4, 8))
    ):
        return None
    if how == "sum":
        if state.dtype == (np.float64 if kind == "f" else np.int64):
            return plain(values, values.dtype.newbyteorder("="))
    elif np.promote_types(values.dtype, state.dtype) == state.dtype and state.dtype.itemsize <= 8:
        return plain(values, state.dtype)
    return None
