"""The operator at the end of a stream whose records form a file result.
Other vertices of the job read it afterwards."""

from __future__ import annotations

import pyarrow as pa

from flinkray.core.ids import IntermediateDataSetID
from flinkray.streaming.columnar.conversion import block_to_batch, schema_of
from flinkray.streaming.errors import StreamError
from flinkray.streaming.operators.operator import LastOperator, OperatorContext, Output
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.typeinfo import TypeInformation


class ResultFilesOperator(LastOperator):
    """Writes the records of a stage of a batch job as rows. Rows and dictionaries have one column
    per name, tuples f0, f1, …, and other values one column, ``value``. Types are those of
    *type_info*, or are found from the values."""

    def __init__(
        self, data_set_id: IntermediateDataSetID, type_info: TypeInformation | None
    ) -> None:
        self.data_set_id = data_set_id
        self._type_info = type_info
        wanted = None if type_info is None else type_info.to_arrow()
        self._schema = None if wanted is None else schema_of(wanted)

    def setup(self, context: OperatorContext, output: Output) -> None:
        super().setup(context, output)
        write = context.services.file_writer(self.data_set_id)
        assert write is not None, "a stream stage whose result nobody reads is refused"
        self._write = write

    def open(self) -> None:
        if self._schema is not None:  # readers of a result without rows know its columns
            self._write(pa.RecordBatch.from_pylist([], self._schema))

    def process_block(self, block: Block) -> None:
        if len(block):
            self._write(block_to_batch(block, self._type_info))

    def process_columns(self, columns: Columns) -> None:
        self._write(columns.batch if self._schema is None else self._declared(columns.batch))

    def _declared(self, batch: pa.RecordBatch) -> pa.Table:
        try:
            return pa.Table.from_batches([batch]).cast(self._schema)
        except (pa.ArrowInvalid, ValueError) as error:
            raise StreamError(
                f"columns {batch.schema.names} are not of the declared type: {error}"
            ) from error
