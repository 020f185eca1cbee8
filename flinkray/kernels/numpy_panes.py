"""Counts, sums and extremes by slot and pane, in NumPy: defines the results of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flinkray.kernels.numpy_aggregates import (
    Slots,
    Values,
    extremes_by_group,
    stable_order,
    sums_by_group,
)

Times = npt.NDArray[np.int64]

_SLICED = 1024
"""Most panes that a batch may span to be divided by search. In a longer span most are empty."""
_NO_WRAP = 1 << 61
"""Differences of times and offsets below this number do not wrap at 64 bits."""


class Runs(NamedTuple):
    """Divides the rows of a batch into runs of rows in the same pane, as long as possible."""

    numbers: npt.NDArray[np.int64]
    """Number of the pane of each run."""
    ends: npt.NDArray[np.int64]
    """The row after each run."""


class Step(NamedTuple):
    """How the rows change a number of their slot and pane."""

    how: str
    """``count``, ``sum``, ``upper`` (sum of the :func:`upper_halves`), ``min`` or ``max``."""
    values: Values | None
    """The value of each row; None for ``count``."""
    states: Sequence[Values]
    """For each pane, the numbers by slot, which are updated: 64-bit integers for counts, upper
    halves and sums of integers, doubles for other sums, and any type for extremes."""


def runs_of_panes(times: Times, offset: int, size: int) -> Runs:
    """Divide rows with these times into runs of rows in the same pane.
    Panes have *size* milliseconds; one of them begins at *offset*."""
    if not len(times):
        return Runs(np.empty(0, np.int64), np.empty(0, np.int64))
    least, most = int(times.min()), int(times.max())
    first, last = (least - offset) // size, (most - offset) // size
    has_no_wrap = min(least, offset) > -_NO_WRAP and max(most, offset, size) < _NO_WRAP
    if has_no_wrap and last - first <= _SLICED and not (times[1:] < times[:-1]).any():
        begins = np.arange(first + 1, last + 1) * size + offset
        ends = np.append(np.searchsorted(times, begins), len(times))
        is_run = np.diff(ends, prepend=0) > 0
        return Runs(np.arange(first, last + 1)[is_run], ends[is_run])
    panes = (times - offset) // size
    ends = np.append(np.flatnonzero(panes[1:] != panes[:-1]) + 1, len(times))
    return Runs(panes[ends - 1], ends)


def add_to_panes(
    slots: Slots,
    ends: npt.NDArray[np.int64],
    places: npt.NDArray[np.int64],
    marks: Sequence[npt.NDArray[np.int64]],
    mark: int,
    steps: Sequence[Step],
) -> None:
    """Add the rows of a batch to the numbers of their slots and panes.
    *ends*: the row after each run of rows in the same pane; *places*: the pane of each run, counted
    from 0. *marks* has an array for each pane; the slots of the pane's rows get *mark* there.
    Raises IndexError: an array has no number for a slot."""
    lengths = np.diff(ends, prepend=0)
    order, counts = None, lengths
    if len(places) > len(marks) or (places[1:] <= places[:-1]).any():
        of_rows = np.repeat(places, lengths).astype(np.int32)
        order, counts = stable_order(of_rows), np.bincount(of_rows, minlength=len(marks))
        places = np.arange(len(marks))
    end = 0
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        begin, end = end, end + count
        rows: Any = slice(begin, end) if order is None else order[begin:end]
        of_pane = slots[rows]
        numbers = np.bincount(of_pane, minlength=len(marks[place]))
        marks[place][np.flatnonzero(numbers)] = mark
        for how, values, states in steps:
            if values is None:
                states[place][:] += numbers
            else:
                _add(how, of_pane, values[rows], states[place])


def _add(how: str, slots: Slots, values: Values, state: Values) -> None:
    size = len(state)
    if how in ("min", "max"):
        extremes_by_group(how, slots, values, state)
    elif how == "sum" and state.dtype.kind == "f":  # one after the other, beginning with the state
        before = np.flatnonzero(state)
        both = np.concatenate([before, slots]), np.concatenate([state[before], values])
        state[:] = np.bincount(*both, minlength=size)
    else:
        state += sums_by_group(slots, upper_halves(values) if how == "upper" else values, size)


def upper_halves(values: Values) -> Values:
    """Return each 64-bit number divided by 2**32 and rounded.
    The sum of up to 2**31 halves shows how often the sum of the numbers has wrapped."""
    halves: Values = values >> values.dtype.type(32)
    if values.dtype == np.uint64:
        return halves.astype(np.int64)
    halves += (values >> 31) & 1
    return halves
