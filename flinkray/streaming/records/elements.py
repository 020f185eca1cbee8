"""Elements that flow between operators: batches of records, watermarks and barriers.

A batch is a :class:`Block` of Python values or :class:`Columns` of Arrow data. Single records are
not wrapped: timestamps and keys are parallel lists. A batch is never changed. The values in it
belong to the receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from flinkray.kernels.rows import own_all
from flinkray.streaming.records.python_values import python_values
from flinkray.streaming.records.row import Row

MIN_TIMESTAMP = -(1 << 63)
"""Java's Long.MIN_VALUE: before all time.
Also stands for a missing timestamp where user functions expect a number."""
MAX_TIMESTAMP = (1 << 63) - 1
"""Java's Long.MAX_VALUE. A watermark with this time ends the stream."""


class Origin(NamedTuple):
    """Says where the records of a batch entered the job, for error messages."""

    source: str
    """Name and subtask of the source."""
    position: int
    """Number of the batch's first record in the source, from 0."""

    def __str__(self) -> str:
        return f"{self.source}, in the batch from record {self.position} on"


class Block:
    """A batch of Python values. Timestamps (milliseconds) and keys, if any, are parallel lists."""

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
        """Return a block with one new value for each old value, and without keys."""
        return Block(values, self.timestamps, None, self.origin)

    def owned(self) -> Block:
        """Return a block with copies of the mutable values, so that the receiver may change them
        without changing the values of this block."""
        values = own_all(self.values)
        if values is self.values:
            return self
        return Block(values, self.timestamps, self.keys, self.origin)

    def part(self, begin: int, end: int) -> Block:
        """Return the records from *begin* up to but not including *end*."""
        times, keys = self.timestamps, self.keys
        return Block(
            self.values[begin:end],
            None if times is None else times[begin:end],
            None if keys is None else keys[begin:end],
            self.origin,
        )

    def take(self, places: Sequence[int]) -> Block:
        """Return a block with the records at the indices *places*, without their keys."""
        values, times = self.values, self.timestamps
        stamps = None if times is None else [times[place] for place in places]
        return Block([values[place] for place in places], stamps, None, self.origin)

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
        """Whether the only column holds bare values, not rows with one field."""

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def to_block(self) -> Block:
        """Return the records as Python values: rows with the batch's field names, or single values.
        Raises StreamError: a map has a key more than once."""
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
        """Return the rows from *begin* up to but not including *end*, without copying."""
        times = None if self.timestamps is None else self.timestamps[begin:end]
        batch = self.batch.slice(begin, end - begin)
        return Columns(batch, times, self.origin, self.scalar)

    def take(self, indices: npt.NDArray[Any]) -> Columns:
        timestamps = None if self.timestamps is None else self.timestamps.take(indices)
        import pyarrow.compute as pc

        rows = pc.take(self.batch, pa.array(indices), boundscheck=False)
        return Columns(rows, timestamps, self.origin, self.scalar)

    def __repr__(self) -> str:
        return f"Columns({self.batch.schema.names}, {len(self)} rows)"


@dataclass(frozen=True)
class Watermark:
    """Says that event time has reached *timestamp*.
    Records that come later with this timestamp or a lower one are late."""

    timestamp: int


@dataclass(frozen=True)
class WatermarkStatus:
    """Says that the sender of this channel is idle, or active again. While it is idle, receivers do
    not wait for its watermarks."""

    idle: bool


@dataclass(frozen=True)
class Barrier:
    """An element that separates the elements before a checkpoint from those after it."""

    checkpoint_id: int
    timestamp: int
    """Time of the trigger, in milliseconds since 1970."""
    savepoint: bool = False
    stops: bool = False
    """Whether the job ends with this savepoint: its tasks process nothing after it."""
    drains: bool = False
    """Whether event time ends before the savepoint, so that windows fire and emit."""
    unaligned: bool = False
    """Whether the barrier overtakes elements in flight. These belong to the checkpoint."""
    alignment_timeout: int | None = None
    """Milliseconds from the trigger until an aligned checkpoint becomes unaligned. None: never."""
    directory: str = ""
    """Directory to which state is written."""
    latest_completed: int = 0
    """Id of the latest complete checkpoint. 0: none.
    No state is shared with checkpoints before the latest complete one."""
    is_whole: bool = False
    """Whether the checkpoint contains all of its state and shares none with other checkpoints."""

    @property
    def overtakes_at(self) -> int | None:
        """When the barrier begins to overtake elements in flight, because its alignment time-out
        passes: milliseconds since 1970. None: no time-out; it overtakes from the start
        (*unaligned*) or never."""
        if self.unaligned or self.savepoint or self.alignment_timeout is None:
            return None
        return self.timestamp + self.alignment_timeout

    @property
    def may_overtake(self) -> bool:
        """Whether the barrier may overtake elements in flight, which the checkpoint then stores."""
        return self.unaligned or self.overtakes_at is not None


@dataclass(frozen=True)
class CancelledBarrier:
    """Takes the place of a barrier: the sender takes no part in this checkpoint."""

    checkpoint_id: int


@dataclass(frozen=True)
class EndOfData:
    """Says that no record and no watermark follows in this channel. Barriers may still follow."""


@dataclass(frozen=True)
class EndOfInput:
    """Says that nothing follows in this channel, which can be closed."""


END_OF_DATA = EndOfData()
END_OF_INPUT = EndOfInput()
IDLE = WatermarkStatus(True)
ACTIVE = WatermarkStatus(False)

Records = Block | Columns
Element = (
    Block
    | Columns
    | Watermark
    | WatermarkStatus
    | Barrier
    | CancelledBarrier
    | EndOfData
    | EndOfInput
)


def together(elements: Sequence[Element]) -> list[Element]:
    """Return the elements, with consecutive batches of one kind merged into one batch."""
    merged: list[Element] = []
    run: list[Any] = []
    for element in chain(elements, (None,)):
        if run:
            if _may_join(run[0], element):
                run.append(element)
                continue
            merged.append(run[0] if len(run) == 1 else _joined(run))
            run = []
        if element is None:
            break
        if isinstance(element, Block | Columns):
            run.append(element)
        else:
            merged.append(element)
    return merged


def _may_join(first: Any, second: Any) -> bool:
    kind = type(first)
    if type(second) is not kind or (first.timestamps is None) != (second.timestamps is None):
        return False
    if kind is Block:
        return (first.keys is None) == (second.keys is None)
    schema: pa.Schema = first.batch.schema
    return first.scalar == second.scalar and bool(
        schema.equals(second.batch.schema, check_metadata=True)
    )


def _joined(run: list[Any]) -> Element:
    first = run[0]
    times: Any = None
    if isinstance(first, Block):
        values = list(chain.from_iterable(block.values for block in run))
        keys = None
        if first.timestamps is not None:
            times = list(chain.from_iterable(block.timestamps for block in run))
        if first.keys is not None:
            keys = list(chain.from_iterable(block.keys for block in run))
        return Block(values, times, keys, first.origin)
    if first.timestamps is not None:
        times = np.concatenate([part.timestamps for part in run])
    table = pa.Table.from_batches([part.batch for part in run]).combine_chunks()
    batch = next(iter(table.to_batches()), first.batch)
    return Columns(batch, times, first.origin, first.scalar)
