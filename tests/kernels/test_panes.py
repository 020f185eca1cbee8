"""Numbers by slot and pane: the compiled kernels give the same bytes as their NumPy definitions."""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flinkray.kernels import numpy_panes, panes
from flinkray.kernels.compiled import native
from flinkray.kernels.numpy_aggregates import start_of
from flinkray.kernels.numpy_panes import Step
from flinkray.streaming.columnar.panes import ColumnAggregate, PaneTimes
from flinkray.streaming.columnar.window_aggregate import WindowAggregateOperator
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from flinkray.testing.operator_harness import OperatorHarness
from tests.kernels.test_aggregates import GROUPS, KINDS, same

pytestmark = pytest.mark.skipif(native is None, reason="compares compiled kernels with NumPy code")

INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def times_of_rows(draw: st.DrawFn) -> tuple[Any, int, int]:
    """Times in or out of order, the offset of panes, and their size; also the most extreme."""
    size = draw(st.one_of(st.integers(1, 20), st.integers(1, 2**63 - 1)))
    first = draw(st.one_of(st.integers(-50, 50), INT64))
    near = st.integers(max(first - 60, -(2**63)), min(first + 60, 2**63 - 1))
    times = draw(st.lists(st.one_of(near, near, near, INT64), max_size=12))
    if draw(st.booleans()):
        times.sort()
    both = np.repeat(np.array(times, np.int64), draw(st.sampled_from([2, 2, 40, 150])))
    offset = draw(st.one_of(st.integers(-30, 30), INT64))
    return both[::2] if draw(st.booleans()) else both, offset, size


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@given(times_of_rows())
def test_runs_of_panes_are_the_runs_of_equal_numbers_of_panes(example: Any) -> None:
    times, offset, size = example
    found = numpy_panes.runs_of_panes(times, offset, size)
    wrapped = [(time - offset + 2**63) % 2**64 - 2**63 for time in times.tolist()]
    runs = [(number, len(list(run))) for number, run in groupby(time // size for time in wrapped)]
    assert found.numbers.tolist() == [number for number, _ in runs]
    assert found.ends.tolist() == list(accumulate(length for _, length in runs))


@st.composite
def steps_of(draw: st.DrawFn, rows: int, number: int) -> Step:
    """A step of any kind, for values of any type, and different states of the panes."""
    how = draw(st.sampled_from(["count", "sum", "upper", "min", "max"]))
    if how == "count":
        return Step(how, None, [np.arange(GROUPS) + place for place in range(number)])
    kinds = [np.dtype("i8"), np.dtype("u8")] if how == "upper" else KINDS
    kind = draw(st.sampled_from(kinds))
    data = draw(st.binary(min_size=2 * rows * kind.itemsize, max_size=2 * rows * kind.itemsize))
    values = np.frombuffer(data, kind)[:: draw(st.sampled_from([1, 2]))][:rows]
    if how in ("min", "max"):
        wide = np.promote_types(kind, draw(st.sampled_from(KINDS)))
    else:
        may_wrap = how == "upper" or (kind.kind != "f" and draw(st.booleans()))
        wide = np.dtype(np.int64 if may_wrap else np.float64)
    first = start_of(how, wide)
    return Step(how, values, [np.full(GROUPS, first, wide) for _ in range(number)])


@st.composite
def additions(draw: st.DrawFn) -> tuple[Any, ...]:
    """Slots, ends and panes of runs, and steps."""
    lengths = draw(st.lists(st.integers(1, 5), max_size=6))
    rows, number = sum(lengths), draw(st.integers(1, 4))
    slots = draw(st.lists(st.integers(0, GROUPS - 1), min_size=rows, max_size=rows))
    places = draw(
        st.lists(st.integers(0, number - 1), min_size=len(lengths), max_size=len(lengths))
    )
    steps = draw(st.lists(steps_of(rows, number), max_size=3))
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.array(slots, np.int32), ends, np.array(places, np.int64), number, steps


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # random doubles
@given(additions(), st.integers(0, 9))
def test_numbers_of_panes_have_the_bytes_of_the_numpy_code(example: Any, mark: int) -> None:
    slots, ends, places, number, steps = example
    results = []
    for module in (panes, numpy_panes):
        marks = [np.full(GROUPS, -1, np.int64) for _ in range(number)]
        own = [step._replace(states=[state.copy() for state in step.states]) for step in steps]
        module.add_to_panes(slots, ends, places, marks, mark, own)
        results.append([*marks, *(state for step in own for state in step.states)])
    assert all(map(same, *results))


def test_rows_of_several_chunks_have_the_numbers_of_the_numpy_code() -> None:
    rows = 20_000
    slots, values = np.arange(rows, dtype=np.int32) % GROUPS, np.arange(rows)
    ends, places = np.array([5, 9000, 19_000, rows]), np.array([1, 0, 1, 2])
    results = []
    for module in (panes, numpy_panes):
        marks, sums = ([np.zeros(GROUPS, np.int64) for _ in range(3)] for _ in range(2))
        module.add_to_panes(slots, ends, places, marks, 1, [Step("sum", values, sums)])
        results.append(sums)
    assert all(map(same, *results))


@pytest.mark.parametrize("is_compiled_first", [True, False])
def test_windows_stored_with_kernels_are_restored_without_and_the_reverse(
    is_compiled_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use(is_compiled: bool) -> None:
        monkeypatch.setattr(panes, "native", native if is_compiled else None)

    def harness(restore: Any = None) -> OperatorHarness:
        measures = [ColumnAggregate(how, how, "v") for how in ("sum", "min", "max", "mean")]
        aggregates = [ColumnAggregate("n", "count"), *measures]
        operator = WindowAggregateOperator(PaneTimes(20, 10, 3), aggregates, Keys("k"))
        return OperatorHarness(operator, keyed=True, restore=restore)

    def add(h: OperatorHarness) -> None:
        rows = {"k": ["a", "b", "a", "b"], "v": [2**62, -1, 2**62, 5], "t": [5, 31, 12, 5]}
        batch = pa.record_batch(rows)
        h.process_columns(Columns(batch, batch["t"].to_numpy()))

    results = []
    for switches in (True, False):
        use(is_compiled_first)
        h = harness()
        add(h)
        if switches:
            use(not is_compiled_first)
            h = harness(h.snapshot())
        add(h)
        h.watermark(100)
        results.append(sorted(h.records(), key=repr))
    assert results[0] == results[1]
    assert len(results[0]) == 6


@pytest.mark.parametrize(
    ("slot", "end", "place"), [(GROUPS, 2, 0), (-1, 2, 0), (0, 3, 0), (0, 2, 1), (0, 2, -1)]
)
def test_row_or_pane_out_of_range_raises_index_error(slot: int, end: int, place: int) -> None:
    states = [np.zeros(GROUPS, np.int64)]
    with pytest.raises(IndexError, match="out of range"):
        panes.add_to_panes(
            np.array([0, slot], np.int32),
            np.array([end]),
            np.array([place]),
            states,
            0,
            [Step("count", None, states)],
        )
