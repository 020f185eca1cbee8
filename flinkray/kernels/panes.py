"""Counts, sums and extremes by slot and pane of the rows of a batch. A pane is a piece of time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flinkray.kernels import numpy_panes
from flinkray.kernels.aggregates import code_of, plain, taken_values
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_aggregates import Slots, Values
from flinkray.kernels.numpy_panes import Step


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
    slots = plain(slots, np.int32)
    taken = None if native is None else [_taken(slots, step) for step in steps]
    if native is None or taken is None or None in taken:
        numpy_panes.add_to_panes(slots, ends, places, marks, mark, steps)
    else:
        native.add_to_panes(slots, ends, places, marks, mark, tuple(taken))


def _taken(slots: Slots, step: Step) -> tuple[str, Values | None, Sequence[Values]] | None:
    """Return the step as the compiled kernel takes it; None: it does not take the arrays."""
    how, values, states = step
    if any(not state.flags.carray for state in states):
        return None
    if values is None:
        return how, None, states
    if how == "upper":
        return f"upper {code_of(values)}", plain(values, values.dtype.newbyteorder("=")), states
    if how == "sum" and states[0].dtype.kind == "f" and values.dtype != np.float32:
        values = values.astype(np.float64, copy=False)
    taken = taken_values(how, slots, values, states[0])
    return None if taken is None else (f"{how} {code_of(taken)}", taken, states)
