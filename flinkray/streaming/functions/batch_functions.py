"""Functions of keyed streams that are given many records at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from flinkray.state.key_numbers import Slots
from flinkray.streaming.functions.functions import Function, TimerContext

KEY = TypeVar("KEY")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class BatchContext(ABC):
    """About the batch that a :class:`KeyedBatchFunction` is given."""

    slots: Slots
    """The place of each row's key in array state."""

    @property
    @abstractmethod
    def keys(self) -> Sequence[Any]:
        """All keys that have come so far, by slot."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Milliseconds."""


class KeyedBatchFunction(Function, ABC):
    """Is given whole Arrow batches, and for each row the place of its key in arrays of state.

    State comes from ``runtime_context.get_array_state`` and is read and written as NumPy arrays: no
    Python object is made for a record or a key.
    """

    @abstractmethod
    def process_batch(self, batch: pa.RecordBatch, ctx: BatchContext) -> Any:
        """A record batch, a table, several, or None.  Rows that have timestamps have them in the
        last column, ``$timestamp``, and so have those of the result."""

    def on_watermark(self, timestamp: int, ctx: BatchContext) -> Any:
        """Results that come before a watermark, as of :meth:`process_batch`; the last watermark,
        at the end of the input, is Java's greatest ``long``.  There are no slots."""
        return None


class GroupContext(TimerContext):
    """About the records of one key that a :class:`KeyedGroupFunction` is given."""

    timestamps: Sequence[int] | None
    """Of the records, if they have any; of results, :meth:`timestamp` is: the latest of them."""


class KeyedGroupFunction(Function, ABC, Generic[KEY, IN, OUT]):
    """Is given all records of one key that have come together, and so looks its state up once."""

    @abstractmethod
    def process_group(self, key: KEY, values: list[IN], ctx: GroupContext) -> Iterable[OUT] | None:
        """Results for the records of a key, in the order in which they came; how many of them come
        together is not known beforehand.  State and timers are those of the key."""

    def on_timer(self, timestamp: int, ctx: TimerContext) -> Iterable[OUT] | None:
        """A timer that this function registered fires."""
        return None
