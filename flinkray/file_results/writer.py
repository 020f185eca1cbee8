"""What a Python task writes of a result."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from flinkray.core.errors import FlinkRayError
from flinkray.file_results.directory import ResultDirectory

_ROWS_PER_FILE = 4_000_000
_ROWS_PER_GROUP = 131_072
"""The least that is read at once, and by one reader alone."""


class ResultSchemaError(FlinkRayError):
    """A task has written columns that do not go with those before."""


class ResultWriter:
    """Writes the part of one attempt of one subtask; from one thread, and blocking.

    The schema is the first batch's, unless it was given.  With a schema there is always a file, so
    that a reader knows the columns of a result without rows.
    """

    def __init__(self, directory: ResultDirectory, schema: pa.Schema | None = None) -> None:
        self._directory = directory
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_file = 0
        self._files = 0
        self.rows = 0
        """Written so far."""

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Add rows.

        Raises:
            ResultSchemaError: the columns are others than the schema's, by name or type.
        """
        if self._schema is None:
            self._schema = data.schema.remove_metadata()
        if not data.schema.equals(self._schema):
            raise ResultSchemaError(
                f"a result of columns {_columns(self._schema)} was given rows of columns "
                f"{_columns(data.schema)}: give every batch the same columns and types, in the "
                "same order"
            )
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        writer = self._open() if self._writer is None else self._writer
        writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        self.rows += table.num_rows
        self._rows_in_file += table.num_rows
        if self._rows_in_file >= _ROWS_PER_FILE:
            self._close_file()

    def finish(self) -> None:
        """All is written: from now on it can be read.

        Raises:
            FileResultLostError: not all of it is there any more.
        """
        if self._files == 0 and self._schema is not None:
            self._open()
        self._close_file()
        self._directory.seal(self.rows)

    def abandon(self) -> None:
        """The attempt has failed: nothing of it is read."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._directory.delete()

    def _open(self) -> pq.ParquetWriter:
        if self._files == 0:
            self._directory.create()
        path = f"{self._directory.path}/part-{self._files:05d}.parquet"
        self._files += 1
        self._rows_in_file = 0
        self._writer = pq.ParquetWriter(path, self._schema, filesystem=self._directory.files)
        return self._writer

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
