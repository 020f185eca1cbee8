"""Pairs of rows with equal keys in a window."""

from __future__ import annotations

import numpy as np

from flinkray.kernels import numpy_joins
from flinkray.kernels.aggregates import plain
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_joins import Places, Side


def matching_rows(left: Side, right: Side, keys: int) -> tuple[Places, Places]:
    """Return the rows of both inputs that have the same key and window: the left row of each pair,
    and the right row. Pairs are in the order of their left rows, then of their right rows. Numbers
    of keys are less than *keys*."""
    if native is None or len(right.keys) >= np.iinfo(np.int32).max:
        return numpy_joins.matching_rows(left, right, keys)
    sides = (
        plain(left.windows, np.int64),
        plain(left.keys, np.int32),
        plain(right.windows, np.int64),
        plain(right.keys, np.int32),
    )
    pairs = native.match_rows(*sides, keys)
    lefts, rights = np.empty(pairs, np.int64), np.empty(pairs, np.int64)
    native.match_rows(*sides, keys, lefts, rights)
    return lefts, rights
