"""Numbers by key and pane. Windows consist of *panes*: pieces of time, as long as possible.

A pane has one number per key and aggregate, and is a namespace of the state. Panes may come in
parts that other tasks have aggregated: record batches with a key, a count (:data:`COUNT_OF_PART`)
and the numbers of all measures, with the begins of the panes as timestamps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels.numpy_aggregates import Values, start_of
from flinkray.kernels.numpy_panes import Step, Times, runs_of_panes, upper_halves
from flinkray.kernels.panes import add_to_panes
from flinkray.state.columnar_table import ColumnarTable, NamespaceArrays
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.widening import wider_type

KINDS = ("count", "sum", "min", "max", "mean")

COUNT = "count"
"""Name of the column of the number of records, in the state."""
COUNT_OF_PART = "__count_of_part"
"""Name of the column of the number of records in a part. No user's column has this name."""

_SPAN = 4096
"""Most panes that a batch may span for a table of the panes in it. In a longer span most are empty.
"""


@dataclass(frozen=True)
class ColumnAggregate:
    """One aggregate: the name of its result, the kind of aggregate, and its column."""

    name: str
    how: str
    column: str | None = None

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise StreamError(f"unknown aggregate {self.how!r}; there are {', '.join(KINDS)}")
        if self.column is None and self.how != "count":
            raise StreamError(f"{self.how} needs a column: {self.name}=(column, {self.how!r})")

    @property
    def measure(self) -> Measure | None:
        """Which number is kept per key and pane: how, of which column. None: only the count is."""
        if self.column is None:
            return None
        return Measure("sum" if self.how == "mean" else self.how, self.column)

    @property
    def measures(self) -> Sequence[Measure]:
        """All measures (numbers by key and pane) that the aggregate needs. A mean also needs the
        upper halves of its sum."""
        measure = self.measure
        if measure is None:
            return ()
        return (measure, measure.upper) if self.how == "mean" else (measure,)


_UPPER = "upper"


class Measure(NamedTuple):
    """Names a number that is kept for each key and pane, such as the sum of a column."""

    how: str
    column: str

    @property
    def name(self) -> str:
        return f"{self.how} {self.column}"

    @property
    def upper(self) -> Measure:
        """The measure that is kept beside a sum of 64-bit integers, because that sum may wrap.
        It sums the :func:`upper_halves` of the integers. Sums of smaller numbers do not wrap."""
        return Measure(_UPPER, self.column)

    @property
    def sum(self) -> Measure:
        """The sum for which this measure keeps the upper halves; the inverse of :attr:`upper`."""
        return Measure("sum", self.column)


class PaneTimes(NamedTuple):
    """Divides time into panes, for windows of *size* and *slide* milliseconds."""

    size: int
    slide: int
    offset: int

    @property
    def pane_size(self) -> int:
        return math.gcd(self.size, self.slide)

    def begin_of(self, pane: int) -> int:
        return pane * self.pane_size + self.offset


