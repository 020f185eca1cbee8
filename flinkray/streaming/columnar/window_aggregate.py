"""Count, sum, minimum, maximum and mean by key and window, on columns.

Time is cut into *panes*, the largest pieces of which all windows are made; a pane has one number
per key and aggregate.  Sliding windows therefore cost no more per record than tumbling ones; panes
are put together when a window ends.  Keys that are in no pane any more are forgotten when they are
most of those that are known, so that keys that come for a while and then no more cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.state.descriptors import ValueStateDescriptor
from flinkray.state.key_numbers import KeyNumbers, Slots
from flinkray.state.keys import KeyHash
from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.columnar.grouping import (
    Values,
    extremes_by_group,
    start_of,
    sums_by_group,
    ufunc_of,
)
from flinkray.streaming.columnar.widening import wider_type
from flinkray.streaming.errors import StreamError, no_timestamps
from flinkray.streaming.operators.operator import (
    OperatorStateCapture,
    StreamOperator,
)
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.records.keying import Keys

KINDS = ("count", "sum", "min", "max", "mean")

_PANES: ValueStateDescriptor[Any] = ValueStateDescriptor("panes")

_SLICED = 1024
"""Panes in the time that a batch spans; where there are more, most of them are empty."""

Times = npt.NDArray[np.int64]

_FORGET_FROM = 4096
"""Known keys; of fewer none are forgotten."""


@dataclass(frozen=True)
class ColumnAggregate:
    """One aggregate: what its result is called, how it is made, and of which column."""

    name: str
    how: str
    column: str | None = None

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise StreamError(f"unknown aggregate {self.how!r}; there are {', '.join(KINDS)}")
        if self.column is None and self.how != "count":
            raise StreamError(f"{self.how} needs a column: {self.name}=(column, {self.how!r})")


class _Measure(NamedTuple):
    """A number kept per key and pane."""

    how: str
    column: str | None


class _Pane:
    """The numbers of one pane, by slot."""

    def __init__(self, size: int) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self.measures: dict[_Measure, Values] = {}

    def grown(self, array: Values, size: int, start: Any) -> Values:
        if len(array) >= size:
            return array
        grown: Values = np.full(max(size, 2 * len(array)), start, array.dtype)
        grown[: len(array)] = array
        return grown

    def widen(self, measure: _Measure, kind: np.dtype[Any]) -> None:
        """Keep the numbers of that measure as others."""
        array = self.measures.get(measure)
        if array is not None and array.dtype != kind:
            wider: Values = np.full(len(array), start_of(measure.how, kind), kind)
            known = np.flatnonzero(self.counts[: len(array)])
            wider[known] = array[known]
            self.measures[measure] = wider

    def keep(self, slots: npt.NDArray[np.intp], size: int) -> None:
        """These slots of the first *size*, in this order, and no others."""
        self.counts = self.grown(self.counts, size, 0)[slots]
        for measure, array in self.measures.items():
            start = start_of(measure.how, array.dtype)
            self.measures[measure] = self.grown(array, size, start)[slots]


class WindowAggregateOperator(StreamOperator):
    """See the module.  Records that come after their last window ended are dropped and counted.

    Args:
        size, slide, offset: the windows, in milliseconds; equal size and slide tumble.
    """

    def __init__(
        self,
        size: int,
        slide: int,
        offset: int,
        aggregates: Sequence[ColumnAggregate],
        keys: Keys,
    ) -> None:
        if keys.field is None:
            raise StreamError("aggregates of columns need key_by with the name of a column")
        self._size, self._slide, self._offset = size, slide, offset
        self._pane_size = math.gcd(size, slide)
        self._aggregates = tuple(aggregates)
        self.keys = keys
        self._key = keys.field

    def key_hash(self) -> KeyHash:
        return self.keys.hash_of

    def open(self) -> None:
        self._slots = KeyNumbers()
        self._look_at = _FORGET_FROM
        self._panes: dict[int, _Pane] = {}
        self._kinds: dict[_Measure, np.dtype[Any]] = {}
        """Of the numbers of a measure, in all panes."""
        self._watermark = MIN_TIMESTAMP
        self._key_type: pa.DataType | None = None
        self._late = self.context.metrics.counter("numLateRecordsDropped")
        measures = {
            _Measure("sum" if a.how == "mean" else a.how, a.column)
            for a in self._aggregates
            if a.how != "count"
        }
        self._measures = sorted(measures, key=str)
        assert self.keyed_state is not None
        self._stored = self.keyed_state.value_table(_PANES)
        for key in self._stored.places():
            self._import(key, self._stored.take(key))

    # --- records ------------------------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        if len(block):
            self.process_columns(block_to_columns(block))

    def process_columns(self, columns: Columns) -> None:
        times = columns.timestamps
        if times is None:
            raise no_timestamps("windows of event time need")
        if self._watermark > MIN_TIMESTAMP and len(times):
            columns, times = self._without_late(columns, times)
        if not len(times):
            return
        keys = self.keys.of_columns(columns)
        if keys is None:
            raise StreamError(
                f"there is no column {self._key!r} to key by: {columns.batch.schema.names}"
            )
        self._key_type = self._wider_key_type(keys.type)
        slots = self._slots.slots_of(keys)
        batch = columns.batch
        values = {m: _numbers(batch, m.column) for m in self._measures if m.column is not None}
        for measure, column in values.items():
            self._widen(measure, column.dtype)
        first = (int(times.min()) - self._offset) // self._pane_size
        last = (int(times.max()) - self._offset) // self._pane_size
        if first == last:
            self._add(first, slots, values)
            return
        if last - first <= _SLICED and not (times[1:] < times[:-1]).any():
            self._add_slices(first, last, times, slots, values)
            return
        panes = (times - self._offset) // self._pane_size
        for pane in np.unique(panes).tolist() if last - first > 64 else range(first, last + 1):
            mask = panes == pane
            mine = slots[mask]
            if len(mine):
                self._add(pane, mine, {m: column[mask] for m, column in values.items()})

    def _add_slices(
        self, first: int, last: int, times: Times, slots: Slots, values: dict[_Measure, Values]
    ) -> None:
        """Of records in order of time, those of a pane lie together: nothing is copied."""
        begins = np.arange(first + 1, last + 1) * self._pane_size + self._offset
        bounds = [0, *np.searchsorted(times, begins).tolist(), len(times)]
        for pane, (begin, end) in enumerate(pairwise(bounds), first):
            if begin < end:
                parts = {m: column[begin:end] for m, column in values.items()}
                self._add(pane, slots[begin:end], parts)

    def _wider_key_type(self, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        known = self._key_type
        wider = kind if known is None else wider_type(known, kind)
        if wider is None:
            raise StreamError(
                f"column {self._key!r} to key by is of type {known}, then of {kind}: cast it before"
            )
        return wider

    def _widen(self, measure: _Measure, kind: np.dtype[Any]) -> None:
        """All panes have numbers that hold these too."""
        if measure.how == "sum":
            kind = np.dtype(np.float64 if kind.kind == "f" else np.int64)
        known = self._kinds.get(measure)
        wider = kind if known is None else np.promote_types(known, kind)
        if known is None or wider != known:  # NumPy takes None for float64
            self._kinds[measure] = wider
            for pane in self._panes.values():
                pane.widen(measure, wider)

    def _without_late(self, columns: Columns, times: Any) -> tuple[Columns, Any]:
        """A record is late when the last window it belongs to has ended."""
        starts = times - (times - self._offset) % self._slide
        late = starts + (self._size - 1) <= self._watermark
        number = int(late.sum())
        if not number:
            return columns, times
        self._late.inc(number)
        kept = columns.take(np.flatnonzero(~late))
        return kept, kept.timestamps

    def _add(self, number: int, slots: Any, values: dict[_Measure, Values]) -> None:
        size = len(self._slots)
        pane = self._panes.get(number)
        if pane is None:
            pane = self._panes[number] = _Pane(size)
        pane.counts = pane.grown(pane.counts, size, 0)
        pane.counts[:size] += np.bincount(slots, minlength=size)
        for measure, column in values.items():
            kind = self._kinds[measure]
            start = start_of(measure.how, kind)
            array = pane.measures.get(measure)
            array = np.full(size, start, kind) if array is None else array
            array = pane.grown(array, size, start)
            pane.measures[measure] = array
            if measure.how == "sum":
                array[:size] += sums_by_group(slots, column, size)
            else:
                extremes_by_group(slots, column, array, ufunc_of(measure.how, kind))

    # --- windows ------------------------------------------------------------------------------

    def process_watermark(self, timestamp: int) -> None:
        before, self._watermark = self._watermark, timestamp
        for start in self._windows_that_end(before, timestamp):
            self._emit(start)
        self._drop_panes(timestamp)
        if len(self._slots) >= self._look_at:
            self._forget_keys()
        self.output.emit_watermark(timestamp)

    def _windows_that_end(self, before: int, watermark: int) -> list[int]:
        """Starts of the windows that have panes and end between the two watermarks, in order."""
        starts: set[int] = set()
        for number in self._panes:
            begin = number * self._pane_size + self._offset
            last = begin - (begin - self._offset) % self._slide
            starts.update(range(last, begin + self._pane_size - 1 - self._size, -self._slide))
        return sorted(s for s in starts if before < s + self._size - 1 <= watermark)

    def _emit(self, start: int) -> None:
        first = (start - self._offset) // self._pane_size
        numbers = range(first, first + self._size // self._pane_size)
        panes = [self._panes[number] for number in numbers if number in self._panes]
        size = len(self._slots)
        counts = np.zeros(size, np.int64)
        for pane in panes:
            counts[: len(pane.counts)] += pane.counts[:size]
        present = np.flatnonzero(counts)
        if not len(present):
            return
        columns = [
            self._key_array(present),
            pa.array(np.full(len(present), start, np.int64)),
            pa.array(np.full(len(present), start + self._size, np.int64)),
        ]
        names = [self._key, "window_start", "window_end"]
        for aggregate in self._aggregates:
            columns.append(pa.array(self._result(aggregate, panes, counts, present)))
            names.append(aggregate.name)
        timestamps = np.full(len(present), start + self._size - 1, np.int64)
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        self.output.emit_columns(Columns(batch, timestamps))

    def _key_array(self, present: Any) -> pa.Array:
        keys = self._slots.keys
        mine = [keys[slot] for slot in present.tolist()]
        try:
            return pa.array(mine, self._key_type)
        except pa.ArrowInvalid as error:
            raise StreamError(
                f"the keys of column {self._key!r} came as {self._key_type} and as integers that "
                f"are none ({error}): cast the column to one type before"
            ) from error

    def _result(
        self, aggregate: ColumnAggregate, panes: list[_Pane], counts: Any, present: Any
    ) -> Values:
        if aggregate.how == "count":
            number: Values = counts[present]
            return number
        how = "sum" if aggregate.how == "mean" else aggregate.how
        measure = _Measure(how, aggregate.column)
        parts = [pane.measures[measure] for pane in panes]
        start = start_of(how, parts[0].dtype)
        combined: Values = np.full(len(counts), start, parts[0].dtype)
        ufunc = ufunc_of(how, parts[0].dtype)
        for part in parts:
            size = min(len(part), len(counts))
            ufunc(combined[:size], part[:size], out=combined[:size])
        result: Values = combined[present]
        return result / counts[present] if aggregate.how == "mean" else result

    def _drop_panes(self, watermark: int) -> None:
        """A pane goes when the last window it belongs to has ended."""
        if watermark == MAX_TIMESTAMP:
            self._panes.clear()
            return
        for number in list(self._panes):
            begin = number * self._pane_size + self._offset
            last = begin - (begin - self._offset) % self._slide
            if last + self._size - 1 <= watermark:
                del self._panes[number]

    @property
    def keys_known(self) -> int:
        """How many keys have a place in the arrays of every pane."""
        return len(self._slots)

    def _forget_keys(self) -> None:
        """To be done when their number has doubled: it costs no more than giving them slots."""
        size = len(self._slots)
        present = np.zeros(size, np.bool_)
        for pane in self._panes.values():
            counts = pane.counts[:size]
            present[: len(counts)] |= counts > 0
        kept = np.flatnonzero(present)
        if 2 * len(kept) <= size:
            keys, self._slots = self._slots.keys, KeyNumbers()
            for slot in kept.tolist():
                self._slots.slot_of(keys[slot])
            for pane in self._panes.values():
                pane.keep(kept, size)
        self._look_at = max(_FORGET_FROM, 2 * len(self._slots))

    # --- snapshots ----------------------------------------------------------------------------

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        """By key, so that it can be divided: pane -> (count, numbers)."""
        by_key: dict[Any, dict[int, Any]] = {}
        for number, pane in self._panes.items():
            counts = pane.counts.tolist()
            measures = {measure: array.tolist() for measure, array in pane.measures.items()}
            for slot, key in enumerate(self._slots.keys[: len(counts)]):
                if counts[slot]:
                    numbers = {tuple(m): (a[slot], type(a[slot])) for m, a in measures.items()}
                    by_key.setdefault(key, {})[number] = (counts[slot], numbers)
        self._stored.put_all(by_key)
        try:
            return super().capture(checkpoint_id, since)
        finally:
            self._stored.clear()

    def _import(self, key: Any, panes: Any) -> None:
        slot = self._slots.slot_of(key)
        for number, (count, numbers) in panes.items():
            pane = self._panes.setdefault(number, _Pane(slot + 1))
            pane.counts = pane.grown(pane.counts, slot + 1, 0)
            pane.counts[slot] = count
            for (how, column), (value, python_type) in numbers.items():
                measure = _Measure(how, column)
                self._widen(measure, np.dtype(np.float64 if python_type is float else np.int64))
                kind = self._kinds[measure]
                start = start_of(how, kind)
                array = pane.measures.get(measure)
                array = np.full(slot + 1, start, kind) if array is None else array
                pane.measures[measure] = pane.grown(array, slot + 1, start)
                pane.measures[measure][slot] = value


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
