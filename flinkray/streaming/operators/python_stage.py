"""The operator of a Python stage of a batch job: a function of record batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import pyarrow as pa

from flinkray.core.ids import IntermediateDataSetID
from flinkray.file_results import read_batches
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import OperatorContext, Output
from flinkray.streaming.operators.source import BLOCK_RECORDS, SourceOperator
from flinkray.streaming.sources.result_files import FunctionInputs, FunctionInputsReader
from flinkray.streaming.sources.source import END_OF_INPUT, NOTHING_NOW, Boundedness, NoRecords

BatchFunction = Callable[..., Iterable[pa.RecordBatch] | None]
"""Function that takes an iterator of record batches for each input, and yields record batches.

If the function returns None, the stage's result has no rows.
"""


class BatchFunctionOperator(SourceOperator):
    """Calls the function of a Python stage once, and writes the record batches that it yields.

    Args:
        data_sets: ids of the results that the function reads.
        data_set_id: id of the stage's result.
    """

    reader: FunctionInputsReader
    _produced: Generator[pa.RecordBatch | pa.Table, None, None] | None = None
    """The batches of the result. None before the function is called."""

    def __init__(
        self,
        function: BatchFunction,
        data_sets: Sequence[IntermediateDataSetID],
        data_set_id: IntermediateDataSetID,
    ) -> None:
        super().__init__(FunctionInputs(Boundedness.BOUNDED))
        self._function = function
        self.data_sets = tuple(data_sets)
        self.data_set_id = data_set_id

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        self._write = context.services.file_writer(self.data_set_id)

    def describe_occasion(self) -> str:
        return ""

    def emit_next(self, most: int = BLOCK_RECORDS) -> NoRecords | int:
        """Write the next record batch of the function. Returns its number of rows, or why there is
        none.

        Raises:
            StreamError: the function has returned or yielded other things than record batches.
        """
        if self._produced is None:
            shares = self.reader.shares
            if len(shares) < len(self.data_sets):
                return NOTHING_NOW
            rows = [[split.rows for split in share] for share in shares]
            self._produced = self._batches(self._function(*map(read_batches, rows)))
        batch = next(self._produced, None)
        if batch is None:
            return END_OF_INPUT
        if self._write is not None:
            self._write(batch)
        return int(batch.num_rows)

    def _batches(self, returned: Any) -> Generator[pa.RecordBatch | pa.Table, None, None]:
        """Yield the record batches and tables in *returned*, what the function of a Python stage
        has returned; nothing if this is None.

        Raises:
            StreamError: the function has returned or yielded something else.
        """
        if returned is None:
            return
        if isinstance(returned, (pa.RecordBatch, pa.Table)) or not isinstance(returned, Iterable):
            raise _no_batches(type(returned).__name__)
        batches = iter(returned)
        try:
            for batch in batches:
                if not isinstance(batch, (pa.RecordBatch, pa.Table)):
                    raise _no_batches(f"{type(returned).__name__} of {type(batch).__name__}")
                yield batch
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def close(self) -> None:
        super().close()
        if self._produced is not None:
            self._produced.close()


def _no_batches(returned: str) -> StreamError:
    return StreamError(
        "the function of a Python stage yields Arrow record batches or tables, or returns a list "
        f"of them. It has returned: {returned}"
    )