class Panes:
    """The numbers of all keys and panes of a subtask. In *table* they are kept with the number of
    the pane as namespace."""

    def __init__(
        self,
        times: PaneTimes,
        aggregates: Iterable[ColumnAggregate],
        keys: Keys,
        table: ColumnarTable,
        name: str,
    ) -> None:
        self.times = times
        self.table = table
        self._keys = keys
        self.kinds: dict[Measure, np.dtype[Any]] = {}
        """The type of each measure's numbers, in all panes."""
        self._key_type: pa.DataType | None = None
        self._all_keys: tuple[list[Any], int, pa.DataType | None, pa.Array] = [], 0, None, None
        """The last array of all keys: the table's list of keys, its length then, the type, the
        array."""
        self._measures = sorted({measure for a in aggregates for measure in a.measures})
        self._open_columns(name)

    def _open_columns(self, name: str) -> None:
        stored = {measure: self.table.kind_of(measure.name) for measure in self._measures}
        missing = [m.name for m, kind in stored.items() if kind is None and m.how != _UPPER]
        if len(self.table) and missing:
            raise StreamError(
                f"{name}: the state that is restored has no {', '.join(missing)} of the windows "
                "that are open; give the operator the aggregates it had, or another uid"
            )
        self.table.column(COUNT, np.int64)
        for measure, kind in stored.items():
            if kind is not None:
                self._widen(measure, kind)
        for measure in self._measures:
            # Some subtasks may have stored sums of integers, which wrap, and other subtasks sums of
            # doubles.
            if self.has_upper(measure) and self.kinds[measure].kind == "f":
                self._unwrap_all(measure)

    def has_upper(self, measure: Measure) -> bool:
        """Return whether the upper halves (:attr:`Measure.upper`) are kept beside this measure,
        because it is a sum of integers that may exceed 64 bits."""
        return measure.how == "sum" and measure.upper in self.kinds

    # --- adding records ---------------------------------------------------------------------------

    def add(self, columns: Columns, times: Times) -> None:
        """Add a batch of records, or of parts of panes from other tasks. *times*: the timestamps.
        The batch must not be empty."""
        keys = self._keys.of_columns(columns)
        if keys is None:
            raise StreamError(
                f"there is no column {self._keys.field!r} to key by: {columns.batch.schema.names}"
            )
        self._key_type = self._wider_key_type(keys.type)
        slots = self.table.slots_of_column(keys)
        counts, values = self._numbers(columns.batch)
        for measure, column in values.items():
            self._widen(measure, column.dtype)
        runs = runs_of_panes(times, self.times.offset, self.times.pane_size)
        numbers, places = _distinct(runs.numbers)
        panes = [self.table.in_namespace(number) for number in numbers.tolist()]
        steps = [Step("count" if counts is None else "sum", counts, _arrays(panes, COUNT))]
        for measure, column in values.items():
            # Parts bring the sums of upper halves themselves.
            how = "sum" if measure.how == _UPPER and counts is not None else measure.how
            steps.append(Step(how, column, _arrays(panes, measure.name)))
        marks = [pane.marks() for pane in panes]
        add_to_panes(slots, runs.ends, places, marks, self.table.log.number, steps)

    def _numbers(self, batch: pa.RecordBatch) -> tuple[Values | None, dict[Measure, Values]]:
        """Return (number of records that each row of *batch* stands for, the numbers to add for
        each measure). The first item is None if each row is one record, and not a part of a pane.
        """
        numbers: dict[Measure, Values] = {}
        if not is_part(batch):
            for measure in self._measures:
                column = _numbers(batch, measure.column)
                may_wrap = column.dtype in (np.int64, np.uint64)
                if measure.how != _UPPER or (may_wrap and not self._is_double(measure.sum)):
                    numbers[measure] = column
            return None, numbers
        for measure in self._measures:
            # Parts of earlier versions have no upper halves, and parts without them have nulls
            # there.
            if measure.name in batch.schema.names:
                column = batch.column(measure.name)
                if column.null_count < len(column):
                    numbers[measure] = column.fill_null(0).to_numpy()
            elif (total := numbers[measure.sum]).dtype.kind != "f":
                numbers[measure] = upper_halves(total)
        for measure in [each for each in numbers if self._is_double(each)]:
            upper, total = numbers.pop(measure.upper, None), numbers[measure]
            if upper is not None and total.dtype.kind != "f":
                numbers[measure] = unwrapped(total, upper)
        return batch.column(1).to_numpy(), numbers

    def _is_double(self, measure: Measure) -> bool:
        """Return whether the measure is a sum of doubles, which does not wrap."""
        return measure.how == "sum" and self.kinds.get(measure) == np.float64

    def _wider_key_type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        known = self._key_type
        wider = kind if known is None else wider_type(known, kind)
        if wider is None:
            raise StreamError(
                f"column {self._keys.field!r} to key by is of type {known}, then of {kind}: cast "
                "it before"
            )
        return wider

    def _widen(self, measure: Measure, kind: np.dtype[Any]) -> None:
        if measure.how in ("sum", _UPPER):
            kind = np.dtype(np.float64 if kind.kind == "f" else np.int64)
        known = self.kinds.get(measure)
        if known is None or np.promote_types(known, kind) != known:
            is_new = self.table.kind_of(measure.name) is None
            self.kinds[measure] = self.table.wide_column(
                measure.name, kind, partial(start_of, measure.how)
            )
            if measure.how == _UPPER and is_new:
                self._begin_upper(measure)
            elif known is not None and self.has_upper(measure):  # from integers to doubles
                self._unwrap_all(measure)

    def _begin_upper(self, measure: Measure) -> None:
        """Fill in the upper halves of stored sums that had none: the sums were of integers of less
        than 64 bits, or were restored from an earlier version of flinkray."""
        if measure.sum in self.kinds:
            for pane in self.table.namespaces.values():
                pane.values(measure.name)[:] = upper_halves(pane.values(measure.sum.name))
                pane.touch(np.flatnonzero(pane.present()))

    def _unwrap_all(self, measure: Measure) -> None:
        """Replace stored integer sums, which may have wrapped at 64 bits, by doubles that have not
        wrapped: the measure's sums are doubles from now on."""
        for pane in self.table.namespaces.values():
            total, upper = pane.values(measure.name), pane.values(measure.upper.name)
            were_integers = upper != 0
            total[were_integers] = unwrapped(total[were_integers], upper[were_integers])
            upper[:] = 0

    # --- reading ----------------------------------------------------------------------------------

    def key_array(self, present: Any) -> pa.Array:
        """Return the keys at the indices *present* as an Arrow array."""
        keys = self.table.keys
        if not np.array_equal(present, np.arange(len(keys))):
            return self._array_of([keys[slot] for slot in present.tolist()])
        of, number, kind, array = self._all_keys
        if of is not keys or number != len(keys) or kind != self._key_type:
            array = self._array_of(keys)
            self._all_keys = keys, len(keys), self._key_type, array
        return array

    def _array_of(self, keys: list[Any]) -> pa.Array:
        try:
            return pa.array(keys, self._key_type)
        except pa.ArrowInvalid as error:
            raise StreamError(
                f"the keys of column {self._keys.field!r} came as {self._key_type} and as integers "
                f"that are none ({error}): cast the column to one type before"
            ) from error

    def part(self, numbers: Sequence[int]) -> Columns:
        """Return the panes numbered *numbers* as columns with a row for each key and pane, whose
        timestamp is the begin of the pane. A task combines such parts of several tasks."""
        slots, times, counts = [], [], []
        values: dict[Measure, list[Values]] = {measure: [] for measure in self._measures}
        for number in numbers:
            pane = self.table.namespaces[number]
            count = pane.first_values(COUNT)
            present = np.flatnonzero(count)
            slots.append(present)
            counts.append(count[present])
            times.append(np.full(len(present), self.times.begin_of(number), np.int64))
            for measure, of_measure in values.items():
                if measure in self.kinds:
                    of_measure.append(pane.first_values(measure.name)[present])
        assert self._keys.field is not None
        rows = sum(map(len, slots))
        batch = pa.RecordBatch.from_arrays(
            [
                self.key_array(np.concatenate(slots)),
                pa.array(np.concatenate(counts)),
                *(
                    pa.array(np.concatenate(parts)) if parts else pa.nulls(rows, pa.int64())
                    for parts in values.values()
                ),
            ],
            names=[self._keys.field, COUNT_OF_PART, *(m.name for m in self._measures)],
        )
        return Columns(batch, np.concatenate(times))


