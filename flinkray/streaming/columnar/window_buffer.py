"""Keeps rows of tumbling windows as Arrow batches until the watermark passes their window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.state.row_table import RowTable
from flinkray.streaming.errors import no_timestamps
from flinkray.streaming.records.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Columns
from flinkray.streaming.records.widening import as_one_table

WINDOW_START = "window_start"
WINDOW_END = "window_end"

Times = npt.NDArray[np.int64]


class WindowBuffer:
    """The rows of one input whose windows have not ended.

    Args:
        size, offset: of the windows, in milliseconds.
        key: name of the key column; None if the key is not a column.
        table: the table that holds the rows, by the start of their window.
    """

    def __init__(self, size: int, offset: int, key: str | None, table: RowTable) -> None:
        self._size, self._offset = size, offset
        self._key = key
        self._table = table

    def add(self, columns: Columns, watermark: int, keys: Sequence[Any] | None = None) -> int:
        """Store rows whose windows have not ended at *watermark*. Returns the number of late rows.

        *keys*: the key of each row, if keys are not a column. Raises StreamError if the rows have
        no timestamps.
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
            keys = None if keys is None else [keys[place] for place in kept.tolist()]
        if len(starts):
            own = [name for name in batch.schema.names if name not in (WINDOW_START, WINDOW_END)]
            self._table.append(batch.select(own), starts, keys)
        return late

    def take(self, watermark: int) -> tuple[pa.Table, Times] | None:
        """Remove and return the rows of ended windows, and the windows' starts; None: no rows."""
        limit = MAX_TIMESTAMP if watermark == MAX_TIMESTAMP else watermark - self._size + 1
        due = self._table.take_up_to(limit)
        if not due:
            return None
        table = as_one_table([rows.batch for rows in due], self._key)
        return table, np.concatenate([rows.namespaces for rows in due])
