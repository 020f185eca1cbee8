"""Pairs of a join in windows: the compiled kernel gives the pairs of its NumPy definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels import joins, numpy_joins
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_joins import Side
from tests.kernels.test_aggregates import same

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with NumPy code")

KEYS = 4


@st.composite
def sides(draw: st.DrawFn) -> Side:
    """Rows in the order of their windows, some of them without a key."""
    few = st.integers(0, 3)
    windows = draw(st.lists(st.one_of(few, few, st.integers(-(2**63), 2**63 - 1)), max_size=12))
    size = len(windows)
    keys = draw(st.lists(st.integers(-1, KEYS - 1), min_size=size, max_size=size))
    return Side(np.sort(np.array(windows, np.int64)), np.array(keys, np.int32))


@given(sides(), sides())
def test_pairs_are_those_of_the_numpy_code(left: Side, right: Side) -> None:
    found, expected = (m.matching_rows(left, right, KEYS) for m in (joins, numpy_joins))
    assert all(map(same, found, expected))


@given(sides(), sides())
def test_numpy_code_finds_all_pairs_in_order(left: Side, right: Side) -> None:
    pairs = [
        (mine, theirs)
        for mine, key in enumerate(left.keys.tolist())
        for theirs, other in enumerate(right.keys.tolist())
        if key == other >= 0 and left.windows[mine] == right.windows[theirs]
    ]
    lefts, rights = numpy_joins.matching_rows(left, right, KEYS)
    assert list(zip(lefts.tolist(), rights.tolist(), strict=True)) == pairs


@pytest.mark.parametrize("place", [0, 1])
def test_key_that_is_out_of_range_raises_index_error(place: int) -> None:
    left, right = (Side(np.zeros(2, np.int64), np.zeros(2, np.int32)) for _ in range(2))
    (left, right)[place].keys[1] = KEYS
    with pytest.raises(IndexError, match="out of range"):
        joins.matching_rows(left, right, KEYS)


def test_compiled_kernel_never_writes_more_pairs_than_there_is_room_for() -> None:
    assert native is not None
    windows, keys = np.zeros(3, np.int64), np.zeros(3, np.int32)
    lefts = np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="more pairs"):
        native.match_rows(windows, keys, windows, keys, 1, lefts, lefts.copy())