def _distinct(numbers: Times) -> tuple[Times, npt.NDArray[np.int64]]:
    """Return the distinct numbers in ascending order, and the index of each number in them."""
    if len(numbers) == 1:
        return numbers, np.zeros(1, np.int64)
    first, last = int(numbers.min()), int(numbers.max())
    if last - first > _SPAN:
        distinct, places = np.unique(numbers, return_inverse=True)
        return distinct, places
    is_there = np.bincount(numbers - first) > 0
    places = (np.cumsum(is_there) - 1).take(numbers - first)
    return np.flatnonzero(is_there) + first, places


def _arrays(panes: Sequence[NamespaceArrays], name: str) -> list[Values]:
    return [pane.values(name) for pane in panes]


def unwrapped(sums: Values, uppers: Values) -> Values:
    """Return the doubles that sums modulo 2**64 would be if they had not wrapped.
    *uppers*: the sums of the :func:`upper_halves` of the summed numbers."""
    sums = sums.astype(np.float64)
    wraps = np.rint((uppers * 2.0**32 - sums) / 2.0**64)
    whole: Values = sums + wraps * 2.0**64
    return whole


def is_part(batch: pa.RecordBatch) -> bool:
    """Return whether the rows are parts of panes, not records."""
    return bool(batch.num_columns > 1 and batch.schema.names[1] == COUNT_OF_PART)


def records_in(batch: pa.RecordBatch) -> int:
    """Return the number of records in the batch, or of those from which its parts were made."""
    if not is_part(batch):
        return batch.num_rows  # type: ignore[no-any-return]
    return int(batch.column(1).to_numpy().sum())


def _numbers(batch: pa.RecordBatch, name: str | None) -> Values:
    if name not in batch.schema.names:
        raise StreamError(f"there is no column {name!r} to aggregate: {batch.schema.names}")
    column = batch.column(name)
    if column.null_count:
        raise StreamError(f"column {name!r} has {column.null_count} nulls, which cannot be added")
    values: Values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "iuf":
        raise StreamError(f"column {name!r} holds {column.type}, not numbers")
    return values
