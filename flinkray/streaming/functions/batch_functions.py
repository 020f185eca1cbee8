"""Functions of keyed streams that get many records at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic

import pyarrow as pa

from flinkray.state.key_numbers import Slots
from flinkray.streaming.functions.functions import (
    IN,
    KEY,
    OUT,
    Function,
    Tagged,
    TimerContext,
)


class BatchContext(ABC):
    """Context of the batch that a :class:`KeyedBatchFunction` processes."""

    slots: Slots
    """For each row, the index (slot) of its key in array state."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[Any]:
        """All keys that the subtask has seen so far; the index of a key is its slot."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the watermark in milliseconds; the least time before the first watermark."""


class KeyedBatchFunction(Function, ABC):
    """Gets whole Arrow batches, and for each row the index (slot) of its key in arrays of state.

    State comes from ``runtime_context.get_array_state`` and is read and written as NumPy arrays: no
    Python object is made for a record or a key.
    """

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """Return the results for a batch: a record batch, a table, several of them, or None.

        Rows with timestamps have them in the last column, ``$timestamp``; so have rows of the
        results.
        """

    def on_watermark(self, timestamp: int, ctx: BatchContext) -> Any:
        """Return results that go before a watermark, in the form of :meth:`process_batch`.

        At the end of the input comes the last watermark, Java's greatest ``long``. ``ctx.slots`` is
        empty.
        """
        return None


class GroupContext(TimerContext):
    """Context of the records of one key that a :class:`KeyedGroupFunction` processes."""

    timestamps: Sequence[int] | None
    """The timestamps of the records; None if they have none. The results get the latest of them,
    which :meth:`timestamp` returns."""


class KeyedGroupFunction(Function, ABC, Generic[KEY, IN, OUT]):
    """Gets all records of a key that have come together, so that it reads the key's state once."""

    @abstractmethod
    def process_group(
        self, key: KEY, values: list[IN], ctx: GroupContext
    ) -> Iterable[OUT | Tagged] | None:
        """Return the results for records of a key, which are in the order in which they came."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT | Tagged] | None:
        """Called when a timer that this function registered fires."""
        return None
