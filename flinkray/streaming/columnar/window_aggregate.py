"""Count, sum, minimum, maximum and mean by key and window, on columns.

When a window ends, its panes (:mod:`flinkray.streaming.columnar.panes`) are combined.

Usually all key groups of a subtask have the subtask's watermark. After a restore with more or fewer
subtasks, its key groups may come from several subtasks. Their watermarks may differ, because a
barrier had overtaken a watermark on the way to some of them. Then a window that has ended in some
key groups is still open in other key groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.core.key_group_ranges import KeyGroupRange
from flinkray.kernels.numpy_aggregates import Values, start_of, ufunc_of
from flinkray.kernels.numpy_panes import Times
from flinkray.state.backend import KeyedStateBackend
from flinkray.state.columnar_table import NamespaceArrays
from flinkray.state.descriptors import ListStateDescriptor
from flinkray.state.key_group_assignment import KeyGroupAssigner, KeyHash
from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.columnar.panes import (
    COUNT,
    ColumnAggregate,
    Measure,
    Panes,
    PaneTimes,
    records_in,
    unwrapped,
)
from flinkray.streaming.columnar.window_operators import WINDOW_END, WINDOW_START
from flinkray.streaming.errors import StreamError, no_timestamps
from flinkray.streaming.operators.operator import (
    OperatorStateCapture,
    StreamOperator,
)
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Block, Columns
from flinkray.streaming.records.keying import Keys
from flinkray.streaming.records.typeinfo import TypeInformation

_WATERMARKS: ListStateDescriptor[Stored] = ListStateDescriptor("watermarks")
"""Watermarks by key group. Windows that end before them are not put out again after a restore,
though the state still has some of their panes."""


class WindowAggregateOperator(StreamOperator):
    """Aggregates columns by key and window. Late records are dropped and counted.
    A record is late when its last window has ended. The columns may be parts of panes, which tasks
    before the exchange have aggregated."""

    def __init__(
        self,
        times: PaneTimes,
        aggregates: Sequence[ColumnAggregate],
        keys: Keys,
        input_type: TypeInformation | None = None,
    ) -> None:
        if keys.field is None:
            raise StreamError("aggregates of columns need key_by with the name of a column")
        taken = (keys.field, WINDOW_START, WINDOW_END)
        if twice := [aggregate.name for aggregate in aggregates if aggregate.name in taken]:
            raise StreamError(
                f"results have a column {twice[0]!r} already, as they have the key, "
                f"{WINDOW_START!r} and {WINDOW_END!r}: give the aggregate another name"
            )
        self._times = times
        self._aggregates = tuple(aggregates)
        self.keys = keys
        self._key = keys.field
        self._input_type = input_type

    def key_hash(self) -> KeyHash:
        return self.keys.hash_of

    def open(self) -> None:
        assert self.keyed_state is not None
        self._table = self.keyed_state.columns("panes", namespaced=True)
        self._panes = Panes(
            self._times, self._aggregates, self.keys, self._table, self.context.name
        )
        stored = self.operator_state.union_list_state(_WATERMARKS).get()
        self._ended = KeyGroupWatermarks(self.keyed_state, stored)
        self._watermark = self._ended.earliest
        self._late = self.context.metrics.counter("numLateRecordsDropped")

    # --- records ------------------------------------------------------------------------------

    def process_block(self, block: Block) -> None:
        if len(block):
            self.process_columns(block_to_columns(block, self._input_type, self._key))

    def process_columns(self, columns: Columns) -> None:
        times = columns.timestamps
        if times is None:
            raise no_timestamps("windows of event time need")
        if self._ended.latest > MIN_TIMESTAMP and len(times):
            columns, times = self._without_late(columns, times)
        if len(times):
            self._panes.add(columns, times)

    def _without_late(self, columns: Columns, times: Times) -> tuple[Columns, Any]:
        """Count late records, and return (the other records, their timestamps). A record is late
        when the watermark of its key group has passed the end of its last window or, if no window
        contains the record, its timestamp. Watermarks of key groups may differ after a restore."""
        size, slide, offset = self._times
        first = int(times.min())
        last_of_first = max(first - (first - offset) % slide + (size - 1), first)
        if last_of_first > self._ended.latest:  # the last windows of other records end no earlier
            return columns, times
        last = np.maximum(times - (times - offset) % slide + (size - 1), times)
        late = last <= self._watermark
        if self._ended.latest > self._watermark:
            places = np.flatnonzero(~late & (last <= self._ended.latest))
            keys = self.keys.of_columns(columns)
            if keys is not None and len(places):
                of_places = keys.take(pa.array(places)).to_pylist()
                late[places] = ~self._ended.are_before(last[places], of_places)
        if not late.any():
            return columns, times
        kept = columns.take(np.flatnonzero(~late))
        self._late.inc(records_in(columns.batch) - records_in(kept.batch))
        return kept, kept.timestamps

    # --- windows ------------------------------------------------------------------------------

    def process_watermark(self, timestamp: int) -> None:
        before = self._watermark
        if timestamp > before:  # not if a restore was from a later time
            self._watermark = timestamp
            for start in self._windows_that_end(before, timestamp):
                self._emit(start)
            self._ended.advance(timestamp)
            self._table.remove_up_to(self._last_pane_before(timestamp))
        self.output.emit_watermark(timestamp)

    def _windows_that_end(self, before: int, watermark: int) -> list[int]:
        size, slide, offset = self._times
        starts: set[int] = set()
        for number in self._table.namespaces:
            begin = self._times.begin_of(number)
            last = begin - (begin - offset) % slide
            starts.update(range(last, begin + self._times.pane_size - 1 - size, -slide))
        return sorted(s for s in starts if before < s + size - 1 <= watermark)

    def _emit(self, start: int) -> None:
        size, _, offset = self._times
        first = (start - offset) // self._times.pane_size
        numbers = range(first, first + size // self._times.pane_size)
        known = self._table.namespaces
        panes = [known[number] for number in numbers if number in known]
        counts = np.zeros(len(self._table), np.int64)
        for pane in panes:
            part = pane.first_values(COUNT)
            counts[: len(part)] += part
        present = self._not_ended(np.flatnonzero(counts), start + size - 1)
        if not len(present):
            return
        columns = [
            self._panes.key_array(present),
            pa.array(np.full(len(present), start, np.int64)),
            pa.array(np.full(len(present), start + size, np.int64)),
        ]
        names = [self._key, WINDOW_START, WINDOW_END]
        for aggregate in self._aggregates:
            columns.append(pa.array(self._result(aggregate, panes, counts, present)))
            names.append(aggregate.name)
        timestamps = np.full(len(present), start + size - 1, np.int64)
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        self.output.emit_columns(Columns(batch, timestamps))

    def _not_ended(self, slots: Any, last: int) -> Any:
        """Return those of *slots* (numbers of keys) for which the window that ends at *last* has
        not ended yet. After a restore, the window may have ended for some key groups already; their
        results were put out before."""
        if self._ended.latest < last:
            return slots
        keys = self._table.keys
        return slots[self._ended.are_before(last, [keys[slot] for slot in slots.tolist()])]

    def _result(
        self,
        aggregate: ColumnAggregate,
        panes: Sequence[NamespaceArrays],
        counts: Any,
        present: Any,
    ) -> Values:
        measure = aggregate.measure
        if measure is None:
            number: Values = counts[present]
            return number
        result: Values = self._combined(measure, panes, len(counts))[present]
        if aggregate.how != "mean":
            return result
        if result.dtype.kind != "f" and self._panes.has_upper(measure):
            upper = self._combined(measure.upper, panes, len(counts))[present]
            result = unwrapped(result, upper)
        mean: Values = result / counts[present]
        return mean

    def _combined(self, measure: Measure, panes: Sequence[NamespaceArrays], size: int) -> Values:
        kind = self._panes.kinds[measure]
        combined: Values = np.full(size, start_of(measure.how, kind), kind)
        ufunc = ufunc_of(measure.how, kind)
        for pane in panes:
            part = pane.first_values(measure.name)
            ufunc(combined[: len(part)], part, out=combined[: len(part)])
        return combined

    def _last_pane_before(self, watermark: int) -> int:
        """Return the number of the last pane for which all windows that contain it have ended. This
        pane and earlier ones can be removed."""
        if watermark == MAX_TIMESTAMP:
            return MAX_TIMESTAMP
        size, slide, offset = self._times
        last_window = (watermark - size + 1 - offset) // slide
        return (last_window + 1) * slide // self._times.pane_size - 1

    def capture(self, checkpoint_id: int, since: int | None = None) -> OperatorStateCapture:
        # After the last watermark nothing is stored: if the stream goes on, its time is not known.
        kept = [] if self._watermark == MAX_TIMESTAMP else self._ended.stored()
        self.operator_state.union_list_state(_WATERMARKS).update(kept)
        return super().capture(checkpoint_id, since)


Stored = tuple[int, int, int]
"""(first key group, last key group, watermark of the key groups from first to last)"""


class KeyGroupWatermarks:
    """The watermark of each of a subtask's key groups.
    *stored*: results of :meth:`stored` of any subtasks, from which the watermarks are restored. A
    key group that is not in them begins with the least time."""

    def __init__(self, state: KeyedStateBackend, stored: Iterable[Stored]) -> None:
        self._groups = state.key_groups
        first, last = self._groups
        self._watermarks = np.full(last - first + 1, MIN_TIMESTAMP, np.int64)
        for begin, end, watermark in stored:
            common = self._groups.intersection(KeyGroupRange(begin, end))
            if not common.is_empty:
                self._watermarks[common.first - first : common.last - first + 1] = watermark
        self.earliest: int = int(self._watermarks.min())
        """The earliest watermark of all key groups."""
        self.latest: int = int(self._watermarks.max())
        self._assign = KeyGroupAssigner(state.max_parallelism, state.hash_of)

    def advance(self, watermark: int) -> None:
        """Set the watermark of each key group to *watermark*, the subtask's new watermark, unless
        the key group's is later already."""
        self.earliest = watermark
        if watermark >= self.latest:
            self.latest = watermark
            self._watermarks[:] = watermark
        else:
            np.maximum(self._watermarks, watermark, out=self._watermarks)

    def are_before(
        self, time: int | npt.NDArray[np.int64], keys: Sequence[Any]
    ) -> npt.NDArray[np.bool_]:
        """Return, for each key, whether the watermark of the key's group is before *time*.
        *time*: a single time for all keys, or an array with a time for each key."""
        of_keys = self._watermarks[self._assign.of_all(keys) - self._groups.first]
        before: npt.NDArray[np.bool_] = of_keys < time
        return before

    def stored(self) -> list[Stored]:
        """Return the watermarks to store.
        Neighbouring key groups with equal watermarks share an entry."""
        places = range(self._groups.first, self._groups.last + 1)
        found = []
        by_watermark = zip(self._watermarks.tolist(), places, strict=True)
        for watermark, groups in groupby(by_watermark, key=lambda each: each[0]):
            together = [group for _, group in groups]
            found.append((together[0], together[-1], watermark))
        return found
