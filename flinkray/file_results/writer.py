"""Writes the result of a Python task."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from flinkray.core.errors import FlinkRayError
from flinkray.file_results.directory import ResultDirectory

_ROWS_PER_FILE = 4_000_000
_ROWS_PER_GROUP = 131_072
"""Rows in a row group, the smallest unit that one reader reads."""


class ResultSchemaError(FlinkRayError):
    """Raised when a task has written a batch with other columns than the batches before it."""


class ResultWriter:
    """Writes the part of a result that one attempt of a subtask produces; one thread, blocking.

    The schema is given, or is that of the first batch. If a schema was given there is always a
    file, so that readers know the columns of a result without rows.
    """

    def __init__(self, directory: ResultDirectory, schema: pa.Schema | None = None) -> None:
        self._directory = directory
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._rows_in_file = 0
        self._files = 0
        self.rows = 0
        """Number of rows written so far."""

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Add rows. Raises ResultSchemaError if the columns differ from the schema."""
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
        """Finish the result, so that it can be read.
        Raises FileResultLostError if some of the written rows are missing."""
        if self._files == 0 and self._schema is not None:
            self._open()
        self._close_file()
        self._directory.seal(self.rows)

    def abandon(self) -> None:
        """Discard the part of a failed attempt; it is never read."""
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
        self._directory.prepare(path)
        self._writer = pq.ParquetWriter(path, self._schema, filesystem=self._directory.files)
        return self._writer

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
