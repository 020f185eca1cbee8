"""Count, sum, minimum, maximum and mean by key and window, on columns.

Time is cut into *panes*, the largest pieces of which all windows are made; a pane has one number
per key and aggregate, and is a namespace of the state.  Sliding windows therefore cost no more per
record than tumbling ones; panes are put together when a window ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.state.columnar_table import NamespaceArrays
from flinkray.state.descriptors import ListStateDescriptor
from flinkray.state.key_numbers import Slots
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

_COUNT = "count"
_WATERMARK: ListStateDescriptor[int] = ListStateDescriptor("watermark")
"""Of panes that are kept, earlier windows have ended already."""

_SLICED = 1024
"""Panes in the time that a batch spans; where there are more, most of them are empty."""

Times = npt.NDArray[np.int64]


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
    column: str

    @property
    def name(self) -> str:
        """In the state."""
        return f"{self.how} {self.column}"


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
        assert self.keyed_state is not None
        self._table = self.keyed_state.columns("panes", namespaced=True)
        self._kinds: dict[_Measure, np.dtype[Any]] = {}
        """Of the numbers of a measure, in all panes."""
        # All subtasks had the same one, unless barriers have overtaken it.
        watermarks = self.operator_state.union_list_state(_WATERMARK).get()
        self._watermark = min(watermarks, default=MIN_TIMESTAMP)
        self._key_type: pa.DataType | None = None
        self._late = self.context.metrics.counter("numLateRecordsDropped")
        measures = {
            _Measure("sum" if a.how == "mean" else a.how, a.column)
            for a in self._aggregates
            if a.column is not None
        }
        self._measures = {measure.name: measure for measure in sorted(measures)}
        self._open_columns()

    def _open_columns(self) -> None:
        table = self._table
        stored = {name: table.kind_of(name) for name in self._measures}
        missing = [name for name, kind in stored.items() if kind is None]
        if len(table) and missing:
            raise StreamError(
                f"{self.context.name}: the state that is restored has no {', '.join(missing)} of "
                "the windows that are open; give the operator the aggregates it had, or another uid"
            )
        table.column(_COUNT, np.int64)
        for name, kind in stored.items():
            if kind is not None:
                self._widen(self._measures[name], kind)

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
        slots = self._table.slots_of_column(keys)
        batch = columns.batch
        values = {m: _numbers(batch, m.column) for m in self._measures.values()}
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
        if known is None or np.promote_types(known, kind) != known:
            self._kinds[measure] = self._table.wide_column(
                measure.name, kind, partial(start_of, measure.how)
            )

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
        size = len(self._table)
        pane = self._table.in_namespace(number)
        counts = np.bincount(slots, minlength=size)
        pane.touch(np.flatnonzero(counts))
        pane.values(_COUNT)[:] += counts
        for measure, column in values.items():
            array = pane.values(measure.name)
            if measure.how == "sum":
                array += sums_by_group(slots, column, size)
            else:
                ufunc = ufunc_of(measure.how, self._kinds[measure])
                extremes_by_group(slots, column, array, ufunc)

    # --- windows ------------------------------------------------------------------------------

    def process_watermark(self, timestamp: int) -> None:
        before = self._watermark
        if timestamp > before:  # it may be the first one after a restore
            self._watermark = timestamp
            for start in self._windows_that_end(before, timestamp):
                self._emit(start)
            self._table.remove_up_to(self._last_pane_before(timestamp))
        self.output.emit_watermark(timestamp)

    def _windows_that_end(self, before: int, watermark: int) -> list[int]:
        """Starts of the windows that have panes and end between the two watermarks, in order."""
        starts: set[int] = set()
        for number in self._table.namespaces:
            begin = number * self._pane_size + self._offset
            last = begin - (begin - self._offset) % self._slide
            starts.update(range(last, begin + self._pane_size - 1 - self._size, -self._slide))
        return sorted(s for s in starts if before < s + self._size - 1 <= watermark)

    def _emit(self, start: int) -> None:
        first = (start - self._offset) // self._pane_size
        numbers = range(first, first + self._size // self._pane_size)
        known = self._table.namespaces
        panes = [known[number] for number in numbers if number in known]
        counts = np.zeros(len(self._table), np.int64)
        for pane in panes:
            part = pane.first_values(_COUNT)
            counts[: len(part)] += part
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
        keys = self._table.keys
        mine = [keys[slot] for slot in present.tolist()]
        try:
            return pa.array(mine, self._key_type)
        except pa.ArrowInvalid as error:
            raise StreamError(
                f"the keys of column {self._key!r} came as {self._key_type} and as integers that "
                f"are none ({error}): cast the column to one type before"
            ) from error

    def _result(
        self,
        aggregate: ColumnAggregate,
        panes: Sequence[NamespaceArrays],
        counts: Any,
        present: Any,
    ) -> Values:
        if aggregate.column is None:
            number: Values = counts[present]
            return number
        measure = _Measure("sum" if aggregate.how == "mean" else aggregate.how, aggregate.column)
        kind = self._kinds[measure]
        combined: Values = np.full(len(counts), start_of(measure.how, kind), kind)
        ufunc = ufunc_of(measure.how, kind)
        for pane in panes:
            part = pane.first_values(measure.name)
            ufunc(combined[: len(part)], part, out=combined[: len(part)])
        result: Values = combined[present]
        return result / counts[present] if aggregate.how == "mean" else result

    def _last_pane_before(self, watermark: int) -> int:
        """A pane goes when the last window it belongs to has ended."""
        if watermark == MAX_TIMESTAMP:
            return MAX_TIMESTAMP
        last_window = (watermark - self._size + 1 - self._offset) // self._slide
        return (last_window + 1) * self._slide // self._pane_size - 1

    @property
    def keys_known(self) -> int:
        """How many keys have a place in the arrays of every pane."""
        return len(self._table)

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        watermark = self._watermark
        # After the last one, nothing is known to have come from a stream that goes on.
        kept = [] if watermark == MAX_TIMESTAMP else [watermark]
        self.operator_state.union_list_state(_WATERMARK).update(kept)
        return super().capture(checkpoint_id, since)


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
