"""Aggregates by slot: each compiled kernel gives the same bytes as its NumPy definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels import aggregates, numpy_aggregates
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_aggregates import start_of

KINDS = [np.dtype(kind) for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")]
GROUPS = 5

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with NumPy code")


@st.composite
def batches(draw: st.DrawFn) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Slots, and a value of one type for each; the values may be every second of an array."""
    kind, rows = draw(st.sampled_from(KINDS)), draw(st.integers(0, 20))
    data = draw(st.binary(min_size=2 * rows * kind.itemsize, max_size=2 * rows * kind.itemsize))
    both = np.frombuffer(data, kind)
    values = both[::2] if draw(st.booleans()) else both[:rows]
    slots = draw(st.lists(st.integers(0, GROUPS - 1), min_size=rows, max_size=rows))
    return np.array(slots, np.int32), values


def start(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.arange(GROUPS, dtype=np.float64 if values.dtype.kind == "f" else np.int64)


def same(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> bool:
    return first.dtype == second.dtype and _bytes(first) == _bytes(second)


def _bytes(values: npt.NDArray[Any]) -> bytes:
    """Return the bytes of the values. All NaNs count as one, and -0.0 as 0.0: which of two NaNs is
    their sum, and which of two zeros is the less, depends on the compiler and on NumPy's loops."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.nan, values) + 0.0
    return values.tobytes()


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # random doubles
@given(batches())
def test_running_sums_have_the_bytes_of_the_numpy_code(batch: Any) -> None:
    slots, values = batch
    state, expected_state = start(values), start(values)
    expected = numpy_aggregates.running_sums(slots, values, expected_state)
    assert same(aggregates.running_sums(slots, values, state), expected)
    assert same(state, expected_state)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@given(batches())
def test_sums_by_group_have_the_bytes_of_the_numpy_code(batch: Any) -> None:
    slots, values = batch
    expected = numpy_aggregates.sums_by_group(slots, values, GROUPS)
    assert same(aggregates.sums_by_group(slots, values, GROUPS), expected)


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@given(batches(), st.sampled_from(["min", "max"]), st.sampled_from(KINDS))
def test_extremes_have_the_bytes_of_the_numpy_code(batch: Any, how: str, other: Any) -> None:
    slots, values = batch
    kind = np.promote_types(values.dtype, other)
    results = []
    for module in (aggregates, numpy_aggregates):
        state = np.full(GROUPS, start_of(how, kind), kind)
        module.extremes_by_group(how, slots, values, state)
        running = module.running_extremes(how, slots, values, state)
        results.append([state, running])
    assert all(map(same, *results))


@pytest.mark.parametrize("slot", [-1, GROUPS])
def test_slot_outside_of_the_state_raises_index_error(slot: int) -> None:
    values = np.arange(2)
    with pytest.raises(IndexError, match="slot of row 1"):
        aggregates.running_sums(np.array([0, slot], np.int32), values, np.zeros(GROUPS, np.int64))
