"""Sums, extremes and running values by group, in NumPy: defines the results of the kernels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Slots = npt.NDArray[np.int32]
"""The group (number of the key) of each record."""
Values = npt.NDArray[Any]

_EXACT = 1 << 53
"""Up to this number a double represents every integer exactly."""
_MOST_HALVES = 1 << 21
"""The sum of this many 32-bit numbers is at most :data:`_EXACT`."""

_COUNTED = 4096
_COUNTED_FROM = 1024
"""Arrow sorts arrays of more than ``_COUNTED_FROM`` numbers with a range of at most ``_COUNTED`` by
counting, others by comparing, which takes several times as long (``CountOrCompareSorter`` in its
vector_sort.cc)."""

_LONG_GROUP = 256
"""Groups with more records in a batch are accumulated singly, smaller groups together."""


class Groups(NamedTuple):
    """A batch's records sorted by group: the order of the records, and the range of each group in
    this order. Records of one group keep their order."""

    order: npt.NDArray[np.intp]
    """Index before sorting, of each sorted record."""
    starts: npt.NDArray[np.intp]
    counts: npt.NDArray[np.intp]
    slots: Slots
    """The group of each run of records."""


def start_of(how: str, kind: np.dtype[Any]) -> Any:
    """Return the sum, minimum or maximum (*how*) of no values, with which an aggregation begins."""
    if how not in ("min", "max"):
        return 0
    if kind.kind == "f":
        return np.nan if how == "min" else -np.inf
    return np.iinfo(kind).max if how == "min" else np.iinfo(kind).min


def ufunc_of(how: str, kind: np.dtype[Any]) -> np.ufunc:
    """Return the NumPy function that combines two aggregates: the sum, minimum or maximum, as *how*
    says. NaN is greater than every number, as in Flink (Java's ``Double.compareTo``)."""
    if how not in ("min", "max"):
        return np.add
    if how == "max":
        return np.maximum
    return np.fmin if kind.kind == "f" else np.minimum


def group(slots: Slots) -> Groups:
    """Return the order that sorts records by group, and where each group begins, in linear time.
    *slots*: the group of each record."""
    order = stable_order(slots)
    ordered = slots.take(order)  # the same as slots[order], in half the time
    ends = np.flatnonzero(ordered[1:] != ordered[:-1])
    bounds = np.empty(len(ends) + 2, np.intp)
    bounds[0], bounds[-1] = 0, len(slots)
    np.add(ends, 1, out=bounds[1:-1])
    if not len(slots):
        bounds = bounds[:1]
    starts = bounds[:-1]
    return Groups(order, starts, bounds[1:] - starts, ordered[starts])


def stable_order(slots: Slots) -> npt.NDArray[np.intp]:
    """Return the indices that sort *slots* (group numbers); equal numbers keep their order.
    For many small numbers Arrow's counting sort is used, which takes half of NumPy's time. NumPy
    sorts 16-bit integers by radix, wider integers in two passes."""
    largest = int(slots.max()) if len(slots) else 0
    if largest < _COUNTED and len(slots) > _COUNTED_FROM:
        import pyarrow.compute as pc

        indices = pc.array_sort_indices(pa.array(slots))  # stable, as its documentation says
        return indices.to_numpy().view(np.intp)  # type: ignore[no-any-return]
    low = slots.astype(np.uint16)
    order = np.argsort(low, kind="stable")
    if largest > 0xFFFF:
        high = (slots >> 16).astype(np.uint16)
        order = order.take(np.argsort(high.take(order), kind="stable"))
    return order


def sums_by_group(slots: npt.NDArray[Any], values: Values, number: int) -> Values:
    """Return the sum of each of *number* groups. *slots*: the group of each value.
    Sums of integers are exact (modulo 2**64)."""
    if values.dtype.kind == "f":
        return np.bincount(slots, values, number).astype(np.float64, copy=False)
    if len(values) == 0:
        return np.zeros(number, np.int64)
    largest = max(abs(int(values.max())), abs(int(values.min())))
    if largest * len(values) < _EXACT:
        return np.bincount(slots, values, number).astype(np.int64)
    total: Values = np.zeros(number, np.int64)
    for begin in range(0, len(values), _MOST_HALVES):
        part = slots[begin : begin + _MOST_HALVES]
        wide = values[begin : begin + _MOST_HALVES].astype(np.int64, copy=False)
        low = np.bincount(part, (wide & 0xFFFFFFFF).astype(np.float64), number).astype(np.int64)
        high = np.bincount(part, (wide >> 32).astype(np.float64), number).astype(np.int64)
        with np.errstate(over="ignore"):
            total += (high << 32) + low
    return total


def extremes_by_group(how: str, slots: Slots, values: Values, state: Values) -> None:
    """Update *state* with the minimum or maximum (*how*) of the values of each group."""
    if len(slots):
        groups, ufunc = group(slots), ufunc_of(how, state.dtype)
        reduced = ufunc.reduceat(values.take(groups.order), groups.starts)
        state[groups.slots] = ufunc(state[groups.slots], reduced)


def running_sums(slots: Slots, values: Values, state: Values) -> Values:
    """Return, for each record, the sum of its group so far.
    *state*: the sum of each group before these records; is updated."""
    groups = group(slots)
    ordered = values.take(groups.order)
    if ordered.dtype.kind == "f":
        running = _accumulate(np.add, groups, ordered, state)
    else:
        ordered = ordered.astype(np.int64, copy=False)  # NumPy would make doubles of unsigned ones
        running = np.cumsum(ordered)
        before = running.take(groups.starts) - ordered.take(groups.starts)
        running += np.repeat(state[groups.slots] - before, groups.counts)
    state[groups.slots] = running[groups.starts + groups.counts - 1]
    result = np.empty_like(running)
    result[groups.order] = running
    return result


def running_extremes(how: str, slots: Slots, values: Values, state: Values) -> Values:
    """Return, for each record, the minimum or maximum (*how*) of its group so far.
    *state*: the minimum or maximum of each group before these records; is updated."""
    groups, ufunc = group(slots), ufunc_of(how, state.dtype)
    running = _accumulate(ufunc, groups, values.take(groups.order), state)
    state[groups.slots] = running[groups.starts + groups.counts - 1]
    result = np.empty_like(running)
    result[groups.order] = running
    return result


def _accumulate(ufunc: np.ufunc, groups: Groups, ordered: Values, state: Values) -> Values:
    """Return the running sums, minima or maxima of each group, beginning with the group's state.
    Each group is accumulated on its own: one cumulative sum over all groups would let the rounding
    errors of a large group spoil the others."""
    running = ordered.astype(np.result_type(ordered, state), copy=True)
    running[groups.starts] = ufunc(running[groups.starts], state[groups.slots])
    long = np.flatnonzero(groups.counts > _LONG_GROUP)
    for place in long.tolist():
        start = groups.starts[place]
        part = running[start : start + groups.counts[place]]
        ufunc.accumulate(part, out=part)
    short = groups.counts <= _LONG_GROUP
    starts, counts = groups.starts[short], groups.counts[short]
    rank = 1
    while True:
        reaching = counts > rank
        if not reaching.any():
            return running
        starts, counts = starts[reaching], counts[reaching]
        places = starts + rank
        running[places] = ufunc(running[places - 1], running[places])
        rank += 1
