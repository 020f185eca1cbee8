"""What flows between operators: batches of records, and in line with them the signs of time.

A batch is a :class:`Block` of Python values or :class:`Columns` of Arrow data.  There is no object
around a single record: timestamps and keys are parallel lists.  A batch is never changed; the
values in it belong to the one who received it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from flinkray.core.values import own_all
from flinkray.streaming.records.python_values import python_values
from flinkray.streaming.records.row import Row

MIN_TIMESTAMP = -(1 << 63)
"""Java's Long.MIN_VALUE: before all time, and "no timestamp" where a function asks for one."""
MAX_TIMESTAMP = (1 << 63) - 1
"""Java's Long.MAX_VALUE: a watermark of it ends the stream."""


class Origin(NamedTuple):
    """Where the records of a batch entered the job."""

    source: str
    """The source's name and subtask."""
    position: int
    """The number of the batch's first record there, from 0."""

    def __str__(self) -> str:
        return f"{self.source}, in the batch from record {self.position} on"


class Block:
    """Python values, with timestamps (milliseconds) and keys in parallel where there are any."""

    __slots__ = ("keys", "origin", "timestamps", "values")

    def __init__(
        self,
        values: Sequence[Any],
        timestamps: Sequence[int] | None = None,
        keys: Sequence[Any] | None = None,
        origin: Origin | None = None,
    ) -> None:
        self.values = values
        self.timestamps = timestamps
        self.keys = keys
        self.origin = origin

    def __len__(self) -> int:
        return len(self.values)

    def with_values(self, values: Sequence[Any]) -> Block:
        """One new value for each old one."""
        return Block(values, self.timestamps, None, self.origin)

    def owned(self) -> Block:
        """A block whose values can be changed without this one's being changed."""
        values = own_all(self.values)
        if values is self.values:
            return self
        return Block(values, self.timestamps, self.keys, self.origin)

    def part(self, begin: int, end: int) -> Block:
        """The records from *begin* up to but not including *end*."""
        times, keys = self.timestamps, self.keys
        return Block(
            self.values[begin:end],
            None if times is None else times[begin:end],
            None if keys is None else keys[begin:end],
            self.origin,
        )

    def __repr__(self) -> str:
        return f"Block({list(self.values)!r}, timestamps={self.timestamps!r})"


class Columns:
    """An Arrow record batch, with timestamps (milliseconds) as an int64 array."""

    __slots__ = ("batch", "origin", "scalar", "timestamps")

    def __init__(
        self,
        batch: pa.RecordBatch,
        timestamps: npt.NDArray[np.int64] | None = None,
        origin: Origin | None = None,
        scalar: bool = False,
    ) -> None:
        self.batch = batch
        self.timestamps = timestamps
        self.origin = origin
        self.scalar = scalar
        """The one column holds bare values, not rows with one field."""

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def to_block(self) -> Block:
        """The same records as Python values: rows with the batch's field names.

        Raises:
            StreamError: a map has a key more than once.
        """
        columns = list(map(python_values, self.batch.columns))
        if self.scalar:
            values = columns[0]
        else:
            names = list(self.batch.schema.names)
            of = Row.of
            values = [of(names, list(fields)) for fields in zip(*columns, strict=True)]
        timestamps = None if self.timestamps is None else self.timestamps.tolist()
        return Block(values, timestamps, None, self.origin)

    def part(self, begin: int, end: int) -> Columns:
        """The rows from *begin* up to but not including *end*; nothing is copied."""
        times = None if self.timestamps is None else self.timestamps[begin:end]
        batch = self.batch.slice(begin, end - begin)
        return Columns(batch, times, self.origin, self.scalar)

    def take(self, indices: npt.NDArray[Any]) -> Columns:
        """The records at those places."""
        timestamps = None if self.timestamps is None else self.timestamps.take(indices)
        rows = pc.take(self.batch, pa.array(indices), boundscheck=False)
        return Columns(rows, timestamps, self.origin, self.scalar)

    def __repr__(self) -> str:
        return f"Columns({self.batch.schema.names}, {len(self)} rows)"


@dataclass(frozen=True)
class Watermark:
    """No record with a timestamp of at most this follows, save late ones."""

    timestamp: int


@dataclass(frozen=True)
class WatermarkStatus:
    """Whether a channel takes part in the progress of time."""

    idle: bool


@dataclass(frozen=True)
class Barrier:
    """Divides what belongs to a checkpoint from what comes after it."""

    checkpoint_id: int
    timestamp: int
    """When it was triggered: milliseconds since 1970."""
    savepoint: bool = False
    stops: bool = False
    """The job ends with this savepoint: its tasks process nothing more after it."""
    drains: bool = False
    """Before that, event time comes to its end: windows fire, and what they hold is put out."""
    unaligned: bool = False
    """It overtakes what is under way; that belongs to the checkpoint."""
    alignment_timeout: int | None = None
    """Milliseconds after the trigger, after which a checkpoint that is not aligned yet goes on as
    an unaligned one; None: never."""
    directory: str = ""
    """Where state is written."""
    latest_completed: int = 0
    """Id of the latest complete checkpoint; 0: there is none.  State is shared with no earlier
    one."""
    is_whole: bool = False
    """State is shared with no other checkpoint."""

    @property
    def overtakes_at(self) -> int | None:
        """Milliseconds since 1970, from when on one that is in line is to overtake what is under
        way; None: it stays in line."""
        if self.unaligned or self.savepoint or self.alignment_timeout is None:
            return None
        return self.timestamp + self.alignment_timeout

    @property
    def may_overtake(self) -> bool:
        """Whether data in flight may belong to the checkpoint."""
        return self.unaligned or self.overtakes_at is not None


@dataclass(frozen=True)
class CancelledBarrier:
    """In place of a barrier: the sender takes no part in this checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True)
class EndOfInput:
    """Nothing follows on this channel."""


END_OF_INPUT = EndOfInput()
IDLE = WatermarkStatus(True)
ACTIVE = WatermarkStatus(False)

Records = Block | Columns
Element = Block | Columns | Watermark | WatermarkStatus | Barrier | CancelledBarrier | EndOfInput
