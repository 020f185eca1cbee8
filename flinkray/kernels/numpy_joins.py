"""Pairs of rows with equal keys in a window, in NumPy: defines the results of the kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flinkray.kernels.numpy_aggregates import Slots

Places = npt.NDArray[np.int64]


class Side(NamedTuple):
    """The rows of one input of a join, in the order of their windows."""

    windows: npt.NDArray[np.int64]
    """The start of each row's window, in ascending order."""
    keys: Slots
    """The number of each row's key; -1: the row has no partner."""


def matching_rows(left: Side, right: Side, keys: int) -> tuple[Places, Places]:
    """Return the rows of both inputs that have the same key and window: the left row of each pair,
    and the right row. Pairs are in the order of their left rows, then of their right rows. Numbers
    of keys are less than *keys*."""
    windows, places = np.unique(np.concatenate([left.windows, right.windows]), return_inverse=True)
    codes = places * np.int64(keys) + np.concatenate([left.keys, right.keys])
    if len(windows) * keys > 4 * len(codes):  # too many for arrays with an item for each
        codes = np.unique(codes, return_inverse=True)[1]
    my_places, my_codes = _with_keys(left.keys, codes[: len(left.keys)])
    their_places, their_codes = _with_keys(right.keys, codes[len(left.keys) :])
    order = np.argsort(their_codes, kind="stable")
    size = max(codes.max(initial=-1) + 1, 0)
    counts = np.bincount(their_codes, minlength=size)
    starts = np.cumsum(counts) - counts
    partners = counts[my_codes]
    before = np.cumsum(partners) - partners
    of_pairs = np.arange(partners.sum()) + np.repeat(starts[my_codes] - before, partners)
    lefts = np.repeat(my_places, partners)
    return lefts, their_places[order[of_pairs]]


def _with_keys(keys: Slots, codes: Any) -> tuple[Places, Any]:
    """Return (the rows that have a key, their codes)."""
    places = np.flatnonzero(keys >= 0)
    return places, codes[places]
