"""Sources of the rows of file results that other vertices of the job have written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from flinkray.core.clock import Clock
from flinkray.core.ids import IntermediateDataSetID
from flinkray.file_results import RowGroupSplit, read_batches
from flinkray.streaming.errors import StreamError
from flinkray.streaming.records.elements import Columns, Origin
from flinkray.streaming.sources.source import (
    END_OF_INPUT,
    Boundedness,
    EnumeratorContext,
    FixedSplitsEnumerator,
    Polled,
    ReaderContext,
    SequentialReader,
    Source,
    SourceReader,
    SplitEnumerator,
)


class ResultFileSplit(NamedTuple):
    """Row groups of a file, of which the first *offset* batches have been read."""

    rows: RowGroupSplit
    offset: int = 0


class ResultFilesSource(Source[Any, ResultFileSplit]):
    """A source of the rows of a result that another vertex of the job has written to files, in
    batches of columns. Tasks divide the files' row groups among them without an enumerator.
    *written_by*: name of the writing vertex, for errors."""

    def __init__(self, data_set_id: IntermediateDataSetID, written_by: str) -> None:
        self.data_set_id = data_set_id
        self._written_by = written_by

    def get_boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED

    def create_enumerator(
        self, context: EnumeratorContext[ResultFileSplit], clock: Clock
    ) -> SplitEnumerator[ResultFileSplit]:
        raise StreamError(
            f"the rows of {self._written_by!r} are there while its batch job runs: let the stage "
            "return its stream, or end it in sinks, instead of executing the program"
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[ResultFileSplit]:
        return _ResultFilesReader(context)


class _ResultFilesReader(SequentialReader[ResultFileSplit]):
    def start(self) -> None:
        """Do nothing: the reader gets all its splits without a request."""

    def open_split(self, split: ResultFileSplit) -> None:
        self._rows, self._offset = split
        batches = read_batches([self._rows])
        self._batches: Iterator[pa.RecordBatch] = islice(batches, self._offset, None)

    def read(self, max_records: int) -> Polled:
        batch = next(self._batches, None)
        if batch is None:
            return END_OF_INPUT
        columns = Columns(batch, origin=Origin(self._rows.file.name, self._offset))
        self._offset += 1
        return columns

    def remaining(self) -> ResultFileSplit:
        return ResultFileSplit(self._rows, self._offset)


class FunctionInputs(Source[Any, ResultFileSplit]):
    """The results in files that a function of tasks reads, none or several.
    The tasks divide the row groups of each result among them without an enumerator."""

    def __init__(self, boundedness: Boundedness) -> None:
        self._boundedness = boundedness

    def get_boundedness(self) -> Boundedness:
        return self._boundedness

    def create_enumerator(
        self, context: EnumeratorContext[ResultFileSplit], clock: Clock
    ) -> SplitEnumerator[ResultFileSplit]:
        """Create the enumerator of a function without inputs, which has no splits."""
        return FixedSplitsEnumerator(context, ())

    def create_reader(self, context: ReaderContext) -> SourceReader[ResultFileSplit]:
        return FunctionInputsReader(context)


class FunctionInputsReader(SourceReader[ResultFileSplit]):
    """Keeps the task's share of each input, in the order of the inputs."""

    def __init__(self, context: ReaderContext) -> None:
        super().__init__(context)
        self.shares: list[Sequence[ResultFileSplit]] = []

    def start(self) -> None:
        """Request nothing: the runner of the task gives the share of each input."""

    def add_splits(self, splits: Sequence[ResultFileSplit]) -> None:
        self.shares.append(splits)

    def notify_no_more_splits(self) -> None:
        """Do nothing: the number of inputs is known."""

    def poll(self, max_records: int) -> Polled:
        """Return no records: the function reads the shares."""
        return END_OF_INPUT

    def snapshot_state(self, checkpoint_id: int) -> list[ResultFileSplit]:
        return [split for share in self.shares for split in share]
