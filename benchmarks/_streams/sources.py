"""Records that the reading task makes at almost no cost, so that no data travels with a program.

Batches repeat the same keys and values; only event time goes on. Sources and the sink note when
they handled the first and the last records.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flinkray.core.clock import Clock
from flinkray.datastream.connectors import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    ReaderContext,
    SequentialReader,
    Sink,
    SinkWriter,
    Source,
    SplitEnumerator,
    WriterContext,
)
from flinkray.streaming.records.elements import Block, Columns

RECORDS_PER_MILLISECOND = 100
"""Of event time."""


class Marks:
    """Times at which the tasks of a program on this machine began and ended to handle records.

    One file for each, in a folder that one program at a time uses.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def clear(self) -> None:
        for file in self._folder.iterdir():
            file.unlink()

    def note(self, kind: str) -> None:
        """Note that something of this kind, ``first`` or ``last``, happened now."""
        (self._folder / f"{kind}-{uuid.uuid4().hex}").write_text(repr(time.time()))

    def seconds(self) -> float:
        """Return the seconds from the earliest first record to the latest last one."""
        first, last = (
            [float(file.read_text()) for file in self._folder.glob(f"{kind}-*")]
            for kind in ("first", "last")
        )
        return max(last) - min(first)


class MarkingSink(Sink[object]):
    """A sink that discards all records, and notes when its input ended."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def create_writer(self, context: WriterContext) -> MarkingWriter:
        return MarkingWriter(self._marks)


class MarkingWriter(SinkWriter[Any]):
    """Notes the end of the input of one subtask."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def write(self, block: Block) -> None:
        return None

    def write_columns(self, columns: Columns) -> None:
        return None

    def prepare_commit(self, end_of_input: bool) -> Sequence[Any]:
        if end_of_input:
            self._marks.note("last")
        return ()


class Stride(NamedTuple):
    """The next batch and every *step*-th after it: all subtasks are at about the same event
    time."""

    next: int
    step: int


class Batches(Source[Any, Stride]):
    """Base of sources of *batches* batches of one length."""

    def __init__(self, batches: int, marks: Marks | None = None) -> None:
        self.batches = batches
        self.marks = marks

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[Stride], clock: Clock
    ) -> SplitEnumerator[Stride]:
        readers = context.current_parallelism()
        return FixedSplitsEnumerator(context, [Stride(n, readers) for n in range(readers)])

    def create_reader(self, context: ReaderContext) -> BatchesReader:
        return BatchesReader(context, self)

    @abstractmethod
    def batch(self, number: int) -> Block | Columns:
        """Return the batch with this number, from 0."""


class BatchesReader(SequentialReader[Stride]):
    """Reads the batches of one stride."""

    def __init__(self, context: ReaderContext, source: Batches) -> None:
        super().__init__(context)
        self._source = source
        self._split = Stride(0, 1)

    def open_split(self, split: Stride) -> None:
        self._split = split
        if self._source.marks is not None:
            self._source.marks.note("first")

    def read(self, max_records: int) -> Any:
        number, step = self._split
        if number >= self._source.batches:
            return END_OF_INPUT
        self._split = Stride(number + step, step)
        return self._source.batch(number)

    def remaining(self) -> Stride:
        return self._split


class Values(Batches):
    """Blocks of Python values: those of *template*, with the event time behind them if *timed*."""

    def __init__(
        self,
        template: Sequence[Any],
        batches: int,
        marks: Marks | None = None,
        *,
        timed: bool = False,
    ) -> None:
        super().__init__(batches, marks)
        self._template = list(template)
        self._timed = timed

    def batch(self, number: int) -> Block:
        template = self._template
        if not self._timed:
            return Block(template)
        first = number * len(template)
        return Block(
            [
                (*value, time // RECORDS_PER_MILLISECOND)
                for time, value in enumerate(template, first)
            ]
        )


class Table(Batches):
    """Batches of columns: those of *template*, and event time in milliseconds as column ``t`` if
    *timed*."""

    def __init__(
        self,
        template: pa.RecordBatch,
        batches: int,
        marks: Marks | None = None,
        *,
        timed: bool = False,
    ) -> None:
        super().__init__(batches, marks)
        self._template = template
        self._times = np.arange(template.num_rows) // RECORDS_PER_MILLISECOND if timed else None

    def batch(self, number: int) -> Columns:
        if self._times is None:
            return Columns(self._template)
        first = number * self._template.num_rows // RECORDS_PER_MILLISECOND
        return Columns(self._template.append_column("t", pa.array(self._times + first)))

    def table(self) -> pa.Table:
        """Return all batches as one table."""
        return pa.Table.from_batches([self.batch(n).batch for n in range(self.batches)])
