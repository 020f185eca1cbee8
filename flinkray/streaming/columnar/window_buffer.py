"""Rows of tumbling windows, kept as Arrow batches until the watermark passes their window."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.streaming.columnar.widening import as_one_table
from flinkray.streaming.errors import no_timestamps
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Columns

WINDOW_START = "window_start"
WINDOW_END = "window_end"

Times = npt.NDArray[np.int64]


class WindowBuffer:
    """The rows of one input.

    Args:
        size, offset: the windows, in milliseconds.
        key: the column of the keys; None: there is none.
    """

    def __init__(self, size: int, offset: int, key: str | None) -> None:
        self._size, self._offset = size, offset
        self._key = key
        self._batches: list[tuple[pa.RecordBatch, Times]] = []
        """Each with the starts of its rows' windows."""

    def add(self, columns: Columns, watermark: int) -> int:
        """Keep the rows whose windows have not ended; gives the number of the others.

        Raises:
            StreamError: the rows have no timestamps.
        """
        times = columns.timestamps
        if times is None:
            raise no_timestamps("windows of event time need")
        if not len(times):
            return 0
        starts = times - (times - self._offset) % self._size
        batch = columns.batch
        late = 0
        if watermark > MIN_TIMESTAMP and int(starts.min()) + self._size - 1 <= watermark:
            kept = np.flatnonzero(starts + (self._size - 1) > watermark)
            late = len(starts) - len(kept)
            batch, starts = batch.take(pa.array(kept)), starts[kept]
        if len(starts):
            self._put(batch, starts)
        return late

    def _put(self, batch: pa.RecordBatch, starts: Times) -> None:
        own = [name for name in batch.schema.names if name not in (WINDOW_START, WINDOW_END)]
        self._batches.append((batch.select(own), starts))

    def take(self, watermark: int) -> tuple[pa.Table, Times] | None:
        """The rows whose windows have ended, and the windows' starts; None if there are none."""
        limit = MAX_TIMESTAMP if watermark == MAX_TIMESTAMP else watermark - self._size + 1
        due: list[tuple[pa.RecordBatch, Times]] = []
        kept: list[tuple[pa.RecordBatch, Times]] = []
        for batch, starts in self._batches:
            if int(starts.max()) <= limit:
                due.append((batch, starts))
            elif int(starts.min()) > limit:
                kept.append((batch, starts))
            else:
                ended = starts <= limit
                for part, into in ((ended, due), (~ended, kept)):
                    places = np.flatnonzero(part)
                    into.append((batch.take(pa.array(places)), starts[places]))
        self._batches = kept
        return self._together(due)

    # --- snapshots ----------------------------------------------------------------------------

    def by_key(self) -> Iterator[tuple[Any, pa.Table]]:
        """Everything that is kept, divided by key (without a column of keys all have the same);
        the windows' starts are a column."""
        everything = self._together(self._batches)
        if everything is None:
            return
        table, starts = everything
        table = table.append_column(WINDOW_START, pa.array(starts))
        if self._key is None:
            yield 0, table
            return
        encoded = table[self._key].combine_chunks().dictionary_encode("encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        for code, key in enumerate(encoded.dictionary.to_pylist()):
            yield key, table.take(pa.array(np.flatnonzero(codes == code)))

    def restore(self, table: pa.Table) -> None:
        """Take over what :meth:`by_key` gave."""
        starts = table[WINDOW_START].to_numpy()
        for batch in table.drop_columns([WINDOW_START]).combine_chunks().to_batches():
            self._put(batch, starts)

    def _together(self, parts: list[tuple[pa.RecordBatch, Times]]) -> tuple[pa.Table, Times] | None:
        if not parts:
            return None
        table = as_one_table([batch for batch, _ in parts], self._key)
        return table, np.concatenate([starts for _, starts in parts])
