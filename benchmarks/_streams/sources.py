"""Records that cost next to nothing to make, in the task that reads them, so that no data travels
with a program.  Batches repeat the same keys and values; only event time goes on."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
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
    Source,
    SplitEnumerator,
)
from flinkray.streaming.records.elements import Block, Columns

RECORDS_PER_MILLISECOND = 100
"""Of event time."""


class Stride(NamedTuple):
    """Every so manieth batch, so that all subtasks are at about the same event time."""

    next: int
    step: int


class Batches(Source[Any, Stride]):
    """So many batches of the same length."""

    def __init__(self, batches: int) -> None:
        self.batches = batches

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
        """One of them."""


class BatchesReader(SequentialReader[Stride]):
    def __init__(self, context: ReaderContext, source: Batches) -> None:
        super().__init__(context)
        self._source = source
        self._split = Stride(0, 1)

    def open_split(self, split: Stride) -> None:
        self._split = split

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

    def __init__(self, template: Sequence[Any], batches: int, timed: bool = False) -> None:
        super().__init__(batches)
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

    def __init__(self, template: pa.RecordBatch, batches: int, timed: bool = False) -> None:
        super().__init__(batches)
        self._template = template
        self._times = np.arange(template.num_rows) // RECORDS_PER_MILLISECOND if timed else None

    def batch(self, number: int) -> Columns:
        if self._times is None:
            return Columns(self._template)
        first = number * self._template.num_rows // RECORDS_PER_MILLISECOND
        return Columns(self._template.append_column("t", pa.array(self._times + first)))

    def table(self) -> pa.Table:
        """All of it."""
        return pa.Table.from_batches([self.batch(n).batch for n in range(self.batches)])
