"""Turns keyed records into columns of key and record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from flinkray.streaming.columnar.conversion import block_to_columns
from flinkray.streaming.operators.operator import StreamOperator
from flinkray.streaming.records.elements import Block, Columns
from flinkray.streaming.records.keying import Keys, functions_of
from flinkray.streaming.records.typeinfo import TypeInformation


class KeyAndValueOperator(StreamOperator):
    """Turns each record into a record of two columns: ``f0`` is its key, ``f1`` the record.

    A record with fields becomes a struct. Records that come as Arrow columns are not converted to
    Python values, nor are their keys if these are a column.
    """

    def __init__(self, keys: Keys, value_type: TypeInformation | None) -> None:
        self._keys = keys
        self._value_type = value_type

    @property
    def selectors(self) -> Sequence[Any]:
        return functions_of(self._keys)

    def process_block(self, block: Block) -> None:
        if len(block):
            keys = self._column_of(self._keys.of_block(block))
            self._emit(keys, block_to_columns(block, self._value_type))

    def process_columns(self, columns: Columns) -> None:
        if not len(columns):
            return
        keys = self._keys.of_columns(columns)
        if keys is None:
            keys = self._column_of(self._keys.of_block(columns.to_block()))
        self._emit(keys, columns)

    def _column_of(self, keys: Sequence[Any]) -> pa.Array:
        return _in_one(block_to_columns(Block(list(keys)), self._keys.key_type))

    def _emit(self, keys: pa.Array, values: Columns) -> None:
        batch = pa.RecordBatch.from_arrays([keys, _in_one(values)], names=["f0", "f1"])
        self.output.emit_columns(Columns(batch, values.timestamps, values.origin))


def _in_one(columns: Columns) -> pa.Array:
    batch = columns.batch
    if columns.scalar:
        return batch.column(0)
    return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
